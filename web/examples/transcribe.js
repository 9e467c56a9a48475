import { Engine } from "../../workers/client.js";

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const engine = new Engine();
let running = new AbortController();

/** @param {() => Promise<Blob>} open gives the file */
async function transcribe(open) {
  running.abort();                                       // one at a time: the newer sound is what is wanted
  const { signal } = (running = new AbortController());
  /** Of the one before, something may still come. @param {string} id @param {string} words */
  const show = (id, words) => { if (signal === running.signal) at(id).textContent = words; };
  const onEvent = (/** @type {import("../../workers/protocol.js").Notification} */ event) => {
    if (event.event === "segment") show("text", at("text").textContent + event.segment.text);
    if (event.event === "progress") show("status", `${event.stage}: ${Math.round((100 * event.done) / event.total)} %`);
  };
  show("text", "");
  at("stop").disabled = false;
  try {
    await engine.load({ model: "../../models/whisper-tiny.en/" }, { signal, onEvent });
    const sound = await new OfflineAudioContext(1, 1, 16000).decodeAudioData(await (await open()).arrayBuffer());
    const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
    const audio = { kind: /** @type {const} */ ("pcm"), channels, rate: sound.sampleRate };
    const { text, timings } = await engine.transcribe({ audio, options: { word_timestamps: true } }, { signal, onEvent });
    show("text", text);
    show("status", `Done in ${(timings.total_ms / 1000).toFixed(1)} s`);
  } catch (/** @type {any} */ error) {
    show("status", error.code === "cancelled" ? "Stopped" : `That did not work: ${error.message}`);
  }
  if (signal === running.signal) at("stop").disabled = true;
}

async function sample() {
  const answer = await fetch("../samples/candle.wav");
  if (!answer.ok) throw new Error(`the sample: the server answered ${answer.status}`);
  return answer.blob();
}

at("sample").onclick = () => transcribe(sample);
at("file").onchange = () => {
  const [file] = at("file").files;
  if (file) void transcribe(async () => file);
};
at("stop").onclick = () => running.abort();
at("status").textContent = "Ready";
