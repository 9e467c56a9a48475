/**
 * Candlewick in a plain Pyodide page. Elsewhere the first lines are shorter, as Pyodide's own servers have NumPy and micropip:
 *
 *     const pyodide = await loadPyodide();
 *     await pyodide.loadPackage("micropip");
 *     await pyodide.runPythonAsync(`
 *         import micropip
 *         await micropip.install("https://YOUR.SITE/build/wheels/candlewick-0.1.0-py3-none-any.whl")`);
 */
import { PYODIDE } from "../../workers/protocol.js";

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const build = new URL("../../build/", import.meta.url);
const print = (/** @type {string} */ line) => at("output").append(`${line}\n`);

async function start() {
  const folder = new URL(`pyodide/${PYODIDE}/`, build).href;
  const { loadPyodide } = await import(`${folder}pyodide.mjs`);
  const wheels = await (await fetch(new URL("wheels/index.json", build))).json();
  const wheel = (/** @type {string} */ name) => new URL(`wheels/${wheels[name]}`, build).href;
  const pyodide = await loadPyodide({ indexURL: folder, stdout: print, stderr: print });
  const folderOfPackages = pyodide.runPython("import sysconfig; sysconfig.get_path('purelib')");
  pyodide.unpackArchive(await (await fetch(wheel("jinja2"))).arrayBuffer(), "zip", { extractDir: folderOfPackages });   // for chats
  await pyodide.loadPackage(wheel("micropip"), { messageCallback: () => {} });
  await pyodide.pyimport("micropip").install([wheel("numpy"), wheel("candlewick")]);
  return pyodide;
}

/** @param {any} pyodide */
async function run(pyodide) {
  at("run").disabled = true;
  at("output").replaceChildren();
  at("status").textContent = "Running";
  await new Promise((resolve) => setTimeout(resolve, 30));   // Python works in this very page: first the button is drawn
  const began = performance.now();
  try {
    const result = await pyodide.runPythonAsync(at("code").value);
    if (result !== undefined) print(String(result));
    at("status").textContent = `Done in ${((performance.now() - began) / 1000).toFixed(1)} s`;
  } catch (/** @type {any} */ error) {
    print(error.message);
    at("status").textContent = "That did not work";
  }
  at("run").disabled = false;
}

try {
  const pyodide = await start();
  at("run").onclick = () => run(pyodide);
  at("code").onkeydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("run").disabled) void run(pyodide);
  };
  at("run").disabled = false;
  at("status").textContent = "Ready";
} catch (/** @type {any} */ error) {
  at("status").textContent = `Python could not be started: ${error.message}`;
}
