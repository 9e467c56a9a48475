/**
 * Files that are dropped anywhere on the page or pasted into it; the overlay #drop shows that the page would take them.
 */
import { byId } from "./ui.js";

/**
 * @param {object} to
 * @param {(files: File[], how: "drop" | "paste", handles: Promise<Array<FileSystemHandle | null>>) => void} to.onFiles one or
 *   more files, and where the browser gives them the handles to open them again another day
 * @param {(files: File[], name: string) => void} to.onFolder a folder: the files that lie in it, without those of its folders
 */
export function listenForFiles({ onFiles, onFolder }) {
  const overlay = byId("drop", HTMLDivElement);
  let depth = 0;
  const holdsFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
  const end = () => { depth = 0; overlay.hidden = true; };
  addEventListener("dragenter", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    depth++;
    overlay.hidden = false;
  });
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    if (event.dataTransfer) event.dataTransfer.dropEffect = "copy";
  });
  addEventListener("dragleave", () => { if (--depth <= 0) end(); });
  addEventListener("dragend", end);
  addEventListener("drop", (event) => {
    end();
    if (!event.dataTransfer || !holdsFiles(event)) return;
    event.preventDefault();
    const item = [...event.dataTransfer.items].find((each) => each.kind === "file");
    const entry = item?.webkitGetAsEntry?.();
    if (entry?.isDirectory) {
      const folder = /** @type {FileSystemDirectoryEntry} */ (entry);
      void filesOf(folder).then((files) => onFolder(files, folder.name), () => onFolder([], folder.name));
    } else if (event.dataTransfer.files.length) {
      const handles = [...event.dataTransfer.items].filter((each) => each.kind === "file").map(handleOf);
      onFiles([...event.dataTransfer.files], "drop", Promise.all(handles));
    }
  });
  addEventListener("paste", (event) => {
    const files = event.clipboardData?.files;
    if (!files?.length) return;
    event.preventDefault();
    onFiles([...files], "paste", Promise.resolve([]));
  });
}

/** Must be called while the drop is told. @param {DataTransferItem} item @returns {Promise<FileSystemHandle | null>} */
function handleOf(item) {
  const { getAsFileSystemHandle } = /** @type {any} */ (item);   // not in every browser
  return getAsFileSystemHandle ? getAsFileSystemHandle.call(item).catch(() => null) : Promise.resolve(null);
}

/** @param {FileSystemDirectoryEntry} folder @returns {Promise<File[]>} */
async function filesOf(folder) {
  const reader = folder.createReader();
  /** @type {File[]} */
  const files = [];
  for (;;) {                                            // a reader gives its entries in lots, and none at the end
    const entries = await new Promise((/** @type {(entries: FileSystemEntry[]) => void} */ resolve, reject) => reader.readEntries(resolve, reject));
    if (entries.length === 0) return files;
    for (const entry of entries) {
      if (entry.isFile) files.push(await new Promise((resolve, reject) => /** @type {FileSystemFileEntry} */ (entry).file(resolve, reject)));
    }
  }
}
