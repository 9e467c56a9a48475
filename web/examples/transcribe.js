import { Engine } from "../../workers/client.js";

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const engine = new Engine();
let running = new AbortController();

/** @param {Blob} file */
async function transcribe(file) {
  running.abort();                                       // one at a time: the newer sound is what is wanted
  const { signal } = (running = new AbortController());
  at("text").textContent = "";
  at("stop").disabled = false;
  try {
    await engine.load({ model: "../../models/whisper-tiny.en/" }, { signal, onEvent: tell });
    const sound = await new OfflineAudioContext(1, 1, 16000).decodeAudioData(await file.arrayBuffer());
    const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
    const audio = { kind: /** @type {const} */ ("pcm"), channels, rate: sound.sampleRate };
    const { text, timings } = await engine.transcribe({ audio, options: { word_timestamps: true } }, { signal, onEvent: tell });
    at("text").textContent = text;
    at("status").textContent = `Done in ${(timings.total_ms / 1000).toFixed(1)} s`;
  } catch (/** @type {any} */ error) {
    at("status").textContent = error.code === "cancelled" ? "Stopped" : `That did not work: ${error.message}`;
  } finally {
    at("stop").disabled = signal === running.signal;
  }
}

/** @param {import("../../workers/protocol.js").Notification} event */
function tell(event) {
  if (event.event === "segment") at("text").textContent += event.segment.text;
  if (event.event === "progress") at("status").textContent = `${event.stage}: ${Math.round((100 * event.done) / event.total)} %`;
}

at("sample").onclick = async () => transcribe(await (await fetch("../samples/candle.wav")).blob());
at("file").onchange = () => transcribe(at("file").files[0]);
at("stop").onclick = () => running.abort();
at("status").textContent = "Ready";
