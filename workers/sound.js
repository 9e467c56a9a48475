/**
 * Sound by pieces: mono samples at the sound's own rate, from any place on, without the whole ever being in memory. Decoded
 * samples are handed over as they are asked for; films and compressed files are taken apart by mediabunny, which reads the
 * file by ranges, and decoded by the browser (WebCodecs).
 *
 * `read(first, n)` gives fewer than n samples only at the end; `frames` is how many there are: before the end was read as far
 * as the file tells, and more than was read; `note` is what a person should know about how it was read, or "".
 */
import { mp3Place } from "./mp3.js";
import { EngineError, MEDIABUNNY } from "./protocol.js";

/** Samples kept behind the place that was read last, in seconds: windows overlap, and going back costs a new start. */
const KEPT_SECONDS = 35;
/** Samples skipped by decoding them, in seconds; further away it is cheaper to start anew. */
const AHEAD_SECONDS = 20;
/** Where two pieces do not meet by more than this, in seconds, there is a gap in the file: it is filled with silence. */
const GAP_SECONDS = 0.1;
/** Longer than this no gap is: its times are wrong. */
const MOST_GAP_SECONDS = 86_400;
/** Samples that fill an MP3's last frame up, at most: 12 bits tell how many, and the decoder's own come behind. */
const MOST_FILLING = 4095 + 1152;

/** A damaged file below this may still be decoded whole, which gets over gaps that stop who takes it apart. */
const WHOLE_BYTES = 60e6;

const whole = (/** @type {string} */ why) =>
  new EngineError("bad_input", `this file cannot be decoded piece by piece: ${why}`, { whole: true });

/** Decoded samples, one array a channel. */
export class PcmSound {
  note = "";

  /** @param {Float32Array[]} channels all of one length @param {number} rate */
  constructor(channels, rate) {
    const lengths = new Set(channels.map((channel) => channel.length));
    if (lengths.size !== 1)
      throw new EngineError(
        "bad_input",
        `audio: wanted one or more channels of equal length, got lengths ${JSON.stringify([...lengths])}`,
      );
    this.channels = channels;
    this.rate = rate;
    this.frames = channels[0].length;
  }

  /** @param {number} first @param {number} n @returns {Promise<Float32Array>} */
  async read(first, n) {
    return mean(this.channels.map((channel) => channel.subarray(first, first + n)));
  }

  close() {}
}

const SILENCE = new Float32Array(1 << 16);

/** So many samples of silence, which take no memory: files cut from a broadcast begin hours late. @param {number} n */
function* silence(n) {
  for (; n > 0; n -= SILENCE.length) yield SILENCE.subarray(0, Math.min(n, SILENCE.length));
}

/** The mean of channels of one length. @param {Float32Array[]} channels */
function mean(channels) {
  const mono = channels[0].slice();
  for (const channel of channels.slice(1)) for (let i = 0; i < mono.length; i++) mono[i] += channel[i];
  if (channels.length > 1) for (let i = 0; i < mono.length; i++) mono[i] /= channels.length;
  return mono;
}

/** A compressed file or a film, decoded as it is heard. */
export class MediaSound {
  note = "";
  rate = 0;
  frames = 0;
  /** Samples that are there: from #start on. @type {Float32Array[]} */
  #pieces = [];
  #start = 0;
  #end = 0;
  /** The furthest sample that was seen. */
  #last = 0;
  /** Nothing comes after #end. */
  #ended = false;
  /** @type {AsyncGenerator<any, void, unknown> | null} */
  #samples = null;

  /** @type {any} */
  sink = null;
  /** Samples that there should be, by the file's head; 0 where it does not tell. */
  #told = 0;
  /** Samples that the decoder gives before those that were meant, and how many were meant by the file's head. */
  #delay = 0;
  #meant = Infinity;
  /** What comes behind those: what filled the last frame up, if nothing more comes. @type {Float32Array[]} */
  #tail = [];
  #small = false;

  /** @param {any} input */
  constructor(input) {
    this.input = input;
  }

  /**
   * @param {Blob} file
   * @param {number | null} [told] seconds that it should have, by its head
   * @returns {Promise<MediaSound>}
   * @throws {EngineError} "bad_input" with data.whole: try to decode it whole; what is wrong then is known better
   */
  static async open(file, told = null) {
    if (typeof AudioDecoder === "undefined") throw whole("this browser has no AudioDecoder");
    const { ALL_FORMATS, AudioSampleSink, BlobSource, Input } = await import(
      new URL(`../build/lib/mediabunny-${MEDIABUNNY}/mediabunny.min.mjs`, import.meta.url).href
    );
    const sound = new MediaSound(new Input({ formats: ALL_FORMATS, source: new BlobSource(file) }));
    try {
      const track = await sound.input.getPrimaryAudioTrack();
      if (!track)
        throw new EngineError("bad_input", "This file has no sound track. Choose another one.", { whole: false });
      if (!(await track.canDecode())) throw whole(`this browser does not decode ${(await track.getCodec()) ?? "its kind of sound"}`);
      sound.sink = new AudioSampleSink(track);
      if ((await sound.input.getFormat()).name === "MP3") ({ delay: sound.#delay, length: sound.#meant } = await mp3Place(file));
      await sound.#begin(0);
      if (sound.#ended) throw whole(sound.note || "there is no sound in it");
      sound.#told = (told ?? 0) * sound.rate;
      const seconds = told ?? (await track.computeDuration().catch(() => 0));   // what is cut short may not tell
      sound.frames = Math.max(Math.round(seconds * sound.rate), sound.frames);
      sound.#small = file.size < WHOLE_BYTES;
      return sound;
    } catch (error) {
      await sound.close();
      throw error instanceof EngineError ? error : whole(/** @type {Error} */ (error).message);
    }
  }

  /** @param {number} first @param {number} n @returns {Promise<Float32Array>} */
  async read(first, n) {
    const far = first > this.#end + AHEAD_SECONDS * this.rate && !this.#ended;
    if (first < this.#start || far) await this.#begin(first);
    while (this.#end < first + n && !this.#ended) await this.#next();
    this.#forget(first - KEPT_SECONDS * this.rate);
    const out = new Float32Array(Math.max(0, Math.min(first + n, this.#end) - first));
    let at = this.#start - first;
    for (const piece of this.#pieces) {
      const from = Math.max(0, -at);
      const to = Math.min(piece.length, out.length - at);
      if (to > from) out.set(piece.subarray(from, to), at + from);
      at += piece.length;
    }
    return out;
  }

  /** Decode from the piece on that holds this sample. @param {number} first */
  async #begin(first) {
    await this.#samples?.return();
    this.#pieces = [];
    this.#tail = [];
    this.#ended = false;
    this.#start = this.#end = 0;
    const seconds = first ? (first + this.#delay) / this.rate : 0;
    this.#samples = this.sink.samples(seconds || undefined);
    await this.#next(first > 0);
    if (this.#start > first) {                            // decoders begin a little late: then there is silence before
      this.#pieces = [...silence(this.#start - first), ...this.#pieces];
      this.#start = first;
    }
  }

  /** Take one more piece. @param {boolean} [placed] the first one after a jump: its time says where it stands */
  async #next(placed = false) {
    let sample;
    try {
      ({ value: sample } = await /** @type {AsyncGenerator<any>} */ (this.#samples).next());
    } catch (error) {
      if (!this.rate) throw error;
      if (this.#small) throw whole(/** @type {Error} */ (error).message);
      this.note = `damaged: what comes after ${clock(this.#end / this.rate)} could not be decoded`;
    }
    if (!sample) {
      this.#ended = true;
      if (placed) this.#start = this.#end = Math.min(this.#last, this.frames);   // there is nothing at that place
      this.frames = this.#last = Math.max(this.#last, this.#end);
      if (this.#told - this.#last > this.rate / 2) {
        if (this.#small) throw whole("it is damaged or cut short");
        this.note = `cut short or damaged: only ${clock(this.#last / this.rate)} of ${clock(this.#told / this.rate)} could be read`;
      }
      return;
    }
    this.rate ||= sample.sampleRate;
    const at = Math.round(sample.timestamp * this.rate) - this.#delay;
    let mono = monoOf(sample);
    sample.close();
    if (at < 0) mono = mono.subarray(-at);                // before the beginning: what an encoder needed to start
    if (at > this.#meant + MOST_FILLING) this.#goOn();
    if (placed) this.#start = this.#end = Math.min(Math.max(at, 0), this.#meant);
    const gap = (at - this.#end - lengthOf(this.#tail)) / this.rate;
    if (gap > GAP_SECONDS && gap < MOST_GAP_SECONDS) for (const piece of silence(at - this.#end)) this.#push(piece);
    const here = Math.max(0, Math.min(mono.length, this.#meant - this.#end));
    this.#push(mono.subarray(0, here));
    if (here < mono.length) this.#tail.push(mono.subarray(here));
    if (lengthOf(this.#tail) > MOST_FILLING) this.#goOn();
    this.frames = Math.max(this.frames, this.#end + this.rate);   // its end was not seen yet
  }

  /** There is more than the file's head tells of, as where files were joined: all of it is sound. */
  #goOn() {
    this.#meant = Infinity;
    for (const piece of this.#tail.splice(0)) this.#push(piece);
  }

  /** @param {Float32Array} piece */
  #push(piece) {
    if (piece.length === 0) return;
    this.#pieces.push(piece);
    this.#end += piece.length;
    this.#last = Math.max(this.#last, this.#end);
  }

  /** Let go of whole pieces that end before this sample. @param {number} before */
  #forget(before) {
    let n = 0;
    while (n < this.#pieces.length - 1 && this.#start + this.#pieces[n].length <= before) this.#start += this.#pieces[n++].length;
    this.#pieces.splice(0, n);
  }

  async close() {
    await this.#samples?.return().catch(() => {});
    this.#samples = null;
    this.#pieces = [];
    this.input.dispose();
  }
}

/** @param {Float32Array[]} pieces */
const lengthOf = (pieces) => pieces.reduce((sum, piece) => sum + piece.length, 0);

/** @param {any} sample a decoded piece of any number of channels */
function monoOf(sample) {
  return mean(Array.from({ length: sample.numberOfChannels }, (_, planeIndex) => {
    const channel = new Float32Array(sample.numberOfFrames);
    sample.copyTo(channel, { planeIndex, format: "f32-planar" });
    return channel;
  }));
}

/** 3671.5 -> 1:01:11 @param {number} seconds */
function clock(seconds) {
  const two = (/** @type {number} */ n) => String(Math.floor(n)).padStart(2, "0");
  return seconds < 3600 ? `${Math.floor(seconds / 60)}:${two(seconds % 60)}` : `${Math.floor(seconds / 3600)}:${two((seconds / 60) % 60)}:${two(seconds % 60)}`;
}
