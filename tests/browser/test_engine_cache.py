"""Downloads and what is kept of them: nothing unfinished or wrong is ever taken for a file (BR-51, BR-52, BR-53)."""

from __future__ import annotations

import json
import threading

import pytest

from tests.browser.engine_site import (
    MINIATURE,
    ROOT,
    answer_with,
    cut_off,
    needs_miniature,
    noise_wav,
    not_found,
    open_page,
    serving,
)

pytestmark = needs_miniature

FOLDER = ROOT / "models" / MINIATURE
WEIGHTS = f"/models/{MINIATURE}/model.safetensors"
LOAD = """async ([model, params]) => {
  window.engine ??= new Engine({ onEvent });
  return outcome(engine.load({ model: `/models/${model}/`, ...params }, { onEvent }));
}"""
TRANSCRIBE = "async () => outcome(engine.transcribe({ audio: { kind: 'wav', bytes: sound } }))"
STORED = """
  const root = await navigator.storage.getDirectory();
  const folder = await root.getDirectoryHandle("candlewick", { create: true });
"""


@pytest.fixture(scope="module")
def profile(browser, built):
    """A context whose interpreter snapshot is made, so that starts are short."""
    context = browser.new_context()
    with serving() as ours:
        page = open_page(context, ours)
        page.evaluate("async () => { window.engine = new Engine({ onEvent }); await engine.describe(); }")
        page.evaluate("() => until(async () => (await engine.describe()).cache.snapshot !== 'unavailable')")
        page.close()
        yield context, ours
    context.close()


@pytest.fixture
def page(profile):
    """A page without any stored checkpoint."""
    context, ours = profile
    ours.faults.clear()
    page = open_page(context, ours, noise_wav(1.0))
    forget(page)
    ours.asked.clear()
    page.site = ours
    yield page
    page.close()
    ours.faults.clear()


def stored(page):
    """name -> bytes of everything in the store."""
    return page.evaluate(f"""async () => {{
      {STORED}
      const sizes = {{}};
      for await (const [name, handle] of folder) sizes[name] = (await handle.getFile()).size;
      return sizes;
    }}""")


def forget(page):
    page.evaluate(f"""async () => {{
      {STORED}
      const remove = async (name) => {{
        await folder.removeEntry(name).catch((error) => {{ if (error.name !== "NotFoundError") throw error; }});
        return true;
      }};
      for await (const name of folder.keys()) {{
        // the worker of a page that was closed just now may hold it open still
        if (!name.startsWith("python~")) await until(() => remove(name).catch(() => false));
      }}
    }}""")


def load(page, **params):
    outcome = page.evaluate(LOAD, [MINIATURE, params])
    assert "result" in outcome, outcome
    return outcome["result"]


def refused(page):
    outcome = page.evaluate(LOAD, [MINIATURE, {}])
    assert "error" in outcome, outcome
    return outcome["error"]


def asked(page, path):
    return [range_ for got, range_ in page.site.asked if got == path]


def manifest_size(name="model.safetensors"):
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    return next(file["bytes"] for file in manifest["files"] if file["path"] == name)


def test_second_load_fetches_no_weights(page):
    load(page)
    assert len(asked(page, WEIGHTS)) == 1
    sizes = stored(page)
    assert manifest_size() in sizes.values() and not [name for name in sizes if name.endswith(".part")]
    load(page)
    assert len(asked(page, WEIGHTS)) == 1


def test_connection_that_drops_is_resumed(page):
    half = manifest_size() // 2
    seen = threading.Event()
    page.site.faults[WEIGHTS] = cut_off(half, FOLDER / "model.safetensors", seen)
    page.evaluate("""async ([model, half]) => {
      window.engine = new Engine({ onEvent });
      await engine.describe();
      window.loading = outcome(engine.load({ model: `/models/${model}/` }, { onEvent }));
      await until(() => events.some(({ file, done }) => file === "model.safetensors" && done >= half));
    }""", [MINIATURE, half])
    seen.set()
    assert "result" in page.evaluate("() => loading")
    ranges = asked(page, WEIGHTS)
    assert ranges[0] is None and ranges[1] == f"bytes={half}-", ranges
    assert "result" in page.evaluate(TRANSCRIBE)


def test_interrupted_download_is_resumed_at_the_next_visit(page):
    """BR-51: what came of an interrupted download is not taken for the file; the next visit goes on from there."""
    half = manifest_size() // 2
    stopped = threading.Event()
    page.site.faults[WEIGHTS] = cut_off(half, FOLDER / "model.safetensors", stopped)
    page.evaluate("""(model) => {
      window.engine = new Engine();
      const control = new AbortController();
      window.gone = outcome(engine.load({ model: `/models/${model}/` }, { signal: control.signal,
        onEvent: (event) => { if (event.file === "model.safetensors") control.abort(); } }));
    }""", MINIATURE)
    assert page.evaluate("() => gone")["error"]["code"] == "cancelled"
    stopped.set()
    page.evaluate("() => engine.close()")
    sizes = stored(page)
    (kept,) = [size for name, size in sizes.items() if "safetensors" in name and name.endswith(".part")]
    assert 0 < kept <= half
    assert not [name for name in sizes if "safetensors" in name and not name.endswith(".part")]
    page.site.asked.clear()
    page.evaluate("() => { window.engine = new Engine({ onEvent }); }")
    load(page)
    assert asked(page, WEIGHTS) == [f"bytes={kept}-"]


def test_part_of_another_version_heals_itself(page):
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    entry = next(file for file in manifest["files"] if file["path"] == "model.safetensors")
    key = f"{MINIATURE}~model.safetensors~{entry['sha256'][:16]}"
    page.evaluate(f"""async (key) => {{
      {STORED}
      const file = await folder.getFileHandle(`${{key}}.part`, {{ create: true }});
      const writer = await file.createWritable();
      await writer.write(new Uint8Array(1000).fill(7));
      await writer.close();
    }}""", key)
    load(page)
    assert asked(page, WEIGHTS) == ["bytes=1000-", None], "resumed, found wrong, fetched from the start"


def test_truncated_entry_heals_itself(page):
    load(page)
    page.evaluate("() => engine.close()")
    page.evaluate(f"""async () => {{
      {STORED}
      for await (const [name, file] of folder) {{
        if (!name.includes("safetensors")) continue;
        const writer = await file.createWritable({{ keepExistingData: true }});
        await writer.truncate(100);
        await writer.close();
      }}
    }}""")
    page.evaluate("() => { window.engine = new Engine({ onEvent }); }")
    load(page)
    assert asked(page, WEIGHTS) == [None, None]
    assert "result" in page.evaluate(TRANSCRIBE)


def test_damaged_entry_of_the_right_size_heals_itself(page):
    load(page)
    page.evaluate("() => engine.close()")
    page.evaluate(f"""async () => {{
      {STORED}
      for await (const [name, file] of folder) {{
        if (!name.includes("safetensors")) continue;
        const writer = await file.createWritable({{ keepExistingData: true }});
        await writer.write({{ type: "write", position: 8, data: new Uint8Array(64).fill(65) }});
        await writer.close();
      }}
    }}""")
    page.evaluate("() => { window.engine = new Engine({ onEvent }); }")
    load(page)
    assert asked(page, WEIGHTS) == [None, None]
    assert page.evaluate("() => events.some((event) => event.event === 'log' && event.message.includes('damaged'))")


def test_missing_weights_are_told_with_the_address(page):
    page.site.faults[WEIGHTS] = not_found
    error = refused(page)
    assert error["code"] == "network" and WEIGHTS in error["message"] and "404" in error["message"]
    assert not [name for name in stored(page) if "safetensors" in name and not name.endswith(".part")]
    page.site.faults.clear()
    load(page)


@pytest.mark.parametrize("padded", [False, True], ids=["short", "of the right size"])
def test_web_page_in_place_of_weights_is_not_kept(page, padded):
    """BR-52: a server that answers everything with its index page and 200."""
    body = b"<!doctype html><title>Home</title>"
    page.site.faults[WEIGHTS] = answer_with(body.ljust(manifest_size()) if padded else body, "text/html")
    error = refused(page)
    assert error["code"] == "network" and WEIGHTS in error["message"] and "web page" in error["message"]
    assert not [name for name, size in stored(page).items() if "safetensors" in name and size]
    page.site.faults.clear()
    load(page)


def test_other_bytes_of_the_right_size_are_refused_by_their_hash(page):
    data = bytearray((FOLDER / "model.safetensors").read_bytes())
    data[-1] ^= 1
    page.site.faults[WEIGHTS] = answer_with(bytes(data), "application/octet-stream")
    error = refused(page)
    assert error["code"] == "network" and "sha256" in error["message"]
    assert not [name for name, size in stored(page).items() if "safetensors" in name]


def test_wrong_address(page):
    outcome = page.evaluate(LOAD, ["no-such-model", {}])
    assert outcome["error"]["code"] == "network" and "no-such-model" in outcome["error"]["message"]
    page.site.faults[f"/models/{MINIATURE}/manifest.json"] = answer_with(b"<html>hello</html>", "text/html")
    error = refused(page)
    assert error["code"] == "network" and "web page" in error["message"]


def test_folder_without_a_manifest(page, tmp_path):
    """As a person may put it there: the usual names are tried."""
    page.site.faults[f"/models/{MINIATURE}/manifest.json"] = not_found
    assert load(page)["family"] == "whisper"
    assert not [name for name in stored(page) if not name.startswith("python~")], "nothing vouches for them: not kept"


def test_full_storage_goes_on_in_memory(profile):
    """BR-53: the load succeeds, the partial file is removed, used and allowed are told; the next visit works."""
    context, ours = profile
    page = open_page(context, ours, noise_wav(1.0))
    forget(page)
    cdp = context.new_cdp_session(page)
    used = page.evaluate("async () => (await navigator.storage.estimate()).usage")
    cdp.send("Storage.overrideQuotaForOrigin", {"origin": ours.address, "quotaSize": used + manifest_size() // 2})
    try:
        load(page)
        assert "result" in page.evaluate(TRANSCRIBE)
        notes = [event["message"] for event in page.evaluate("events") if event["event"] == "log"]
        assert any("storage is full" in note and "MB of" in note for note in notes), notes
        page.evaluate("() => engine.close()")
        assert not [name for name in stored(page) if "safetensors" in name]
    finally:
        cdp.send("Storage.overrideQuotaForOrigin", {"origin": ours.address})
    page.evaluate("() => { window.engine = new Engine({ onEvent }); }")
    load(page)
    assert [name for name in stored(page) if "safetensors" in name]
    page.close()


def test_damaged_snapshot_heals_itself(browser, built):
    context = browser.new_context()
    with serving() as ours:
        # the snapshot is bound to the wheels: another set-up that builds ours anew meanwhile must not be seen here
        wheels = ROOT / "build" / "wheels"
        index = (wheels / "index.json").read_bytes()
        ours.faults["/build/wheels/index.json"] = answer_with(index, "application/json")
        own = json.loads(index)["candlewick"]
        ours.faults[f"/build/wheels/{own}"] = answer_with((wheels / own).read_bytes(), "application/zip")
        page = open_page(context, ours)
        page.on("console", lambda message: print(message.text))
        start = "async () => { window.engine = new Engine({ onEvent }); return (await engine.describe()).cache.snapshot; }"
        made = "() => until(async () => (await engine.describe()).cache.snapshot === 'stored')"
        page.evaluate(start)
        page.evaluate(made)
        page.evaluate("() => engine.close()")
        assert page.evaluate(start) == "used"
        page.evaluate("() => engine.close()")
        page.evaluate(f"""async () => {{
          {STORED}
          for await (const [name, file] of folder) {{
            const writer = await file.createWritable({{ keepExistingData: true }});
            await writer.write({{ type: "write", position: 30_000_000, data: new Uint8Array(1000).fill(255) }});
            await writer.close();
          }}
        }}""")
        assert page.evaluate(start) != "used"
        page.evaluate(made)
        page.evaluate("() => engine.close()")
        assert page.evaluate(start) == "used"
    context.close()


def test_two_tabs_start_at_the_same_time(browser, built):
    """At the first visit both want to write the snapshot, at the second both read it: all work, and one snapshot stays."""
    context = browser.new_context()
    with serving() as ours:
        for _ in range(2):
            tabs = [open_page(context, ours, noise_wav(1.0)) for _ in range(2)]
            for tab in tabs:
                tab.evaluate("""(model) => {
                  window.engine = new Engine({ onEvent });
                  window.both = outcome(engine.load({ model: `/models/${model}/` }));
                }""", MINIATURE)
            for tab in tabs:
                assert "result" in tab.evaluate("() => both")
                assert "result" in tab.evaluate(TRANSCRIBE)
            tabs[0].evaluate(f"""() => until(async () => {{
              {STORED}
              const names = [];
              for await (const name of folder.keys()) if (name.startsWith("python~")) names.push(name);
              return names.length === 1 && !names[0].endsWith(".part");
            }})""")
            for tab in tabs:
                tab.close()
    context.close()


def test_two_tabs_load_at_the_same_time(profile):
    context, ours = profile
    tabs = [open_page(context, ours, noise_wav(1.0)) for _ in range(2)]
    forget(tabs[0])
    for tab in tabs:
        tab.evaluate("""(model) => {
          window.engine = new Engine();
          window.both = outcome(engine.load({ model: `/models/${model}/` }));
        }""", MINIATURE)
    for tab in tabs:
        assert "result" in tab.evaluate("() => both")
        assert "result" in tab.evaluate(TRANSCRIBE)
        tab.close()


def test_older_version_is_removed(page, tmp_path):
    """A checkpoint whose manifest changed leaves no file of before behind."""
    load(page)
    before = {name for name in stored(page) if "config.json" in name}
    changed = json.loads((FOLDER / "config.json").read_text()) | {"_comment": "changed"}
    data = json.dumps(changed).encode()
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    import hashlib

    for file in manifest["files"]:
        if file["path"] == "config.json":
            file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    base = f"/models/{MINIATURE}/"
    page.site.faults[base + "config.json"] = answer_with(data, "application/json")
    page.site.faults[base + "manifest.json"] = answer_with(json.dumps(manifest).encode(), "application/json")
    load(page)
    after = {name for name in stored(page) if "config.json" in name}
    assert len(after) == len(before) and after != before
