/**
 * Where sound comes from: microphone, file picker, drop, paste, the sample. Each ends as one Source given to `onSource`.
 *
 * @typedef {object} Source
 * @property {string} name shown to the person, as text
 * @property {Blob | null} blob what the player plays; null until it is loaded
 * @property {((signal: AbortSignal) => Promise<Blob>) | null} [load] fetches the blob
 * @property {boolean} [recorded] the microphone took it: it lies nowhere else
 * @property {Promise<FileSystemFileHandle | null>} [handle] opens the file again another day
 */
import { AudioError, wavBlob } from "../lib/audio.js";
import { listenForFiles } from "../lib/drop.js";
import { announce } from "../lib/page.js";
import { Recorder } from "../lib/recorder.js";
import { byId, formatClock } from "../lib/ui.js";
import { Meter } from "./meter.js";
import { isModel } from "./model.js";

const SAMPLE = new URL("../samples/candle.wav", import.meta.url);
/** Endings of sounds and films that browsers may not know a type for. */
const SOUNDS = "wav flac mp3 m4a aac ogg oga opus mka aif aiff caf amr wma".split(" "), FILMS = "webm mp4 m4v mov mkv".split(" ");
const SOUND_NAME = new RegExp(`\\.(${[...SOUNDS, ...FILMS].join("|")})$`, "i");
/** What the browser's picker is asked for. */
const PICK = { id: "sound", multiple: true, types: [{ description: "Sound and films", accept: { "audio/*": SOUNDS.map((end) => `.${end}`), "video/*": FILMS.map((end) => `.${end}`) } }] };
/** A recording shorter than this was a slip of the finger. */
const SHORTEST_SECONDS = 0.25;

/**
 * The connections of a browser to one server are few, and a model that is being downloaded takes them: this may wait long.
 * @param {AbortSignal} signal
 */
async function fetchSample(signal) {
  try {
    const response = await fetch(SAMPLE, { signal });
    if (!response.ok) throw new Error(`the server answered ${response.status} ${response.statusText}`);
    return await response.blob();
  } catch (error) {
    signal.throwIfAborted();
    const why = error instanceof Error ? error.message : String(error);
    throw new AudioError(`The sample could not be fetched: ${why}. Look at your connection, or open a file of your own.`, "sample");
  }
}

export class Input {
  #record = byId("record", HTMLButtonElement);
  #say = byId("mic-say", HTMLParagraphElement);
  #hint = byId("mic-hint", HTMLParagraphElement);
  #level = byId("level", HTMLCanvasElement);
  #file = byId("file", HTMLInputElement);
  #open = byId("open", HTMLButtonElement);
  #sample = byId("sample", HTMLButtonElement);
  /** @type {Recorder | null} */
  #recorder = null;
  /** @type {"idle" | "starting" | "recording" | "ending"} */
  #state = "idle";
  #meter = new Meter(this.#level);
  #told = 0;
  #takes = 0;

  /** @type {(source: Source) => void} */
  onSource = () => {};
  /** A folder was dropped. @type {(files: File[], name: string) => void} */
  onFolder = () => {};
  /** A model's files were dropped. @type {(files: File[]) => void} */
  onModel = () => {};
  /** @type {(error: unknown) => void} */
  onError = () => {};
  /** Something a person should know that is no fault. @type {(words: string) => void} */
  onNotice = () => {};
  /** The microphone is about to run: whatever plays should be quiet. @type {() => void} */
  onRecord = () => {};

  constructor() {
    this.#record.addEventListener("click", () => void this.toggle());
    this.#open.addEventListener("click", () => this.openFile());
    this.#sample.addEventListener("click", () => this.takeSample());
    this.#file.addEventListener("change", () => {
      this.#take([...this.#file.files ?? []]);
      this.#file.value = "";                            // the same file may be chosen again
    });
    listenForFiles({ onFiles: (files, _how, handles) => this.#take(files, handles), onFolder: (files, name) => this.onFolder(files, name) });
    addEventListener("beforeunload", (event) => { if (this.#state === "recording") event.preventDefault(); });
  }

  /** Something else has the microphone. @param {boolean} locked */
  set locked(locked) {
    this.#record.disabled = locked;
    this.#say.textContent = locked ? "Live has the microphone" : "Press to record";
    this.#hint.hidden = locked;
  }

  get recording() {
    return this.#state !== "idle";
  }

  openFile() {
    if (!this.recording) void this.#pick();
  }

  /** The picker whose files can be opened again another day, where the browser has it. */
  async #pick() {
    const { showOpenFilePicker } = /** @type {any} */ (window);
    if (!showOpenFilePicker) return this.#file.click();
    try {
      /** @type {FileSystemFileHandle[]} */
      const handles = await showOpenFilePicker.call(window, PICK);
      this.#take(await Promise.all(handles.map((handle) => handle.getFile())), Promise.resolve(handles));
    } catch (error) {
      const { name } = /** @type {Error} */ (error);
      if (["SecurityError", "NotAllowedError", "TypeError"].includes(name)) this.#file.click();   // not to this page: the older one
      else if (name !== "AbortError") this.onError(error);
    }
  }

  takeSample() {
    if (!this.recording) this.onSource({ name: "Sample", blob: null, load: fetchSample });
  }

  /** @param {File[]} files @param {Promise<Array<FileSystemHandle | null>>} [handles] */
  #take(files, handles = Promise.resolve([])) {
    if (isModel(files.map(({ name }) => name))) return this.onModel(files);
    files.forEach((file, i) => this.onSource({ name: file.name, blob: file,
      handle: handles.then((all) => /** @type {FileSystemFileHandle | null} */ (all[i] ?? null), () => null) }));
  }

  /** The sounds and films among the files of a folder, by name; false if there is none. @param {File[]} files */
  takeSounds(files) {
    const sounds = files.filter((file) => /^(audio|video)\//.test(file.type) || SOUND_NAME.test(file.name));
    this.#take(sounds.sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true })));
    return sounds.length > 0;
  }

  /** Start recording, or stop and hand it over. */
  async toggle() {
    if (this.#record.disabled) return;
    if (this.#state === "idle") await this.#begin();
    else if (this.#state === "starting") this.#recorder?.cancel();
    else if (this.#state === "recording") await this.#end();
  }

  async #begin() {
    this.#set("starting");
    this.onRecord();
    const recorder = this.#recorder = new Recorder();
    recorder.onLevel = (peak) => this.#show(peak);
    recorder.onLost = () => {
      announce("The microphone went away; what was recorded is kept.");
      void this.#end();
    };
    this.#meter.clear();
    this.#told = 0;
    try {
      await recorder.start();
    } catch (error) {
      this.#set("idle");
      if (!recorder.cancelled) this.onError(error);
      return;
    }
    if (recorder.cancelled) {
      await recorder.stop();
      return this.#set("idle");
    }
    this.#set("recording");
    announce("Recording");
  }

  async #end() {
    const recorder = this.#recorder;
    if (!recorder || this.#state !== "recording") return;
    this.#set("ending");
    const { samples, rate } = await recorder.stop();
    this.#recorder = null;
    this.#set("idle");
    if (samples.length < rate * SHORTEST_SECONDS) {
      this.onError(new AudioError("The recording is too short to hold a word. Press Record, speak, then press it again.", "mic_short"));
      return;
    }
    this.#takes++;
    this.onSource({ name: `Recording ${this.#takes}`, blob: wavBlob([samples], rate), recorded: true });
  }

  /** @param {"idle" | "starting" | "recording" | "ending"} state */
  #set(state) {
    this.#state = state;
    const on = state === "recording" || state === "ending";
    this.#record.setAttribute("aria-pressed", String(on));
    this.#record.setAttribute("aria-label", on ? "Stop recording" : state === "starting" ? "Stop asking for the microphone" : "Record");
    this.#level.hidden = !on;
    this.#hint.hidden = on;
    this.#open.disabled = this.#sample.disabled = state !== "idle";
    this.#say.textContent = { idle: "Press to record", starting: "Asking for the microphone", recording: "Recording 0:00", ending: "One moment" }[state];
    this.#hint.textContent = state === "starting" ? "The browser may ask you to allow it. Press again to stop." : "Press again when you are done.";
  }

  /** @param {number} peak of the last 40 ms, 0..1 */
  #show(peak) {
    const recorder = this.#recorder;
    if (this.#state !== "recording" || !recorder) return;
    this.#meter.add(peak);
    const seconds = recorder.seconds;
    if (Math.floor(seconds * 4) === this.#told) return;
    this.#told = Math.floor(seconds * 4);
    this.#say.textContent = `Recording ${formatClock(seconds)}`;
    const silent = seconds > 2.5 && !this.#meter.heard;
    this.#hint.hidden = !silent;
    if (silent) this.#hint.textContent = `Nothing is coming in from ${recorder.device || "the microphone"}. Is it muted?`;
  }
}
