"""The Whisper page itself, as a person meets it: when it shows, when the model is ready, when words stand there.

    PYTHONPATH=py python tests/bench/page.py --input CLIP [--starts 5]

Everything is cached by visits before; each start is a new browser process that opens the page and picks CLIP at once.
Milliseconds from the navigation: `shell` first paint with content, `ready` model loaded, `words` first piece of text,
`done` the whole transcript. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.bench_page import SETTLE_SECONDS
from candlewick.commands.common import Failure

WATCH = """
window.seen = {};
const look = () => {
  const state = document.getElementById('chip')?.dataset.state;
  if (state === 'ready' || state === 'busy') seen.ready ??= performance.now();
  if (document.getElementById('lines')?.textContent.trim()) seen.words ??= performance.now();
  if (state === 'busy') seen.busy ??= performance.now();
  if (seen.busy && state !== 'busy') seen.done ??= performance.now();
};
new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
"""


def start(url: str, profile: Path, clip: Path, settle: float = 0) -> dict[str, Any]:
    """One visit -> {"shell", "ready", "words", "done"} in ms, and "text"."""
    with web.chromium(profile) as context:
        context.add_init_script(WATCH)
        page = web.open_page(context, url)
        page.set_input_files("#file", str(clip))
        web.wait_for(page, "window.seen.done")
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        seen = web.evaluate(page, f"({{shell: {paint}, ...window.seen, text: document.getElementById('lines').innerText}})")
        time.sleep(settle)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    if not options.input.is_file():
        sys.exit(f"error: recording {options.input}: no such file; check the path")
    try:
        with tempfile.TemporaryDirectory(prefix="candlewick-page-") as work, web.server() as address:
            url, profile = f"{address}/web/whisper/", Path(work)
            first = start(url, profile, options.input, SETTLE_SECONDS)
            start(url, profile, options.input, SETTLE_SECONDS)
            visits = [start(url, profile, options.input) for _ in range(options.starts)]
    except Failure as failure:
        sys.exit(f"error: {failure}")
    times = {name: [round(visit[name], 1) for visit in visits] for name in ("shell", "ready", "words", "done")}
    print(json.dumps({"median": {name: statistics.median(values) for name, values in times.items()}, "cached": times,
                      "first_visit": first, "load_average": os.getloadavg()[0]}, indent=1))


if __name__ == "__main__":
    main()
