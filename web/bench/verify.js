// Compares an executor of this browser with NumPy (`candlewick compare --browser`): every kernel, and one step of the model.
import { engine, settingsOf } from './measure.js';

/** @type {import('./measure.js').Settings} */
const own = { model: '../../models/whisper-tiny.en/', executor: 'webgpu' };
const settings = settingsOf(own);
const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** What a driver asks for until `result` or `error` is there. @type {{doing: string, result: any, error: string | null}} */
const state = { doing: 'loading', result: null, error: null };
/** @type {any} */ (window).bench = { state: () => state };

const onEvent = (/** @type {any} */ event) => {
  if (event.event !== 'progress') return;
  state.doing = `${event.stage} ${event.file ?? ''} ${event.done}/${event.total}`;
  byId('status').textContent = state.doing;
};

try {
  const { threads } = settings;
  const model = new URL(String(settings.model), location.href).href;
  const loaded = await engine.load({ model, executor: settings.executor, ...(threads && { threads }) }, { onEvent });
  if (loaded.executor !== settings.executor) throw new Error(`executor ${settings.executor} is not to be had here: ${loaded.reason}`);
  state.result = await engine.request('verify', {}, { onEvent });
  byId('result').textContent = JSON.stringify(state.result, null, 2);
  byId('status').textContent = 'done';
} catch (error) {
  state.error = String(/** @type {Error} */ (error).message);
  byId('status').textContent = state.error;
}
