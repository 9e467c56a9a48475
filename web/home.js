/**
 * The landing page: what this device can do, each with the reason where something is missing.
 */
import { device, graphics } from "./lib/device.js";
import { byId, el, formatBytes, sentence } from "./lib/ui.js";
import { keepOffline } from "./lib/offline.js";

/**
 * @param {"yes" | "partly" | "no"} ok
 * @param {string} name
 * @param {string} why
 */
function line(ok, name, why) {
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  icon.setAttribute("viewBox", "0 0 20 20");
  icon.setAttribute("role", "img");
  icon.setAttribute("aria-label", { yes: "Yes:", partly: "Partly:", no: "No:" }[ok]);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", { yes: "M4 10.500l4 4 8-9", partly: "M5 10h10", no: "M5.500 5.500l9 9M14.500 5.500l-9 9" }[ok]);
  for (const [key, value] of [["fill", "none"], ["stroke", "currentColor"], ["stroke-width", "2.200"], ["stroke-linecap", "round"], ["stroke-linejoin", "round"]]) {
    path.setAttribute(key, value);
  }
  icon.append(path);
  return el("li", { "data-ok": ok }, icon, el("span", { class: "name", text: name }), el("span", { class: "why", text: why }));
}

async function show() {
  const facts = device();
  const gpu = await graphics();
  const estimate = await navigator.storage?.estimate?.().catch(() => null);
  const room = estimate?.quota ? `Up to ${formatBytes(estimate.quota - (estimate.usage ?? 0))} may be kept here for the next visit.` : "";
  const memory = facts.memoryGB ? `The browser reports ${facts.memoryGB} GB${facts.memoryGB >= 8 ? " or more" : ""}.` : "This browser does not say how much there is.";
  byId("device", HTMLUListElement).replaceChildren(
    facts.simd
      ? line("yes", facts.relaxed ? "Relaxed SIMD" : "SIMD",
        facts.relaxed ? "The fastest kernels run here." : "Fast kernels run here; a browser with relaxed SIMD would be faster still.")
      : line("no", "SIMD", "This browser has no WebAssembly SIMD: models run on NumPy, slowly. A current browser helps."),
    facts.noThreads
      ? line("no", "One thread", `${sentence(facts.noThreads)} Everything works, but slower.`)
      : line("yes", facts.cores > 1 ? `${facts.cores} processor cores` : "One processor core", "The page is isolated, so threads may share memory."),
    line(gpu.available ? (gpu.software ? "partly" : "yes") : "no", "WebGPU", `${sentence(gpu.words)} ${gpu.available && !gpu.software ? "The models run on it." : "The models run on the processor instead."}`),
    line(facts.memoryGB && facts.memoryGB < 2 ? "partly" : "yes", "Memory", memory),
    line(facts.microphone ? "yes" : "no", "Microphone", facts.microphone ? "The browser asks you before a page may listen."
      : facts.secure ? "This browser offers no microphone to pages." : "Browsers allow it only on https and on localhost. Files work."),
    line(facts.storage ? "yes" : "partly", "Storage", facts.storage ? room || "Models can be kept for the next visit." : "Models cannot be kept here: each visit fetches them again."),
  );
}

void show();
void keepOffline(byId("offline-note", HTMLParagraphElement));
