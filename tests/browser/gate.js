/**
 * Stops an engine worker behind a message that a test names, for as long as the test wants: what is "in the middle" then is so on
 * every machine. Put into a page before it makes its workers. A cancel opens the gate, too, as the worker it goes to is to hear it.
 * An answer to a request ("result") is held before it is told.
 */
{
  const OPEN = 0, ARMED = 1, HOLDS = 2;
  const shared = typeof SharedArrayBuffer === "undefined" ? null : new SharedArrayBuffer(1024);
  const state = shared && new Int32Array(shared, 0, 2);
  let asked = 0;

  window.gate = {
    /** The next message like `wanted` is told, and nothing after it happens. @param {{event: string, stage?: string, least?: number, nth?: number}} wanted least: what its `done` is at least */
    hold(wanted) {
      const text = new TextEncoder().encode(JSON.stringify({ asked: ++asked, nth: 1, ...wanted }));
      new Uint8Array(shared, 8).set(text);
      state[1] = text.length;
      Atomics.store(state, 0, ARMED);
    },
    release() {
      Atomics.store(state, 0, OPEN);
      Atomics.notify(state, 0);
    },
    get holds() {
      return Atomics.load(state, 0) === HOLDS;
    },
  };

  const inWorker = () => {
    const post = self.postMessage.bind(self);
    let state = null, stop = null, asked = 0, left = 0;
    self.addEventListener("message", ({ data }) => {
      if (data.method !== "start") return;
      state = new Int32Array(data.params.gate);
      stop = data.params.stop && new Int32Array(data.params.stop);
    });
    const meant = (message) => {
      if (!state || Atomics.load(state, 0) !== 1) return false;
      const text = new TextDecoder().decode(new Uint8Array(state.buffer, 8, state[1]).slice());
      const wanted = JSON.parse(text);
      if (wanted.asked !== asked) [asked, left] = [wanted.asked, wanted.nth];
      const { event, stage, least } = wanted;
      const kind = message.event ?? (message.result ? "result" : "error");
      return kind === event && (!stage || message.stage === stage) && (!least || message.done >= least) && --left <= 0;
    };
    const wait = () => {
      if (Atomics.compareExchange(state, 0, 1, 2) !== 1) return;
      while (Atomics.load(state, 0) === 2 && !(stop && Atomics.load(stop, 0) === 1)) Atomics.wait(state, 0, 2, 20);
      Atomics.compareExchange(state, 0, 2, 0);
    };
    self.postMessage = (message, ...more) => {
      const stops = meant(message);
      if (stops && !message.event) wait();
      post(message, ...more);
      if (stops && message.event) wait();
    };
  };

  const Real = window.Worker;
  window.Worker = class extends Real {
    constructor(url, how) {
      const whole = new URL(url, location.href).href;
      const text = `import ${JSON.stringify(whole)};\n(${inWorker})();`;
      super(shared ? URL.createObjectURL(new Blob([text], { type: "text/javascript" })) : url, how);
    }
    postMessage(message, ...more) {
      const start = message?.method === "start";
      super.postMessage(start ? { ...message, params: { ...message.params, gate: shared } } : message, ...more);
    }
  };
}
