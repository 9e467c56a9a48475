"""The running site as the browser sees it: isolated, strict, and quiet about it."""

import pytest


@pytest.fixture(scope="module")
def page(browser, site):
    context = browser.new_context()
    page = context.new_page()
    page.goto(site + "/")
    assert page.url == site + "/web/"
    yield page
    context.close()


def test_page_and_worker_are_isolated_and_may_share_memory(page):
    assert page.evaluate("crossOriginIsolated && new SharedArrayBuffer(8).byteLength") == 8
    script = "postMessage(crossOriginIsolated)"
    isolated = page.evaluate(
        """(script) => new Promise((resolve, reject) => {
          const worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
          worker.onmessage = (event) => resolve(event.data);
          worker.onerror = reject;
        })""",
        script,
    )
    assert isolated is True


def test_wasm_compiles_from_the_stream(page):
    kind = page.evaluate(
        "WebAssembly.compileStreaming(fetch('/workers/kernels.single.simd128.wasm')).then((m) => m.constructor.name)"
    )
    assert kind == "Module"


def test_policy_stops_eval_inline_scripts_and_foreign_hosts(page):
    blocked = page.evaluate(
        """async () => {
          const seen = [];
          document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          await fetch("https://example.org/").catch(() => {});
          for (let i = 0; new Set(seen).size < 2 && i < 600; i++) await new Promise((resolve) => setTimeout(resolve, 100));
          return [window.ran ?? false, ...new Set(seen)];
        }"""
    )
    assert blocked[0] is False and {"script-src-elem", "connect-src"} <= set(blocked[1:])
    assert page.evaluate("setTimeout('window.ran = true')") == 0  # code as a string is refused
