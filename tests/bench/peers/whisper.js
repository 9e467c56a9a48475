// Whisper in other engines. Each function opens one and gives {first, once}: numbers of the start, and one repetition.
const now = () => performance.now();

/** @returns {Promise<Float32Array>} the recording, 16 kHz mono */
async function recording() {
  return new Float32Array(await (await fetch('/recording.f32')).arrayBuffer());
}

/** @param {any} settings transformers.js: the pipeline as its documentation uses it, with its own defaults but for threads and local files. */
export async function transformers(settings) {
  const library = await import('/npm/@huggingface/transformers/dist/transformers.min.js');
  const runtime = `${location.origin}/npm/@huggingface/transformers/node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.asyncify`;
  Object.assign(library.env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: '/onnx/', useBrowserCache: settings.cache });
  library.env.backends.onnx.wasm.numThreads = settings.threads;
  library.env.backends.onnx.wasm.wasmPaths = { mjs: `${runtime}.mjs`, wasm: `${runtime}.wasm` };
  const [audio, pipe] = await Promise.all([
    recording(),
    library.pipeline('automatic-speech-recognition', settings.model, { dtype: 'fp32', device: 'wasm' }),
  ]);
  const ready = now();
  /** @type {Record<string, number[]>} */
  const calls = { model: [], decoder_model_merged: [] };
  for (const [name, list] of Object.entries(calls)) {
    const session = pipe.model.sessions[name];
    const run = session.run.bind(session);
    session.run = async (...given) => {
      const from = now();
      const out = await run(...given);
      list.push(now() - from);
      return out;
    };
  }
  let partial = 0;
  const streamer = new library.TextStreamer(pipe.tokenizer, {
    skip_prompt: true, skip_special_tokens: true,
    callback_function: (/** @type {string} */ text) => { if (text.trim()) partial ||= now(); },
  });
  const answer = await pipe(audio, { streamer });
  const first = { load_ms: ready, ready_ms: ready, first_partial_ms: partial || now(), first_text_ms: now(), text: answer.text };

  /** One transcription -> its parts. The features are made once more, apart, to see their time. */
  async function once() {
    for (const list of Object.values(calls)) list.length = 0;
    const from = now();
    const { text } = await pipe(audio);
    const total_ms = now() - from;
    const steps = calls.decoder_model_merged;
    const decode_ms = steps.reduce((a, b) => a + b, 0);
    const before = now();
    await pipe.processor(audio);
    return {
      total_ms, encode_ms: calls.model[0], decode_ms, tokens: steps.length,
      decode_ms_per_token: decode_ms / steps.length, mel_ms: now() - before, text,
    };
  }
  return { first, once };
}

/** @param {any} settings ONNX Runtime Web alone, its plain WASM build, on the encoder. */
export async function encoder(settings) {
  const ort = await import('onnxruntime-web');
  ort.env.wasm.numThreads = settings.threads;
  const session = await ort.InferenceSession.create(`/onnx/${settings.model}/onnx/encoder_model.onnx`, { executionProviders: ['wasm'] });
  const ready = now();
  const features = Float32Array.from({ length: 80 * 3000 }, (_, i) => Math.sin(i));
  const input_features = new ort.Tensor('float32', features, [1, 80, 3000]);
  async function once() {
    const from = now();
    await session.run({ input_features });
    return { encode_ms: now() - from };
  }
  for (let i = 0; i < 3; i++) await once();
  return { first: { ready_ms: ready }, once };
}
