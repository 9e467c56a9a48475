/**
 * Where pictures come from: file picker, drop, paste, camera, samples. Each ends as a name and bytes given to `onPicture`.
 */
import { listenForFiles } from "../lib/drop.js";
import { announce } from "../lib/page.js";
import { PictureError } from "../lib/picture.js";
import { byId } from "../lib/ui.js";
import { Camera } from "./camera.js";
import { isModelFile } from "./model.js";

export class Input {
  #file = byId("file", HTMLInputElement);
  #camera = new Camera();
  #pasted = 0;

  /** @type {(blob: Blob, name: string) => void} */
  onPicture = () => {};
  /** A folder was dropped, or a model's files. @type {(files: File[], folder: string) => void} */
  onModel = () => {};
  /** @type {(error: unknown) => void} */
  onError = () => {};

  constructor() {
    byId("open", HTMLButtonElement).addEventListener("click", () => this.openFile());
    byId("camera", HTMLButtonElement).addEventListener("click", () => void this.#camera.open());
    this.#file.addEventListener("change", () => {
      this.#take([...this.#file.files ?? []]);
      this.#file.value = "";                               // the same file may be chosen again
    });
    for (const button of document.querySelectorAll("button[data-sample]")) {
      button.addEventListener("click", () => void this.takeSample(/** @type {HTMLElement} */ (button).dataset.sample ?? "cat"));
    }
    this.#camera.onPicture = (blob, name) => this.onPicture(blob, name);
    this.#camera.onError = (error) => this.onError(error);
    listenForFiles({ onFiles: (files, how) => {
      if (files.some(({ name }) => isModelFile(name))) this.onModel(files, "");
      else this.#take(files, how);
    }, onFolder: (files, name) => this.onModel(files, name) });
  }

  openFile() {
    this.#file.click();
  }

  /** @param {string} name */
  async takeSample(name) {
    try {
      const response = await fetch(new URL(`../samples/${name}.jpg`, import.meta.url));
      if (!response.ok) throw new Error(`the server answered ${response.status} ${response.statusText}`);
      this.onPicture(await response.blob(), `Sample ${name}`);
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.onError(new PictureError(`The sample could not be fetched: ${why}. Look at your connection, or open a picture of your own.`, "No sample"));
    }
  }

  /** @param {File[]} files @param {"drop" | "paste" | "picker"} [how] */
  #take(files, how = "picker") {
    if (!files.length) return;
    const [file] = files;
    if (files.length > 1) announce(`One picture at a time: taking ${file.name}.`);
    this.onPicture(file, how === "paste" && file.name === "image.png" ? `Pasted ${++this.#pasted}` : file.name);
  }
}
