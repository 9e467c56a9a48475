/**
 * The whole worker protocol: what the page and the engine worker say to each other. Types, apart from the error class
 * and a version.
 *
 * Every request carries an id and is answered exactly once, by a result or an error; notifications carry the id of the
 * request they belong to. The client has one request at a time in the worker, so an answer can never be taken for another's.
 */

/** The version of Python's runtime, as in setup/sources.json: its files lie in build/pyodide/VERSION/. */
export const PYODIDE = "314.0.4";
/** The version of what takes sound and film files apart: build/lib/mediabunny-VERSION/. */
export const MEDIABUNNY = "1.61.0";

/**
 * @typedef {"cancelled" | "bad_input" | "bad_weights" | "out_of_memory" | "worker_died" | "network" | "storage" | "no_gpu" | "device_lost" |
 *   "gpu_error" | "internal"} ErrorCode
 *   cancelled: stopped by a person; `data.result` may hold what was done so far
 *   bad_input, bad_weights: what was given cannot be used; the message says why
 *   out_of_memory: `data` has `wanted` and `allowed` in bytes
 *   worker_died: the engine is gone; the next request starts a new one
 *   network, storage: a file could not be fetched or kept; the message names the URL
 *   no_gpu: there is no GPU to be had; device_lost: the GPU went away while it was in use, or said nothing for long;
 *   gpu_error: it cannot do what it is to do, as where a kernel does not compile. Loads and requests go on elsewhere then, and
 *   the page only hears why
 *   internal: a fault of ours
 */

/** @typedef {{code: ErrorCode, message: string, data?: any}} ErrorValue */

/**
 * @typedef {object} LoadParams
 * @property {string | null} model URL of a checkpoint folder; null when `files` holds the checkpoint
 * @property {File[]} [files] a person's own files; they are read by ranges and never uploaded
 * @property {"auto" | "wasm" | "webgpu" | "numpy"} [executor]
 * @property {number} [threads] asked for; fewer may be used, and the answer says why
 * @property {number} [capacity] language models: tokens that can be read, prompt and answer together; never more than the file allows
 * @property {"whisper" | "sam" | "llama"} [family] a checkpoint of another is refused, in words that say where it belongs
 * @property {{gpu: string, times: number, failed?: string} | null} [slow] name of a GPU that was found slower than WebAssembly, or
 *   whose trial failed, and why: "auto" passes it by
 * @property {string | null} [mirror] address below which the model's files are fetched, as MIRROR/CHECKPOINT/FILE; what they are is
 *   still said by the manifest beside `model`, and checked
 */

/**
 * @typedef {object} Examined
 * @property {string} family
 * @property {number} bytes of the files
 * @property {number} parameters
 * @property {Record<string, number>} dtypes parameters of each type
 * @property {number} memory bytes that it will take, about
 * @property {number} most bytes that a model may take in this browser
 */

/**
 * @typedef {{kind: "wav", bytes: ArrayBuffer | Blob} | {kind: "media", file: Blob, seconds?: number | null} | {kind: "pcm", channels: Float32Array[], rate: number}} AudioParams
 *   wav: a WAV file, a Blob is read by ranges; media: any file with a sound track (and how long its head
 *   says that it is), decoded by pieces (fails with
 *   `data.whole` where the browser cannot do that: decode it whole and send pcm); pcm: samples, one array a channel, rate in Hz
 */

/**
 * @typedef {object} TranscribeOptions what is left out has the default; what cannot be is refused in words
 * @property {string | null} [language] code such as "de"; null: found out by itself
 * @property {"transcribe" | "translate"} [task] translate: into English
 * @property {boolean} [timestamps] without them a window of 30 s is one segment
 * @property {boolean} [word_timestamps] when each word is said
 * @property {string} [initial_prompt] text that is taken as said before
 * @property {boolean} [carry_initial_prompt] before every window, not only the first
 * @property {string} [hotwords] words to expect, told before every window
 * @property {boolean} [condition_on_previous_text]
 * @property {number[]} [temperatures] tried in this order, from 0 on
 * @property {number} [beam_size] transcripts that are followed at temperature 0, 1 to 16; 1 is greedy
 * @property {number} [patience] a beam search ends when beam_size * patience of them have; 1
 * @property {number} [best_of] samples at a temperature above 0, 1 to 16
 * @property {number | null} [length_penalty] 0 to 1; null: the mean over tokens ranks transcripts
 * @property {"full" | "short"} [context] short: listen to less than 30 s where less is left; quicker, words may differ
 * @property {number | null} [compression_ratio_threshold] 2.4
 * @property {number | null} [logprob_threshold] -1
 * @property {number | null} [no_speech_threshold] 0.6
 * @property {boolean} [suppress_blank]
 * @property {number | null} [max_initial_timestamp] seconds; 1
 * @property {number} [seed]
 */

/**
 * @typedef {{audio: AudioParams, options?: TranscribeOptions, state?: object | null}} TranscribeParams
 *   state: the last one that an earlier run over the same sound told with its
 *   progress. This run then goes on from there, and its result has only the segments that follow
 */

/**
 * @typedef {{rate: number, options?: Record<string, any>, offset?: number}} LiveStartParams sound that is still coming, one channel
 *   at `rate` Hz, in pieces (live_push) until live_end; each is answered by a LiveState when it was heard. Whoever sends the next
 *   piece then, and all that came meanwhile in it, never queues sound. offset: seconds before the first sample, where a session goes
 *   on. Pushing where nothing was started fails with `data` {live: false}: the model was loaded anew meanwhile
 * @typedef {object} LiveState
 * @property {number} seconds the session's clock: offset and the sound pushed so far
 * @property {boolean} speaking
 * @property {string | null} language
 * @property {number} busy_ms what listening took so far
 * @property {number} passes how often sound was heard; tokens and segments are counts too
 * @property {number} tokens
 * @property {number} segments
 * @property {number} held_seconds of sound that the engine keeps
 */

/**
 * @typedef {{width: number, height: number, rgba?: Uint8ClampedArray, embedding?: Float32Array}} ImageParams
 *   pixels (height, width, 4), row by row from the top left, upright and opaque; or in their place the embedding that the
 *   same pixels once had (method "embedding"). Points and boxes are in pixels of this size
 * @typedef {{id: string, image: ImageParams}} SetImageParams id: the page's name of the image; answers belong to it
 */

/**
 * @typedef {object} PredictParams
 * @property {string} id of the image; an error with `data.image` (the id that is set, or null) if it is another
 * @property {number[][]} points [x, y] in pixels of the image, the middle of the top left one at 0, 0
 * @property {number[]} labels one for each point: 1 is on the object, 0 is not
 * @property {number[] | null} box [x0, y0, x1, y1]
 * @property {Float32Array | null} [mask_input] logits (256 * 256) of an earlier answer, to go on from
 */

/**
 * @typedef {object} Prediction
 * @property {string} id
 * @property {Float32Array} masks logits (4, 256, 256): the mask for many prompts, then three candidates, part to whole
 * @property {number[]} iou how well the model thinks each of them fits, 0..1
 * @property {Record<string, number>} timings decode_ms
 */

/**
 * @typedef {{id: string, options?: Record<string, number>}} EverythingParams
 *   points_per_side, pred_iou_thresh, stability_score_thresh, box_nms_thresh, min_mask_region_area
 */

/**
 * @typedef {{role: "system" | "user" | "assistant", content: string}} Message
 *   a conversation that ends with the assistant's message is gone on with inside that message
 */

/**
 * @typedef {object} GenerateOptions the fields of GenerateOptions in models/llama/sampling.py; what is absent has its default
 * @property {number} [max_tokens]
 * @property {number} [temperature] 0 is greedy
 * @property {number} [top_k] 0: all
 * @property {number} [top_p] 1: all
 * @property {number} [min_p] 0: all
 * @property {number} [repeat_penalty] 1: none
 * @property {number} [repeat_last_n] tokens that the penalty looks back at; -1: all
 * @property {number | null} [seed] 0 to 2 ** 53 - 1; null takes a random one
 * @property {string[]} [stop] strings that end the answer and are not shown
 * @property {boolean} [greedy]
 * @property {boolean} [ignore_end]
 */

/**
 * @typedef {{prompt?: string, messages?: Message[], options?: GenerateOptions}} GenerateParams a text to go on with, or a conversation
 *   fails with `data` {prompt_tokens, capacity} if the prompt is longer than what can be read
 */

/** @typedef {[id: number, text: string, logprob: number]} Likely one of the most probable tokens */

/**
 * @typedef {object} Generated
 * @property {string} text
 * @property {number[]} token_ids without the token that ended it
 * @property {number} prompt_tokens
 * @property {number} reused_tokens of the prompt, that were read by an earlier request
 * @property {"end" | "stop" | "length" | "context" | "stopped"} stop_reason the model's end; a stop string; max_tokens; the
 *   capacity; a person (then this is `data.result` of the error)
 * @property {string | null} stop the stop string that was met
 * @property {number} seed
 * @property {{used: number, capacity: number}} context tokens
 * @property {Record<string, number>} timings prefill_ms, first_token_ms (from the request on), decode_ms (first token to
 *   last), total_ms; tokens
 */

/**
 * @typedef {"load" | "transcribe" | "live_start" | "live_push" | "live_end" | "generate" | "set_image" | "predict" | "everything" | "embedding" | "prepare" | "profile" | "verify" | "describe" | "examine" | "unload"} Method
 */

/**
 * @typedef {{id: number, method: "load", params: LoadParams}
 *   | {id: number, method: "transcribe", params: TranscribeParams}
 *   | {id: number, method: "live_start", params: LiveStartParams}
 *   | {id: number, method: "live_push", params: {samples: Float32Array}}
 *   | {id: number, method: "live_end", params: {}}
 *   | {id: number, method: "generate", params: GenerateParams}
 *   | {id: number, method: "set_image", params: SetImageParams}
 *   | {id: number, method: "predict", params: PredictParams}
 *   | {id: number, method: "everything", params: EverythingParams}
 *   | {id: number, method: "embedding", params: {id: string}}
 *   | {id: number, method: "prepare", params: {tokens: number, mask?: boolean}}
 *   | {id: number, method: "profile", params: {entry: string, rounds?: number, position?: number}}
 *   | {id: number, method: "verify", params: {model?: boolean, quick?: boolean, speed?: boolean}}
 *   | {id: number, method: "describe", params: {}}
 *   | {id: number, method: "examine", params: {files: File[]}}
 *   | {id: number, method: "unload", params: {}}} Request
 */

/**
 * @typedef {{method: "start", params: {stop: SharedArrayBuffer | null, lock: string}}
 *   | {method: "cancel", params: {id: number}}} Control
 *   start: the first message to a new worker; word 0 of `stop` is set while the running request is to be cancelled; the
 *   worker holds the Web Lock `lock` for as long as it lives
 */

/** @typedef {{id: number, result: any} | {id: number, error: ErrorValue}} Response */

/**
 * @typedef {{weights: number, state: number, arena: number, total: number, python: number}} Memory
 *   bytes; python is the interpreter's heap, total includes it
 */

/**
 * @typedef {object} Adapter a GPU
 * @property {string} name as the browser tells it, made of these:
 * @property {string} vendor
 * @property {string} architecture
 * @property {string} device
 * @property {string} description
 * @property {boolean} software an emulator on the processor
 * @property {string[]} features of those that kernels can use
 * @property {Record<string, number>} limits by WebGPU's names; subgroupMinSize and subgroupMaxSize are 0 where not told
 */

/**
 * @typedef {{bytes: number, buffers: number, peak: number, lost: string, times: Record<string, {runs: number, gpu_ms: number}> | null}} GpuFacts
 *   bytes and number of all buffers, and the most bytes so far; why the device is gone, or ""; sums over the runs of each
 *   entry since the load, null where the device tells no times
 */

/**
 * @typedef {object} Checked one comparison with the NumPy kernels, or the worst of several
 * @property {string} op
 * @property {string} dtype of the weights that it reads, else of its numbers
 * @property {string} shape sizes of the operands
 * @property {string} [entry] part of the model; absent for kernels that were tried alone
 * @property {number} [checks] how many comparisons it is the worst of
 * @property {number | null} max_abs_error null where there is no number to compare: see `error`
 * @property {number | null} max_rel_error as a share of the largest magnitude that was wanted
 * @property {number} tolerance what max_rel_error may be
 * @property {boolean} ok
 * @property {string} [error]
 * @property {boolean} [lost] the device went away, or did not answer: that says nothing of the kernel
 */

/**
 * @typedef {object} Verified the answer to "verify"; of a request that was stopped, `data.result` of the error
 * @property {Checked[]} rows
 * @property {boolean} ok
 * @property {number} checks
 * @property {number} kernels how many different ones, by op and dtype
 * @property {number} failed how many of them are wrong
 * @property {string} executor
 * @property {Adapter | null} gpu
 * @property {Speed | null} speed what was asked for with `speed`, of a GPU that is right
 */

/**
 * @typedef {{times: number, parts: Record<string, [number, number]>, threads: number}} Speed of a GPU in a short trial: how many times as
 *   fast as WebAssembly on so many threads; milliseconds of both in each part (verify/speed.py)
 */

/**
 * @typedef {object} LoadResult
 * @property {string} model name of the checkpoint
 * @property {string} family
 * @property {string} executor "wasm", "webgpu" or "numpy"
 * @property {string} reason why this executor and this number of threads
 * @property {number} threads in use
 * @property {number} threads_asked
 * @property {boolean} relaxed_simd
 * @property {Adapter & GpuFacts} [gpu] what the webgpu executor runs on
 * @property {Record<string, number>} timings milliseconds: runtime_ms, numpy_ms, import_ms, trace_ms, weights_ms, load_ms
 * @property {Memory} memory
 * @property {string} version changes with the code of the engine and with the browser's
 */

/**
 * @typedef {{id: number, start: number, end: number, text: string, tokens: number[], temperature: number,
 *   avg_logprob: number, compression_ratio: number, no_speech_prob: number, words?: Word[]}} Segment
 *   words: where word_timestamps was asked for
 * @typedef {{word: string, start: number, end: number, probability: number}} Word text with its leading space, seconds
 */

/**
 * @typedef {{text: string, segments: Segment[], language: string, duration: number, no_speech: boolean, stopped?: boolean, note?: string | null,
 *   timings: Record<string, number>}} Transcript
 */

/**
 * @typedef {{id: number, event: "progress", stage: "runtime" | "download" | "memory" | "weights" | "shaders" | "prepare" | "mel" | "transcribe" | "everything" | "verify" | "verify model",
 *     done: number, total: number, unit: "bytes" | "steps" | "seconds", file?: string, levels?: number[], seconds?: number, state?: object, wrong?: string[]}
 *   | {id: number, event: "token", text: string, start: number, token: number | null, logprob: number | null, top: Likely[]}
 *   | {id: number, event: "hypothesis", start: number, stable: string, unstable: string, heard: number}
 *   | {id: number, event: "prefill", done: number, total: number}
 *   | {id: number, event: "segment", segment: Segment, heard?: number}
 *   | {id: number, event: "region", logits: Float32Array, iou: number, stability: number, point: number[]}
 *   | {id: number, event: "restart", state?: object} & Pick<LoadResult, "executor" | "reason" | "threads" | "threads_asked" | "relaxed_simd" | "memory" | "gpu">
 *   | {id: number, event: "log", level: "info" | "warning" | "error", message: string}} Notification
 *   id 0 belongs to no request: start-up of the worker, news of the cache
 *   progress "mel" is the first pass over a long recording, with the levels (0..1, two a second) of what it passed and the seconds in all;
 *   "transcribe" may carry the state to go on from
 *   progress "verify" and "verify model": `file` is the kernel, or the part of the model; wrong: ops that differed so far
 *   progress "memory": total is what will be taken, before anything is read
 *   token: transcribe tells text and start (seconds); generate tells the text that may be shown now, the token's id, its
 *   log-probability and the most probable ones. The last one may have no token: text that was held back until the end
 *   hypothesis: of live sound, what is being said since `start`: stable text only grows, until a segment that begins with it follows
 *   (or an empty hypothesis: it was nothing). heard: seconds of the session up to which the sound was heard for it
 *   prefill: tokens of the prompt that are read
 *   restart: the GPU failed, and the request goes on on this executor: from `state`, the one told last, where it told any (the result
 *   has what came before, too), else it begins anew, and what it has told so far comes again
 */

/**
 * @typedef {{event: "kernel", buffer: ArrayBufferLike | null, stop: number}
 *   | {event: "locked", name: string}
 *   | {event: "alive"}
 *   | {event: "gone"}
 *   | {event: "fatal", message: string}} WorkerNews
 *   kernel: shared kernel memory and the address of its stop word (null: not shared, or gone)
 *   locked: the worker holds its lock; alive: a sign of life during the start
 *   gone: the start failed, as each request is told; fatal: the interpreter is dead. The worker is to be replaced
 */

/** What a failed request rejects with. */
export class EngineError extends Error {
  /**
   * @param {ErrorCode} code
   * @param {string} message what was wanted, what came, what to do
   * @param {any} [data]
   */
  constructor(code, message, data) {
    super(message);
    this.name = "EngineError";
    this.code = code;
    this.data = data ?? null;
  }

  /** @returns {ErrorValue} the form that crosses a worker's border */
  toValue() {
    return { code: this.code, message: this.message, data: this.data };
  }

  /** @param {ErrorValue} value */
  static fromValue(value) {
    return new EngineError(value.code, value.message, value.data);
  }

  /**
   * Any thrown thing as an EngineError; `code` is used for what is not one already.
   * @param {any} error
   * @param {ErrorCode} [code]
   */
  static from(error, code = "internal") {
    if (error instanceof EngineError) return error;
    if (error?.name === "AbortError") return new EngineError("cancelled", "stopped");
    return new EngineError(code, String(error?.message ?? error));
  }
}
