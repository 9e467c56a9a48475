/**
 * The microphone: start, samples and level while it runs, stop -> all samples at the rate the device really ran at. The rate is
 * asked of the device, read back from the context, and travels with the samples; nothing here assumes one.
 */
import { AudioError } from "./audio.js";
import { orStopped } from "./link.js";

/**
 * What calls do to a voice takes away what Whisper listens to: consonants go with the noise. A faint microphone is still
 * raised.
 */
const CONSTRAINTS = { echoCancellation: false, noiseSuppression: false, autoGainControl: true };

/** Why the microphone cannot work here, or null. The words are for the person. */
export function microphoneProblem() {
  if (!window.isSecureContext) {
    return "Browsers allow the microphone only on https addresses and on localhost, and this page came over plain http from "
      + `${location.host}. Open it on the computer that serves it, or through https. Files and the sample work here.`;
  }
  if (!navigator.mediaDevices?.getUserMedia || typeof AudioWorkletNode === "undefined") {
    return "This browser offers no microphone to pages. Files and the sample work.";
  }
  return null;
}

/** @param {unknown} error from getUserMedia */
function inWords(error) {
  const name = error instanceof DOMException ? error.name : "";
  switch (name) {
    case "NotAllowedError":
    case "SecurityError":
      return new AudioError("The browser did not give this page the microphone. Allow it in the address bar (the icon beside the "
        + "address) or in the system's privacy settings, then try again.", "mic_denied");
    case "NotFoundError":
    case "OverconstrainedError":
      return new AudioError("No microphone was found. Plug one in or switch it on, then try again.", "mic_missing");
    case "NotReadableError":
    case "AbortError":
      return new AudioError("The microphone is there but does not start: another program may be using it. Close that, then try "
        + "again.", "mic_busy");
    default:
      return new AudioError(`The microphone did not start: ${error instanceof Error ? error.message : String(error)}`, "mic_failed");
  }
}

export class Recorder {
  /** @type {Float32Array[]} */
  #blocks = [];
  /** @type {AudioContext | null} */
  #context = null;
  /** @type {AudioWorkletNode | null} */
  #tape = null;
  /** @type {MediaStream | null} */
  #stream = null;
  #samples = 0;
  #asking = new AbortController();

  rate = 0;
  device = "";

  /** @param {{keep?: boolean}} [how] keep: stop() gives back what was recorded; false for hours, of which onSamples takes each piece */
  constructor({ keep = true } = {}) {
    this.keep = keep;
  }

  /** Called for each block with its peak and mean level, 0..1. @type {(peak: number, rms: number) => void} */
  onLevel = () => {};
  /** Called with each block, one channel at `rate`. @type {(samples: Float32Array) => void} */
  onSamples = () => {};
  /** The device went away while recording (unplugged, taken by the system). @type {() => void} */
  onLost = () => {};
  /** The browser or the system holds the sound back, or gives it again: a call came in, the page sleeps. @type {(held: boolean) => void} */
  onHeld = () => {};

  /** Seconds recorded so far. */
  get seconds() {
    return this.rate ? this.#samples / this.rate : 0;
  }

  /** Wait no longer for a person who is asked for the microphone: start() rejects with an AbortError, or goes on to its end. */
  cancel() {
    this.#asking.abort();
  }

  get cancelled() {
    return this.#asking.signal.aborted;
  }

  /**
   * Resolves when the first samples may come in.
   * @throws {AudioError}
   */
  async start() {
    const problem = microphoneProblem();
    if (problem) throw new AudioError(problem, "mic_unavailable");
    const asked = navigator.mediaDevices.getUserMedia({ audio: CONSTRAINTS });
    try {
      this.#stream = await orStopped(asked, this.#asking.signal);
    } catch (error) {
      if (!this.cancelled) throw inWords(error);
      asked.then((late) => late.getTracks().forEach((track) => track.stop()), () => {});
      throw error;
    }
    try {
      const [track] = this.#stream.getAudioTracks();
      this.device = track.label;
      track.addEventListener("ended", () => this.onLost());
      track.addEventListener("mute", () => this.onHeld(true));
      track.addEventListener("unmute", () => this.onHeld(false));
      await this.#connect(track.getSettings().sampleRate);
    } catch (error) {
      this.#release();
      throw inWords(error);
    }
  }

  /**
   * A context at the device's rate; some browsers refuse a source at another rate than the context's, some do not tell the
   * device's rate, so the second try is the context's own default.
   * @param {number | undefined} deviceRate
   */
  async #connect(deviceRate) {
    const stream = /** @type {MediaStream} */ (this.#stream);
    const tries = deviceRate ? [{ sampleRate: deviceRate }, {}] : [{}];
    let failure;
    for (const options of tries) {
      let context;
      try {
        context = new AudioContext({ ...options, latencyHint: "playback" });
        const source = context.createMediaStreamSource(stream);
        await context.audioWorklet.addModule(new URL("./recorder.worklet.js", import.meta.url));
        this.#tape = new AudioWorkletNode(context, "tape", { numberOfOutputs: 0 });
        this.rate = context.sampleRate;                 // read back: this, not what was asked for, labels the samples
        this.#tape.port.onmessage = ({ data }) => this.#take(data);
        source.connect(this.#tape);
        await context.resume();
        const running = this.#context = context;
        running.addEventListener("statechange", () => {
          if (this.#context === running) this.onHeld(running.state !== "running");
        });
        return;
      } catch (error) {
        failure = error;
        await context?.close();
      }
    }
    throw failure;
  }

  /** @param {{samples: Float32Array, peak: number, rms: number, last: boolean}} block */
  #take({ samples, peak, rms, last }) {
    if (this.keep) this.#blocks.push(samples);
    this.#samples += samples.length;
    if (samples.length) this.onSamples(samples);
    if (last) this.#ended();
    else this.onLevel(peak, rms);
  }

  #ended = () => {};

  /** After the browser held the sound back, ask for it again. */
  async resume() {
    await this.#context?.resume();
  }

  /**
   * Stop and give back what was recorded (nothing, if it was not to be kept): one channel, at `rate`.
   * @returns {Promise<{samples: Float32Array, rate: number}>}
   */
  async stop() {
    if (this.#tape) {
      const tape = this.#tape;
      await new Promise((resolve) => {
        this.#ended = () => resolve(undefined);
        setTimeout(resolve, 500);                       // a context that the system suspended answers no more
        tape.port.postMessage("stop");
      });
    }
    this.#release();
    const samples = new Float32Array(this.keep ? this.#samples : 0);
    let at = 0;
    for (const block of this.#blocks) {
      samples.set(block, at);
      at += block.length;
    }
    this.#blocks = [];
    return { samples, rate: this.rate };
  }

  #release() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#tape?.disconnect();
    void this.#context?.close();
    this.#stream = this.#tape = this.#context = null;
  }
}
