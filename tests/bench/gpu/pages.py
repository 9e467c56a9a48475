"""The three real models on WebGPU in Chromium, through the engine that the pages use, and the same on WebAssembly.

    PYTHONPATH=py python tests/bench/gpu/pages.py [whisper] [smollm2] [sam] [--seconds 11] [--tokens 8] [--json]

Without names: all three. Each does what a person does first: the sample (or --sound FILE.wav) is transcribed, a question is
answered with --tokens tokens, a picture is encoded and clicked at. Printed are both answers, how they differ, and the times.
Where there is no GPU, Chromium's emulator takes minutes for each.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.compare_browser import ADAPTER

SAMPLES = Path(__file__).resolve().parents[3] / "web" / "samples"
MODELS = {"whisper": "whisper-tiny.en", "smollm2": "smollm2-135m-instruct", "sam": "mobilesam"}
RUN = """async ({ model, executor, task, sound, picture, tokens }) => {
  const { Engine } = await import("/workers/client.js");
  const engine = new Engine({ startMs: 600_000 });
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  try {
    const loaded = await engine.load({ model: `/models/${model}/`, executor });
    const restarts = [];
    const onEvent = (event) => event.event === "restart" && restarts.push(event.reason);
    const began = performance.now();
    let answer, encode_ms = null;
    if (task === "whisper") {
      const audio = { kind: "wav", bytes: bytes(sound).buffer };
      const { text, segments } = await engine.transcribe({ audio, options: { temperatures: [0] } }, { onEvent });
      answer = { text: text.trim(), numbers: segments.flatMap((segment) => segment.tokens) };
    } else if (task === "smollm2") {
      const messages = [{ role: "user", content: "Name three colours." }];
      const options = { max_tokens: tokens, greedy: true, ignore_end: true };
      const { text, token_ids } = await engine.generate({ messages, options }, { onEvent });
      answer = { text, numbers: token_ids };
    } else {
      const image = await createImageBitmap(new Blob([bytes(picture)]));
      const { width, height } = image;
      const context = new OffscreenCanvas(width, height).getContext("2d");
      context.drawImage(image, 0, 0);
      const rgba = context.getImageData(0, 0, width, height).data;
      await engine.setImage({ id: "a", image: { rgba, width, height } }, { onEvent });
      encode_ms = performance.now() - began;
      const prompt = { id: "a", points: [[width / 2, height / 2]], labels: [1], box: null };
      const { masks, iou } = await engine.predict(prompt, { onEvent });
      answer = { text: `iou ${[...iou].map((x) => x.toFixed(4))}`, numbers: [...masks] };
    }
    const ms = performance.now() - began;
    const { gpu } = await engine.describe();
    const { executor: used, reason, timings } = loaded;
    const { times = null, peak = null } = gpu ?? {};
    return { answer, ms, encode_ms, load_ms: timings.load_ms, executor: used, reason, restarts, times, peak };
  } finally {
    engine.close();
  }
}"""


def clip(path: Path, seconds: float) -> str:
    """The beginning of a WAV file, in base64."""
    out = io.BytesIO()
    with wave.open(str(path)) as whole, wave.open(out, "wb") as part:
        part.setparams(whole.getparams())
        part.writeframes(whole.readframes(int(seconds * whole.getframerate())))
    return base64.b64encode(out.getvalue()).decode()


def compared(task: str, gpu: dict[str, Any], wasm: dict[str, Any]) -> dict[str, Any]:
    """{same, words}: texts must be equal; of masks (4, 256, 256) the sign of next to all numbers."""
    got, want = gpu["answer"]["numbers"], wasm["answer"]["numbers"]
    if task != "sam":
        return {"same": got == want, "words": f"{len(got)} tokens against {len(want)}"}
    differ = sum((a > 0) != (b > 0) for a, b in zip(got, want)) / len(want)
    worst = max(abs(a - b) for a, b in zip(got, want)) / max(map(abs, want))
    return {"same": differ < 1e-3,
            "words": f"{differ:.2%} of the masks' pixels differ, logits by at most {worst:.1e} of the largest"}


def run(task: str, options: argparse.Namespace, work: Path, address: str) -> dict[str, Any]:
    given = {"model": MODELS[task], "task": task, "tokens": options.tokens,
             "sound": clip(options.sound, options.seconds) if task == "whisper" else "",
             "picture": base64.b64encode((SAMPLES / "cat.jpg").read_bytes()).decode() if task == "sam" else ""}
    with web.chromium(work / "look", web.GPU) as context:
        real = web.evaluate(web.open_page(context, f"{address}/web/none.html"), ADAPTER)
    found = {}
    with web.chromium(work / task, web.GPU if real else web.SOFTWARE_GPU) as context:
        page = web.open_page(context, f"{address}/web/none.html")
        for executor in ("wasm", "webgpu"):
            began = time.monotonic()
            found[executor] = web.evaluate(page, RUN, {**given, "executor": executor})
            print(f"{task} on {executor}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    verdict = compared(task, found["webgpu"], found["wasm"])
    for one in found.values():
        if len(one["answer"]["numbers"]) > 1000:
            one["answer"]["numbers"] = []
    return {"task": task, "model": MODELS[task], "real": real, **verdict, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[*MODELS, []], default=[])
    parser.add_argument("--sound", type=Path, default=SAMPLES / "candle.wav", help="a WAV file")
    parser.add_argument("--seconds", type=float, default=11, help="of the sound")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, web.server() as address:
        for task in options.tasks or MODELS:
            report = run(task, options, Path(work), address)
            if options.json:
                print(json.dumps(report), flush=True)
                continue
            print(f"{report['model']}: {'the same' if report['same'] else 'DIFFERENT'} ({report['words']})")
            for executor in ("wasm", "webgpu"):
                one = report[executor]
                encoded = f" (encode {one['encode_ms'] / 1000:.1f} s)" if one["encode_ms"] else ""
                print(f"  {executor} ({one['reason']}): load {one['load_ms'] / 1000:.1f} s, run {one['ms'] / 1000:.1f} s"
                      f"{encoded}")
                print(f"    {one['answer']['text']}")
                for entry, time_of in (one["times"] or {}).items():
                    print(f"    {entry}: {time_of['runs']} runs, {time_of['gpu_ms'] / time_of['runs']:.1f} ms each")
                for reason in one["restarts"]:
                    print(f"    restarted: {reason}")


if __name__ == "__main__":
    main()
