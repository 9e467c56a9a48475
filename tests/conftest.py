"""What tests of several kinds share: the running site, the browser, the real weights, and the folder of shared data.

Whatever is not there is said out loud by the skip: `bash tests/run` makes all of it but ../shared.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from setup.fetch import SetupError
from setup.server import Server
from setup.steps import Setup, exclusively, pyodide_folder

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM_FLAGS = [
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
if hasattr(os, "geteuid") and os.geteuid() == 0:
    CHROMIUM_FLAGS.append("--no-sandbox")  # Chromium refuses its sandbox to root
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
# By itself Hypothesis fails an example that takes 0.2 s, and a test that is slow in making its examples. The examples are the
# same on every machine, so that what passes here passes there; `--hypothesis-profile search` draws new ones.
EASY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", EASY, derandomize=True)
settings.register_profile("search", EASY)
settings.load_profile("any machine")
# Cheapest first. The browser must also be last: while Playwright runs, no other event loop can be started in its thread.
ORDER = ("unit", "executors", "models", "bench", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests in the order of ORDER; inside a folder they stay as they are. Browser tests have a second try.

    A browser on a busy machine may miss a limit of time by itself. The summary names each test that needed its second try (R).
    """

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        return ORDER.index(folder) if folder in ORDER else 0

    items.sort(key=place)
    for item in items:
        if place(item) == ORDER.index("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def chromium_path() -> str | None:
    """$CHROMIUM, else a Chromium of the system, else None: Playwright's own."""
    from candlewick.commands.browser import chromium_path as found

    return found()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data beside the checkout."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no shared/ folder beside the checkout")
    return folder


@pytest.fixture(scope="session")
def whisper_tiny() -> Path:
    """The folder of whisper-tiny.en with its weights."""
    folder = ROOT / "models" / "whisper-tiny.en"
    if not (folder / "model.safetensors").exists():
        pytest.skip("no weights in models/whisper-tiny.en: python3 serve.py --setup fetches them")
    return folder


@pytest.fixture(scope="session")
def built() -> None:
    """build/ is complete, and its candlewick wheel is that of the code under test."""
    if not (pyodide_folder(ROOT) / "pyodide.mjs").exists():
        pytest.skip("no build/ folder: python3 serve.py --setup makes it")
    try:
        with exclusively(ROOT / "build" / "setup.lock"):
            Setup(ROOT).candlewick_wheel()
    except SetupError as error:
        pytest.fail(f"the candlewick wheel cannot be built: {error}")


@pytest.fixture(scope="session")
def site(built: None) -> Iterator[str]:
    """Address of the running site, without a slash at its end."""
    server = Server(ROOT, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server.url.rstrip("/")
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Chromium, headless, driven by Playwright (sync API). Make a context of your own: browser.new_context()."""
    playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -r requirements-dev.txt")
    playwright_api.expect.set_options(timeout=60_000)  # no test is about speed, and a busy machine is slow
    with playwright_api.sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)
        except playwright_api.Error as error:
            pytest.skip(f"no Chromium: bash tests/run installs it ({str(error).splitlines()[0]})")
        yield chromium
        chromium.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a first try failed is told even where the second passed."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.line(report.longreprtext)
