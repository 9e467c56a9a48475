"""workers/webgpu.js on a GPU that can be told to fail (fake_gpu.js), without Python: what it counts, and that nothing hangs."""

from __future__ import annotations

import pytest

from tests.browser.engine_site import ROOT, answer_with, open_page, serving

FAKE = ROOT / "tests" / "browser" / "fake_gpu.js"

SETUP = """async () => {
  const fake = await import("/fake_gpu.js");
  const { findAdapter } = await import("/workers/gpu.js");
  const { GpuHost } = await import("/workers/webgpu.js");
  window.faults = {};
  fake.install(window, faults);
  Object.assign(window, { counts: fake.counts, GpuHost, findAdapter });
  const kernels = { add: "add", copy: "copy" };
  const pipelines = [["add", { N: 4 }], ["copy", { N: 4 }], ["copy", { N: 8 }]]
    .map(([kernel, constants]) => ({ kernel, entry: "main", constants }));
  const one = [1, 1, 1];
  const entries = { step: [[0, [0, 1, -1, 2], one], [1, [2, 1], one], [2, [1, 2, -2], one]], other: [[1, [0, 1], [2, 1, 1]]] };
  window.PLAN = JSON.stringify({ kernels, pipelines, entries, cuts: { step: [], other: [] } });
  window.READS = JSON.stringify([[1, 0, 64], [2, 16, 8]]);
  // a loaded host: three buffers and the plan
  window.loaded = async (how) => {
    const host = await GpuHost.create(how);
    try {
      for (const bytes of [64, 256, 100]) host.buffer(bytes);
      await host.settle();
      await host.prepare(PLAN, null);
    } catch (error) {
      host.dispose();
      throw error;
    }
    return host;
  };
  window.run = (host) => host.run("step", 0, 3, READS);
  window.since = (before) => Object.fromEntries(Object.entries(counts).map(([key, n]) => [key, n - before[key]]));
  window.addEventListener("unhandledrejection", (event) => (window.unheard ??= []).push(String(event.reason)));
}"""


@pytest.fixture(scope="module")
def page(browser):
    context = browser.new_context()
    with serving() as site:
        site.faults["/fake_gpu.js"] = answer_with(FAKE.read_bytes(), "text/javascript")
        page = open_page(context, site)
        page.evaluate(SETUP)
        yield page
        context.close()


@pytest.fixture
def on(page):
    """evaluate(body) of an async function, with the fake as new; afterwards every buffer must be gone."""

    def evaluate(body, argument=None):
        fresh = "for (const key of Object.keys(faults)) delete faults[key];"
        return page.evaluate(f"async (argument) => {{ {fresh} {body} }}", argument)

    yield evaluate
    assert page.evaluate("() => [counts.live, counts.bytes]") == [0, 0], "a buffer was left behind"
    assert page.evaluate("() => window.unheard ?? []") == [], "a promise failed and nobody listened"


def test_a_run_is_one_submit_and_one_readback_and_makes_nothing(on):
    found = on("""
      const host = await loaded();
      await run(host);                       // the first makes the buffer that outputs are read from
      const before = { ...counts };
      for (let i = 0; i < 200; i++) await run(host);
      const after = since(before);
      host.dispose();
      return after;
    """)
    assert {key: found[key] for key in ("submits", "maps", "passes")} == {"submits": 200, "maps": 200, "passes": 200}
    assert found["dispatches"] == 600
    none = dict.fromkeys(("created", "live", "bytes", "groups", "pipelines", "modules", "writes"), 0)
    assert {key: found[key] for key in none} == none


def test_a_long_run_is_cut_into_submits(on):
    """As the Plan says, of the whole entry and of a part of it; still one readback, and one time."""
    found = on("""
      const host = await GpuHost.create();
      for (const bytes of [64, 256, 100]) host.buffer(bytes);
      await host.settle();
      await host.prepare(JSON.stringify({ ...JSON.parse(PLAN), cuts: { step: [1, 2], other: [] } }), null);
      const seen = [];
      for (const [first, last] of [[0, 3], [1, 3], [0, 1], [2, 2]]) {
        const before = { ...counts };
        const { length } = await host.run("step", first, last, READS);
        const { submits, passes, dispatches, maps } = since(before);
        seen.push([submits, passes, dispatches, maps, length, host.gpuMs]);
      }
      const { times } = host.facts();
      host.dispose();
      return { seen, times };
    """)
    assert found["seen"] == [[3, 3, 3, 1, 72, 2.5], [2, 2, 2, 1, 72, 2.5], [1, 1, 1, 1, 72, 2.5], [1, 0, 0, 1, 72, None]]
    assert found["times"] == {"step": {"runs": 1, "gpu_ms": 2.5}}


def test_pipelines_are_made_once_and_told(on):
    found = on("""
      const host = await loaded();
      const first = counts.pipelines;
      const told = [];
      await host.prepare(PLAN, (done, total) => told.push([done, total]));
      const again = counts.pipelines - first;
      host.dispose();
      return { again, told };
    """)
    assert found["again"] == 0 and found["told"] == [[0, 3], [1, 3], [2, 3], [3, 3]]


def test_every_buffer_is_counted(on):
    """Own accounting against the fake's, at each step of 20 loads; zero after each."""
    found = on("""
      const wrong = [];
      let peak = 0;
      const compare = (host, where) => {
        const { bytes, buffers } = host.facts();
        if (bytes !== counts.bytes || buffers !== counts.live) wrong.push([where, bytes, counts.bytes, buffers, counts.live]);
      };
      const sizes = new Set();
      for (let i = 0; i < 20; i++) {
        const host = await GpuHost.create();
        compare(host, "created");
        for (const bytes of [64, 256, 100]) host.buffer(bytes);
        compare(host, "buffers");
        await host.settle();
        await host.prepare(PLAN, null);
        for (let n = 0; n < 10; n++) await run(host);
        compare(host, "runs");
        await host.run("other", 0, 1, JSON.stringify([[1, 0, 256]]));
        compare(host, "a larger readback");
        sizes.add(host.facts().peak);
        host.release(1);                      // what a second load made, and could not finish
        compare(host, "some released");
        host.release();
        compare(host, "all released");
        host.dispose();
        if (host.facts().bytes || host.facts().buffers || counts.live) wrong.push(["disposed", host.facts(), { ...counts }]);
      }
      return { wrong, sizes: [...sizes] };
    """)
    assert found["wrong"] == [] and len(found["sizes"]) == 1


def test_own_end_is_no_loss(on):
    assert on("""
      const host = await loaded();
      await run(host);
      host.dispose();
      await new Promise((resolve) => setTimeout(resolve, 20));   // the device's promise is settled by now
      return (await outcome(run(host))).error.code;              // of a host that was given back, and said so
    """) == "device_lost"


# ---- BR-43: the device goes away ------------------------------------------------------------------------------------

WHERE = {
    "readback": "faults.lose = 2; await run(host); return outcome(run(host));",
    "idle": "faults.lose = 1; await outcome(run(host)); return outcome(run(host));",
    "weights": """faults.lose = 1; const going = outcome(run(host));
      const readInto = (view) => new Promise((resolve) => setTimeout(() => resolve(view.length), 5));
      host.addSource("f", { name: "f", readInto });
      const answer = await outcome(host.loadWeights(JSON.stringify([[0, [["f", 0, 64]]], [1, [["f", 64, 320]]]]), null));
      await going; return answer;""",
    "settle": "faults.lose = 1; const going = outcome(run(host)); host.buffer(64); const answer = await outcome(host.settle());"
              "await going; return answer.error ? answer : outcome(host.settle());",
    "compile": """faults.lose = 1; await outcome(run(host));
      return outcome(host.prepare(PLAN.replaceAll('"N":4', '"N":5'), null));""",
}


@pytest.mark.parametrize("where", WHERE)
def test_lost_device_is_one_typed_error_and_nothing_hangs(on, where):
    """Its readback, and everything else that is pending, never settles by itself."""
    answer = on("""
      const host = await loaded();
      const answer = await (async () => { BODY })();
      const again = await outcome(run(host));
      const { lost } = host.facts();
      host.dispose();
      return { answer, again, lost };
    """.replace("BODY", WHERE[where]))
    for outcome in (answer["answer"], answer["again"]):
        assert outcome["error"]["code"] == "device_lost" and "pulled the plug" in outcome["error"]["message"], outcome
    assert answer["lost"] == "the test pulled the plug"


def test_a_new_host_asks_for_a_new_adapter_and_device(on):
    found = on("""
      const host = await loaded();
      faults.lose = 1;
      await outcome(run(host));
      host.dispose();
      const before = { ...counts };
      const other = await loaded();
      const { result } = await outcome(run(other).then((data) => data.length));
      const { adapters, devices } = since(before);
      other.dispose();
      return { adapters, devices, result };
    """)
    assert found == {"adapters": 1, "devices": 1, "result": 72}


def test_a_device_that_is_dead_on_arrival(on):
    found = on("faults.dead = true; return outcome(loaded());")
    assert found["error"]["code"] == "device_lost" and "gone already" in found["error"]["message"]


def test_silence_has_an_end(on):
    found = on("""
      const host = await loaded({ waitMs: 100 });
      faults.silent = true;
      const answer = await outcome(run(host));
      const next = await outcome(run(host));
      host.dispose();
      return [answer.error, next.error];
    """)
    assert all(error["code"] == "device_lost" and "did not answer within 0.1 s" in error["message"] for error in found)


# ---- what a device refuses ------------------------------------------------------------------------------------------

def test_no_room(on):
    found = on("""
      faults.room = 1000;
      const host = await GpuHost.create();
      for (let i = 0; i < 4; i++) host.buffer(400);
      const answer = await outcome(host.settle());
      host.dispose();
      return answer.error;
    """)
    assert found["code"] == "out_of_memory" and found["data"] == {"wanted": found["data"]["wanted"], "allowed": 0}
    assert found["data"]["wanted"] >= 1600 and "no room" in found["message"]


def test_one_buffer_beyond_the_limit(on):
    found = on("""
      faults.limits = { maxStorageBufferBindingSize: 1 << 20 };
      const host = await GpuHost.create();
      const answer = await outcome((async () => host.buffer((1 << 20) + 1))());
      host.dispose();
      return answer.error;
    """)
    assert found["code"] == "out_of_memory" and found["data"] == {"wanted": (1 << 20) + 16, "allowed": 1 << 20}


def test_a_kernel_that_does_not_compile(on):
    found = on("""
      const host = await GpuHost.create();
      for (const bytes of [64, 256, 100]) host.buffer(bytes);
      faults.broken = "copy";
      const answer = await outcome(host.prepare(PLAN, null));
      faults.broken = "";
      const next = await outcome(host.prepare(PLAN, null));
      host.dispose();
      return [answer.error, next.error ?? null];
    """)
    assert found[0]["code"] == "gpu_error" and "kernel copy (main" in found[0]["message"] and found[1] is None


def test_checks_of_the_device_fail_the_run(on):
    found = on("""
      const host = await loaded();
      faults.invalid = true;
      const answer = await outcome(run(host));
      faults.invalid = false;
      const next = await outcome(run(host).then((data) => data.length));
      host.dispose();
      const other = await loaded();
      faults.stray = true;
      await outcome(run(other));
      const stray = await outcome(run(other));
      other.dispose();
      return { answer: answer.error, next: next.result, stray: stray.error };
    """)
    assert found["answer"]["code"] == "gpu_error" and "refuses" in found["answer"]["message"]
    assert found["next"] == 72
    assert found["stray"]["code"] == "gpu_error" and "from nowhere" in found["stray"]["message"]


# ---- BR-44: browsers without a GPU ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("faults", "words"), [
    ({"adapter": "absent"}, "no WebGPU"),
    ({"adapter": "null"}, "found no GPU"),
    ({"adapter": "throws"}, "switched off"),
    ({"refused": True}, "no device for you"),
    ({"software": True}, "emulator"),
])
def test_no_gpu_has_a_reason(on, faults, words):
    found = on("Object.assign(faults, argument); return outcome(GpuHost.create({ software: false }));", faults)
    assert found["error"]["code"] == "no_gpu" and words in found["error"]["message"], found


def test_an_adapter_that_never_comes(on):
    found = on("faults.adapter = 'hangs'; return findAdapter(50);")
    assert found["adapter"] is None and "did not answer" in found["reason"]


def test_features_and_limits_are_those_of_the_device(on):
    found = on("""
      faults.features = [];
      const plain = await loaded();
      await run(plain);
      const without = [plain.about.features, plain.facts().times, plain.gpuMs];
      plain.dispose();
      faults.features = ["shader-f16", "subgroups", "timestamp-query", "float32-filterable"];
      const host = await loaded();
      for (let i = 0; i < 3; i++) await run(host);
      await host.run("step", 0, 1, "[]");     // a part of an entry
      const { features, limits } = host.about;
      const { times } = host.facts();
      const { gpuMs } = host;
      host.dispose();
      return { without, features, limits, times, gpuMs };
    """)
    assert found["without"] == [[], None, None]
    assert found["features"] == ["shader-f16", "subgroups", "timestamp-query"]
    assert found["limits"]["maxComputeWorkgroupStorageSize"] == 32768 and found["limits"]["subgroupMinSize"] == 0
    assert found["times"] == {"step": {"runs": 3, "gpu_ms": 7.5}} and found["gpuMs"] == 2.5


# ---- weights --------------------------------------------------------------------------------------------------------

def test_weights_lie_as_in_the_file(on):
    """Ranges of odd lengths one behind another, from slow and fast sources, zeros where there is no file."""
    got = on("""
      const host = await loaded();
      const file = Uint8Array.from({ length: 256 }, (_, i) => i);
      const readInto = (view, start) => (view.set(file.subarray(start, start + view.length)), view.length);
      host.addSource("slow", { name: "slow", readInto: async (view, start) => readInto(view, start) });
      host.addSource("fast", { name: "fast", readInto });
      const told = [];
      const recipe = [[1, [["slow", 10, 17], ["", 0, 3], ["fast", 100, 105]]], [0, [["fast", 0, 64]]]];
      await host.loadWeights(JSON.stringify(recipe), (done, total) => told.push([done, total]));
      const data = await host.run("step", 0, 0, JSON.stringify([[1, 0, 20], [0, 0, 64]]));
      host.addSource("fast", { name: "fast", readInto: () => 3 });
      const short = await outcome(host.loadWeights(JSON.stringify(recipe), null));
      host.dispose();
      return { data: [...data], told, short: short.error };
    """)
    assert got["data"] == [*range(10, 17), 0, 0, 0, *range(100, 105), 0, 0, 0, 0, 0, *range(64)]
    assert got["told"] == [[15, 79], [79, 79]]
    assert got["short"]["code"] == "bad_weights" and "got shorter" in got["short"]["message"]


def test_streaming_takes_little_memory(on):
    """300 MB pass by: what is on its way at once is bounded, and so is what is read at once."""
    found = on("""
      const host = await GpuHost.create();
      const bytes = 300 << 20;
      host.buffer(bytes);
      await host.settle();
      let most = 0;
      host.addSource("f", { name: "f", readInto: (view) => ((most = Math.max(most, view.length)), view.length) });
      const before = counts.written;
      await host.loadWeights(JSON.stringify([[0, [["f", 0, bytes]]]]), null);
      const found = { most, flight: counts.flight, written: counts.written - before };
      host.dispose();
      return found;
    """)
    assert found["written"] == 300 << 20 and found["most"] <= 4 << 20 and found["flight"] <= 68 << 20


def test_loading_can_be_stopped(on):
    found = on("""
      const host = await loaded();
      host.addSource("f", { name: "f", readInto: (view) => view.length });
      host.cancelled = () => true;
      const weights = await outcome(host.loadWeights(JSON.stringify([[0, [["f", 0, 64]]]]), null));
      const shaders = await outcome(host.prepare(PLAN.replaceAll('"N":4', '"N":6'), null));
      host.dispose();
      return [weights.error.code, shaders.error.code];
    """)
    assert found == ["cancelled", "cancelled"]
