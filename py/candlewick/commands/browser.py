"""Starting what a browser measurement needs: the project's server and headless Chromium with a kept profile."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from candlewick.commands.common import Failure, checkout

ARGUMENTS = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--enable-blink-features=ForceEagerMeasureMemory"]
"""Nothing but the page runs; the last makes `measureUserAgentSpecificMemory` collect garbage and answer by itself."""

GPU = ("--enable-unsafe-webgpu", "--enable-features=Vulkan")
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""Chromium's switches for WebGPU on the machine's GPU, and on an emulator."""

START_SECONDS = 60
PAGE_SECONDS = 300


def root() -> Path:
    """The checkout: pages, workers and server are not in the wheel."""
    if (found := checkout()) is None:
        raise Failure("the browser measurement wants a source checkout with serve.py; this is an installed wheel")
    return found


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The project's own server on a free port, as `serve.py` starts it. -> its address without the last slash."""
    command = [sys.executable, str(root() / "serve.py"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "PYTHONUNBUFFERED": "1"})
    lines: list[str] = []
    found = threading.Event()
    address: list[str] = []

    def read() -> None:  # to the end, so that the server never waits for a full pipe
        for line in process.stdout:
            lines.append(line)
            if not address and (match := re.search(r"http://127\.0\.0\.1:[1-9]\d*", line)):
                address.append(match[0])
                found.set()
        found.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if not found.wait(START_SECONDS) or not address:
            raise Failure(f"serve.py did not start within {START_SECONDS} s: {''.join(lines)[-500:].strip()}")
        yield address[0]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)


def chromium_path() -> str | None:
    """$CHROMIUM, else a Chromium of the system; None lets Playwright take its own."""
    if path := os.environ.get("CHROMIUM"):
        if not Path(path).is_file():
            raise Failure(f"CHROMIUM={path}: no such file; name the browser's program")
        return path
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def chromium(profile: Path, more: tuple[str, ...] = ()) -> Iterator[Any]:
    """A new headless Chromium process with the caches in `profile`. more: arguments. -> Playwright's context."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        raise Failure(f"--browser drives Chromium through Playwright, which is not here: {sys.executable} -m pip install "
                      "playwright; and Chromium from your system's packages, or: python -m playwright install chromium"
                      ) from None

    arguments = [*ARGUMENTS, *more]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium refuses its sandbox to root
    with sync_playwright() as playwright:
        try:
            context = playwright.chromium.launch_persistent_context(
                str(profile), executable_path=chromium_path(), headless=True, args=arguments)
        except Error as error:
            raise Failure("Chromium did not start; install it, or name it in CHROMIUM: "
                          + error.message.strip().splitlines()[0]) from error
        context.set_default_timeout(PAGE_SECONDS * 1000)
        try:
            yield context
        finally:
            context.close()


def open_page(context: Any, url: str) -> Any:
    """The context's page at `url`; what goes wrong in the page is kept in `page.complaints`."""
    page = context.pages[0] if context.pages else context.new_page()
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.goto(url)
    return page


def evaluate(page: Any, script: str, argument: Any = None) -> Any:
    """`page.evaluate`, with the page's own complaints in the error."""
    from playwright.sync_api import Error

    try:
        return page.evaluate(script, argument)
    except Error as error:
        raise Failure("\n".join([f"the page failed: {error.message}", *page.complaints])) from error


def wait_for(page: Any, expression: str) -> None:
    """Until a JavaScript expression is true. Asked from here: the pages' own policy forbids code from strings."""
    end = time.monotonic() + PAGE_SECONDS
    while not evaluate(page, f"!!({expression})"):
        if time.monotonic() > end:
            raise Failure("\n".join([f"the page did not come to {expression} within {PAGE_SECONDS} s", *page.complaints]))
        time.sleep(0.02)


def renderer_bytes(profile: Path) -> int | None:
    """Resident bytes of the largest renderer below the Chromium that uses `profile`; None without /proc."""
    if not Path("/proc/self/status").exists():
        return None
    parents: dict[int, int] = {}
    lines: dict[int, bytes] = {}
    sizes: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
            number = int(entry.name)
            parents[number], lines[number] = int(status["PPid"]), (entry / "cmdline").read_bytes()
            sizes[number] = int(status.get("VmRSS", "0 kB").split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            continue  # it ended while we looked
    roots = {number for number, line in lines.items() if str(profile).encode() in line}

    def below(number: int) -> bool:
        while number and number not in roots:
            number = parents.get(number, 0)
        return number in roots

    return max((sizes[n] for n, line in lines.items() if b"--type=renderer" in line and below(n)), default=None)
