"""Weights that no file holds as they are: a source made in Python, read chunk by chunk into kernel memory, in Chromium."""

from __future__ import annotations

import json

import pytest

from tests.browser.engine_site import ROOT, open_page, serving

MINIATURE = ROOT / "models" / "test-sam"

BODY = """
  const { boot } = await import("ORIGIN/workers/boot.js");
  const { KernelHost } = await import("ORIGIN/workers/wasm.js");
  const { py } = await boot(null, () => {});
  const host = await KernelHost.create(2);
  py.globals.set("js_host", host);
  for (const name of ["config.json", "model.safetensors"]) {
    const answer = await fetch(`ORIGIN/models/test-sam/${name}`);
    py.FS.writeFile(`/tmp/${name}`, new Uint8Array(await answer.arrayBuffer()));
  }
  return await py.runPythonAsync(CODE);
"""
CODE = """
import json
import numpy as np
from candlewick import executors
from candlewick.executors.wasm.host_browser import Host
from candlewick.models.sam import Segmenter
from candlewick.weights.load import Checkpoint
from candlewick.weights.source import FileSource, WeightsError

class Made:
    '''A file behind a source that has no JavaScript side, and notes the reads of its data.'''
    def __init__(self, path):
        self.file, self.reads = FileSource(path), []
        self.name, self.size = self.file.name, self.file.size
    async def read(self, start, end):
        self.reads.append(end - start)
        if self.fails and len(self.reads) > 3:
            raise WeightsError("the made source is spent")
        return await self.file.read(start, end)
    fails = False

async def embedding(executor, checkpoint):
    segmenter = await Segmenter.load(checkpoint, executor)
    rgb = (np.arange(40 * 60 * 3) % 251).astype(np.uint8).reshape(40, 60, 3)
    await segmenter.set_image(rgb)
    return await segmenter.embedding()

def files():
    return {name: Made(f"/tmp/{name}") for name in ("config.json", "model.safetensors")}

own = files()
wasm = executors.create("wasm", Host(js_host))
seen = await embedding(wasm, Checkpoint(own))
await wasm.close()
told = await embedding(executors.create("numpy"), Checkpoint(files()))
bad = files()
bad["model.safetensors"].fails = True
try:
    await embedding(executors.create("wasm", Host(js_host)), Checkpoint(bad))
    words = "nothing was raised"
except WeightsError as error:
    words = str(error)
json.dumps({"difference": float(np.abs(seen - told).max()), "largest": float(np.abs(told).max()),
            "reads": own["model.safetensors"].reads, "words": words})
"""


@pytest.mark.skipif(not (MINIATURE / "model.safetensors").is_file(), reason="models/test-sam is missing")
def test_weights_from_a_source_that_python_made(browser, built):
    with serving() as ours:
        context = browser.new_context()
        page = open_page(context, ours)
        outcome = page.evaluate("(body) => inWorker(body)", BODY.replace("CODE", json.dumps(CODE)))
        context.close()
    assert "result" in outcome, outcome
    got = json.loads(outcome["result"])
    assert got["difference"] < 1e-4 * max(1, got["largest"]) and got["largest"] > 0
    assert len(got["reads"]) > 100, "each tensor is read on its own"
    assert got["words"] == "the made source is spent", "what a source raises comes back as it was"
