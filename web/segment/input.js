/**
 * Where pictures come from: file picker, drop, paste, camera, samples. Each ends as a name and bytes given to `onPicture`.
 */
import { PictureError } from "../lib/picture.js";
import { byId } from "../lib/ui.js";
import { Camera } from "./camera.js";

export class Input {
  #file = byId("file", HTMLInputElement);
  #drop = byId("drop", HTMLDivElement);
  #camera = new Camera();
  #pasted = 0;

  /** @type {(blob: Blob, name: string) => void} */
  onPicture = () => {};
  /** @type {(error: unknown) => void} */
  onError = () => {};
  /** @type {(words: string) => void} */
  announce = () => {};

  constructor() {
    byId("open", HTMLButtonElement).addEventListener("click", () => this.openFile());
    byId("camera", HTMLButtonElement).addEventListener("click", () => void this.#camera.open());
    this.#file.addEventListener("change", () => {
      this.#take(this.#file.files);
      this.#file.value = "";                               // the same file may be chosen again
    });
    for (const button of document.querySelectorAll("button[data-sample]")) {
      button.addEventListener("click", () => void this.takeSample(/** @type {HTMLElement} */ (button).dataset.sample ?? "cat"));
    }
    this.#camera.onPicture = (blob, name) => this.onPicture(blob, name);
    this.#camera.onError = (error) => this.onError(error);
    addEventListener("paste", (event) => {
      const files = event.clipboardData?.files;
      if (!files?.length) return;
      event.preventDefault();
      const [file] = files;
      this.onPicture(file, file.name === "image.png" ? `Pasted ${++this.#pasted}` : file.name);
    });
    this.#listenForDrops();
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

  /** @param {FileList | null | undefined} files */
  #take(files) {
    if (!files?.length) return;
    if (files.length > 1) this.announce(`One picture at a time: taking ${files[0].name}.`);
    this.onPicture(files[0], files[0].name);
  }

  #listenForDrops() {
    let depth = 0;
    const files = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
    const end = () => { depth = 0; this.#drop.hidden = true; };
    addEventListener("dragenter", (event) => {
      if (!files(event)) return;
      event.preventDefault();
      depth++;
      this.#drop.hidden = false;
    });
    addEventListener("dragover", (event) => {
      if (!files(event)) return;
      event.preventDefault();
      if (event.dataTransfer) event.dataTransfer.dropEffect = "copy";
    });
    addEventListener("dragleave", () => { if (--depth <= 0) end(); });
    addEventListener("dragend", end);
    addEventListener("drop", (event) => {
      end();
      if (!event.dataTransfer || !files(event)) return;
      event.preventDefault();
      const item = [...event.dataTransfer.items].find((each) => each.kind === "file");
      if (item?.webkitGetAsEntry?.()?.isDirectory) {
        this.onError(new PictureError("That is a folder. Drop one picture; a model folder goes under “Use another Segment Anything model”."));
      } else {
        this.#take(event.dataTransfer.files);
      }
    });
  }
}
