"""`candlewick compare --browser`: every kernel and one step of a model against numpy in Chromium, as the pages verify it."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

from candlewick.commands import browser as web
from candlewick.commands.common import Failure, find_checkpoint
from candlewick.options import OptionError

STALL_SECONDS = 1800
"""Longest time without a word of progress: an emulator may take minutes for one instruction."""
ADAPTER = """async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  return adapter ? !(adapter.info.isFallbackAdapter ?? adapter.isFallbackAdapter) : false;
}"""


def compare_in_browser(model: str, names: str, threads: int | None, as_json: bool) -> bool:
    """Prints what was found; True where every row is right."""
    pair = [name.strip() for name in names.split(",") if name.strip()]
    if len(pair) != 2 or pair[0] != "numpy" or pair[1] not in ("wasm", "webgpu"):
        raise OptionError("{executors}: {browser} compares numpy,wasm or numpy,webgpu; got {names!r}", names=names)
    checkpoint = find_checkpoint(model)
    folder = web.root() / "models" / checkpoint.name
    if not folder.is_dir():
        raise OptionError("{model} {name}: the server offers only what is in the checkout's models/; put it there", name=model)
    with tempfile.TemporaryDirectory() as work, web.server() as address:
        found = verified(address, Path(work), checkpoint.name, pair[1], threads)
    report = {"model": checkpoint.name, "executors": pair, "browser": True, "same": found["ok"], **found}
    if as_json:
        print(json.dumps(report))
    else:
        show(report)
    return report["same"]


def verified(address: str, work: Path, model: str, executor: str, threads: int | None) -> dict[str, Any]:
    """The answer to "verify" (workers/protocol.js) of a page in a new Chromium."""
    settings = {"model": f"/models/{model}/", "executor": executor, **({"threads": threads} if threads else {})}
    url = f"{address}/web/bench/verify.html#{urllib.parse.quote(json.dumps(settings))}"
    more: tuple[str, ...] = ()
    if executor == "webgpu":
        with web.chromium(work / "look", web.GPU) as context:
            real = web.evaluate(web.open_page(context, f"{address}/web/none.html"), ADAPTER)
        more = web.GPU if real else web.SOFTWARE_GPU
    with web.chromium(work / "profile", more) as context:
        page = web.open_page(context, url)
        web.wait_for(page, "window.bench")
        return answer(page)


def answer(page: Any) -> dict[str, Any]:
    """Waits as long as there is progress, and tells it where somebody looks."""
    doing, since = "", time.monotonic()
    try:
        while True:
            state = web.evaluate(page, "window.bench.state()")
            if state["error"]:
                raise Failure("\n".join([f"the page failed: {state['error']}", *page.complaints]))
            if state["result"]:
                return state["result"]
            if state["doing"] != doing:
                doing, since = state["doing"], time.monotonic()
                if sys.stderr.isatty():
                    print(f"\r\033[K{doing}", end="", file=sys.stderr, flush=True)
            elif time.monotonic() - since > STALL_SECONDS:
                raise Failure(f"the page has been at {doing!r} for {STALL_SECONDS} s")
            time.sleep(0.3)
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def largest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst row of each part, op and dtype, with the number of checks it stands for."""
    from candlewick.verify import badness

    worst: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        key = (row.get("entry", ""), row["op"], row["dtype"])
        before = worst.get(key)
        checks = row.get("checks", 1) + (before["checks"] if before else 0)
        worst[key] = {**(row if before is None or badness(row) > badness(before) else before), "checks": checks}
    return list(worst.values())


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    rows = largest(report["rows"])
    parts = {row.get("entry", ""): None for row in rows}
    for part in parts:
        table = Table(title=f"{part}: one step of {report['model']}" if part else "every kernel alone", title_justify="left",
                      box=None, header_style="bold", pad_edge=False)
        for column in ("op", "weights", "checks", "abs error", "rel error", "allowed", "worst at", ""):
            table.add_column(column, justify="left" if column in ("op", "weights", "worst at", "") else "right",
                             overflow="fold", no_wrap=column != "worst at")
        for row in (row for row in rows if row.get("entry", "") == part):
            errors = [f"{row[key]:.2g}" if row[key] is not None else "-" for key in ("max_abs_error", "max_rel_error")]
            table.add_row(row["op"], row["dtype"], str(row["checks"]), *errors, f"{row['tolerance']:.2g}", row["shape"],
                          "" if row["ok"] else f"WRONG {row.get('error', '')}".strip(), style="" if row["ok"] else "red")
        console.print(table)
        console.print()
    gpu = report.get("gpu")
    where = f"{report['executors'][1]}{' on ' + gpu['name'] if gpu else ''}"
    if report["same"]:
        console.print(f"{where}: all {report['kernels']} kernels agree with numpy in {report['checks']} checks")
    else:
        console.print(f"{where}: {report['failed']} of {report['kernels']} kernels are wrong", style="red")
