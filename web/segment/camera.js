/**
 * A picture from the camera: a live view in a dialog, and a still of it.
 */
import { context, PictureError, toBlob } from "../lib/picture.js";
import { byId } from "../lib/ui.js";

export class Camera {
  #box = byId("camera-box", HTMLDialogElement);
  #video = byId("video", HTMLVideoElement);
  /** @type {MediaStream | null} */
  #stream = null;
  #takes = 0;

  /** @type {(blob: Blob, name: string) => void} */
  onPicture = () => {};
  /** @type {(error: unknown) => void} */
  onError = () => {};

  constructor() {
    byId("shoot", HTMLButtonElement).addEventListener("click", () => void this.#shoot());
    byId("camera-close", HTMLButtonElement).addEventListener("click", () => this.#box.close());
    this.#box.addEventListener("close", () => this.#release());
  }

  async open() {
    try {
      if (!isSecureContext) throw new PictureError("Browsers allow the camera only on https and on localhost. Open a file instead.", "No camera");
      if (!navigator.mediaDevices?.getUserMedia) throw new PictureError("This browser offers no camera to pages. Open a file instead.", "No camera");
      this.#box.showModal();
      const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 }, height: { ideal: 1080 } }, audio: false });
      if (!this.#box.open) {                               // closed while the browser asked
        for (const track of stream.getTracks()) track.stop();
        return;
      }
      this.#stream = stream;
      this.#video.srcObject = stream;
      await this.#video.play();
    } catch (error) {
      this.#box.close();
      const { name, message } = /** @type {Error} */ (error);
      const words = /** @type {Record<string, string>} */ ({
        NotAllowedError: "The browser was not allowed to use the camera. Allow it in the address bar, then try again.",
        NotFoundError: "No camera was found. Connect one, or open a file.",
        NotReadableError: "The camera is in use by another program. Close that, then try again.",
      })[name];
      this.onError(error instanceof PictureError ? error : new PictureError(words ?? `The camera could not be opened: ${message}.`, "No camera"));
    }
  }

  async #shoot() {
    const { videoWidth: width, videoHeight: height } = this.#video;
    if (!width || !height) return;                         // no frame yet
    const still = document.createElement("canvas");
    Object.assign(still, { width, height });
    context(still).drawImage(this.#video, 0, 0);
    this.#box.close();
    try {
      this.onPicture(await toBlob(still), `Camera ${++this.#takes}`);
    } catch (error) {
      this.onError(error);
    }
  }

  #release() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = null;
    this.#video.srcObject = null;
  }
}
