// llama.cpp in WebAssembly. Each function opens it and gives {first, once}: numbers of the start, and one greedy repetition.
// As in our page: prefill goes from the call to the first token, decode from there to the last, and a short other text
// before each repetition leaves nothing of the prompt in the KV cache.
const now = () => performance.now();
const MODEL = `${location.origin}/model.gguf`;

/**
 * @param {string} prompt @param {number} prompt_tokens
 * @param {(prompt: string, count: number, onToken: () => void) => Promise<{text: string, token_ids?: number[]}>} run
 */
async function timed(prompt, prompt_tokens, count, run) {
  const from = now();
  const at = /** @type {number[]} */ ([]);
  const answer = await run(prompt, count, () => at.push(now()));
  const decode_ms = at[at.length - 1] - at[0];
  return {
    first_token_at: at[0], prefill_tok_s: prompt_tokens * 1000 / (at[0] - from), decode_tok_s: (at.length - 1) * 1000 / decode_ms,
    prompt_tokens, tokens: at.length, ...answer,
  };
}

/** The prompt; a visit that only fills caches takes a short one. @param {any} settings */
const promptOf = async ({ prime }) => prime ? 'Once' : (await fetch('/prompt')).text();

/** @param {any} settings @param {number} ready_ms @param {number} prompt_tokens @param {string} prompt @param {any} run */
async function opened({ max_tokens: most, prime }, ready_ms, prompt_tokens, prompt, run) {
  const max_tokens = prime ? 8 : most;
  const { first_token_at } = await timed(prompt, prompt_tokens, max_tokens, run);
  return {
    first: { ready_ms, first_token_ms: first_token_at },
    async once() {
      await run(prompt.startsWith('0') ? '1' : '0', 2, () => {});
      return timed(prompt, prompt_tokens, max_tokens, run);
    },
  };
}

/** wllama 3. @param {any} settings */
export async function wllama3(settings) {
  const { Wllama, LoggerWithoutDebug } = await import('/npm/@wllama/wllama/esm/index.min.js');
  const engine = new Wllama({ default: '/npm/@wllama/wllama/esm/wasm/wllama.wasm' }, { logger: LoggerWithoutDebug, suppressNativeLog: true });
  const prompt = await promptOf(settings);
  await engine.loadModelFromUrl(MODEL, {
    n_ctx: settings.capacity, n_threads: settings.threads, n_gpu_layers: 0, n_parallel: 1, useCache: settings.cache,
  });
  const ready_ms = now();
  let prompt_tokens = 0;
  const run = async (/** @type {string} */ text, /** @type {number} */ count, /** @type {() => void} */ onToken) => {
    let out = '';
    const stream = await engine.createCompletion({
      prompt: text, max_tokens: count, temperature: 0, top_k: 1, ignore_eos: true, cache_prompt: false, stream: true,
    });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.text) { onToken(); out += chunk.choices[0].text; }
      prompt_tokens = chunk.timings?.prompt_n ?? prompt_tokens;
    }
    return { text: out };
  };
  const result = await opened(settings, ready_ms, 1, prompt, run);
  // only the answers tell how many tokens a prompt has; the last one was the prompt's
  const count = prompt_tokens;
  return {
    first: result.first,
    async once() {
      const one = await result.once();
      return { ...one, prefill_tok_s: one.prefill_tok_s * count, prompt_tokens: count };
    },
  };
}

/** wllama 2.4, the last before 3: an older llama.cpp, faster on 4-bit weights. @param {any} settings */
export async function wllama2(settings) {
  const { Wllama, LoggerWithoutDebug } = await import('/npm/wllama2/esm/index.js');
  const folder = '/npm/wllama2/esm';
  const engine = new Wllama({
    'single-thread/wllama.wasm': `${folder}/single-thread/wllama.wasm`, 'multi-thread/wllama.wasm': `${folder}/multi-thread/wllama.wasm`,
  }, { logger: LoggerWithoutDebug, suppressNativeLog: true });
  const prompt = await promptOf(settings);
  await engine.loadModelFromUrl(MODEL, { n_ctx: settings.capacity, n_threads: settings.threads, useCache: settings.cache });
  const ready_ms = now();
  const prompt_tokens = (await engine.tokenize(prompt)).length;
  const run = async (/** @type {string} */ text, /** @type {number} */ count, /** @type {() => void} */ onToken) => {
    const token_ids = /** @type {number[]} */ ([]);
    const out = await engine.createCompletion(text, {
      nPredict: count, useCache: false, sampling: { temp: 0, top_k: 1 },
      onNewToken: (/** @type {number} */ token) => { onToken(); token_ids.push(token); },
    });
    return { text: out, token_ids };
  };
  return opened(settings, ready_ms, prompt_tokens, prompt, run);
}
