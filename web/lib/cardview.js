/**
 * What the model cards are made of.
 */
import { storedPanel } from "./stored.js";
import { el } from "./ui.js";
import { Verify } from "./verify.js";

/** Which model, and what it takes. @param {import("./card.js").Kind} kind @param {import("./card.js").Model} first */
export function modelCard({ served, own, family }, first) {
  const button = (/** @type {string} */ id, /** @type {string} */ text, hidden = false) =>
    el("button", { type: "button", class: "button compact", id, text, hidden });
  const list = served.length < 2 ? [] : [el("div", { class: "models", role: "radiogroup", "aria-label": "Models" },
    ...served.map(({ name, model }, i) => el("label", {},
      el("input", { type: "radio", name: "model", id: `model-${i}`, checked: model === first.model }),
      el("span", { text: name }), el("span", { class: "small muted number", id: `model-${i}-facts` }))))];
  const load = button("load", "Load the model", true);
  load.classList.add("primary");
  return el("section", { class: "card", "aria-labelledby": "model-name" },
    el("h2", { id: "model-name", text: first.name }),
    el("p", { class: "small muted", id: "model-note", text: served.find(({ model }) => model === first.model)?.about ?? "" }),
    el("div", { class: "stack" },
      ...list,
      el("dl", { class: "facts", id: "model-facts" }),
      el("div", { class: "meter", id: "load-meter", hidden: true },
        el("progress", { id: "load-bar", max: 1, "aria-label": "Loading the model" }),
        el("p", { class: "spread muted" }, el("span", { id: "load-doing" }), el("span", { id: "load-left" }))),
      el("div", { id: "load-outcome" }),
      el("div", { class: "row" }, load, button("load-stop", "Stop loading", true)),
      el("details", { id: "own" },
        el("summary", { class: "small", text: own.summary }),
        el("div", { class: "stack small" },
          el("p", {}, ...own.about),
          el("div", { class: "row" },
            ...(own.accept ? [button("own-pick", "Choose files")] : []),
            button("own-open", own.accept ? "Choose a folder" : "Choose the folder"),
            button("own-keep", "Keep this model in this browser", true),
            button("own-back", `Back to ${served[0].name}`, true)),
          ...(own.accept ? [el("input", { type: "file", id: "own-file", accept: own.accept, multiple: true, "aria-label": `${family}: files`, hidden: true })] : []),
          el("input", { type: "file", id: "own-files", webkitdirectory: true, multiple: true, "aria-label": "Model folder", hidden: true }),
          el("div", { id: "own-outcome" }))),
      storedPanel()));
}

/** How it runs. */
export function runCard() {
  const options = [["auto", "Automatic"], ["wasm", "WASM SIMD"], ["webgpu", "WebGPU"], ["numpy", "NumPy (slow)"]];
  return el("section", { class: "card stack", "aria-labelledby": "run-title" },
    el("h2", { id: "run-title", text: "How it runs" }),
    el("div", { class: "fields" },
      el("div", { class: "field" }, el("label", { for: "executor", text: "Executor" }),
        el("select", { id: "executor" }, ...options.map(([value, text]) => el("option", { value, text })))),
      el("div", { class: "field" }, el("label", { for: "threads", text: "Threads" }),
        el("select", { id: "threads" }, el("option", { value: "", text: "Automatic" })))),
    el("p", { class: "small", id: "run-why", text: "The model is not loaded yet." }),
    el("dl", { class: "facts", id: "run-facts" }),
    Verify.panel());
}
