"""The server over real sockets: types and headers on every answer (BR-54, BR-46), ranges (BR-55), nothing outside the
served folders (BR-56), clients that leave (BR-57), taken ports (BR-58), 404s that are 404s (BR-52)."""

import gzip
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from setup import paths, ranges
from setup.server import HEADERS, Server, origin

REPOSITORY = Path(__file__).parents[2]
SECRET = b"not to be served"
ISOLATION = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
}


class Running(Server):
    """A server on a free port whose log can be read."""

    def __init__(self, root):
        super().__init__(root, port=0)
        self.lines = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def log(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    top = tmp_path_factory.mktemp("top")
    root = top / "site"
    files = {
        "web/index.html": b"<!doctype html><title>hello</title>" + b" " * 2000,
        "web/app.js": b"export const a = 1;\n" * 100,
        "web/sw.js": b"self.skipWaiting();\n",
        "web/demo/index.html": b"<!doctype html>demo",
        "web/a b/\xc3\xa4.txt".encode("latin1").decode(): b"umlaut",
        "web/empty.json": b"",
        "web/notes.swp": SECRET,
        "web/.hidden.js": SECRET,
        "web/.git/config.json": SECRET,
        "workers/engine.worker.js": b"postMessage(1);",
        "workers/kernels.wasm": b"\0asm\1\0\0\0",
        "models/tiny/model.safetensors": bytes(range(256)) * 4,
        "models/tiny/model.safetensors.part": SECRET,
        "build/pyodide/1.2.3/pyodide.mjs": b"export {};",
        "build/wheels/x-1-py3-none-any.whl": b"PK\3\4",
        "build/pyodide/image.data": b"1",
        "build/setup.json": SECRET,
        "build/downloads/x.zip": SECRET,
        "serve.py": SECRET,
        "pyproject.json": SECRET,
        "py/candlewick/x.json": SECRET,
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (top / "secret.txt").write_bytes(SECRET)
    (top / "outside").mkdir()
    (top / "outside" / "x.json").write_bytes(SECRET)
    (root / "web" / "link.txt").symlink_to(top / "secret.txt")
    (root / "web" / "inner.js").symlink_to(root / "web" / "app.js")
    (root / "web" / "folder").symlink_to(top / "outside")
    os.mkfifo(root / "web" / "pipe.json")
    big = root / "models" / "tiny" / "big.bin"
    with big.open("wb") as file:
        file.truncate(50_000_000)
    server = Running(root)
    yield server
    server.shutdown()
    server.server_close()


def connect(site):
    return socket.create_connection(("127.0.0.1", site.server_port), timeout=60)


def read_answer(stream, head=False):
    """One answer from a socket's file: (status, headers, body), body by Content-Length."""
    status = int(stream.readline().split()[1])
    headers = {}
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, value = line.decode("latin1").rstrip("\r\n").split(": ", 1)
        assert name.lower() not in headers, f"{name} stands twice"
        headers[name.lower()] = value
    length = 0 if head or status == 304 else int(headers["content-length"])
    body = stream.read(length)
    assert len(body) == length
    return status, headers, body


def raw(site, request, head=False):
    """Send bytes, read one answer, and check what every answer must have."""
    with connect(site) as connection:
        connection.sendall(request)
        answer = read_answer(connection.makefile("rb"), head)
    assert ISOLATION.items() <= answer[1].items()
    for name, value in HEADERS.items():
        assert answer[1][name.lower()] == value
    assert SECRET not in answer[2]
    assert str(site.root).encode() not in answer[2]
    return answer


def get(site, target, method="GET", **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return raw(site, f"{method} {target} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode(), method == "HEAD")


# --- types and headers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/web/", "text/html; charset=utf-8"),
        ("/web/index.html", "text/html; charset=utf-8"),
        ("/web/app.js", "text/javascript; charset=utf-8"),
        ("/workers/engine.worker.js", "text/javascript; charset=utf-8"),
        ("/workers/kernels.wasm", "application/wasm"),
        ("/models/tiny/model.safetensors", "application/octet-stream"),
        ("/build/pyodide/1.2.3/pyodide.mjs", "text/javascript; charset=utf-8"),
        ("/build/wheels/x-1-py3-none-any.whl", "application/zip"),
        ("/build/pyodide/image.data", "application/octet-stream"),
        ("/web/empty.json", "application/json; charset=utf-8"),
        ("/web/a%20b/%C3%A4.txt", "text/plain; charset=utf-8"),
    ],
)
def test_types_come_from_our_own_table(site, target, kind):  # BR-54
    status, headers, _ = get(site, target)
    assert (status, headers["content-type"], headers["x-content-type-options"]) == (200, kind, "nosniff")


def test_a_wrong_mime_table_of_the_machine_does_not_matter(site, monkeypatch):  # BR-54
    import mimetypes

    monkeypatch.setattr(mimetypes, "guess_type", lambda *_, **__: ("text/plain", None))
    assert get(site, "/web/app.js")[1]["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /web/none.js HTTP/1.1\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\n\r\n", 308),
        (b"GET /web HTTP/1.1\r\n\r\n", 308),
        (b"POST /web/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"OPTIONS /web/ HTTP/1.1\r\n\r\n", 405),
        (b"BREW /web/ HTTP/1.1\r\n\r\n", 405),
        (b"GET /web/app.js HTTP/1.1\r\nRange: bytes=999999-\r\n\r\n", 416),
        (b"GET /web/app.js HTTP/1.1\r\nIf-None-Match: *\r\n\r\n", 304),
        (b"GET /%zz HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 70000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    ],
)
def test_every_answer_carries_the_isolation_headers(site, request_bytes, status):  # BR-46, BR-54; checked in raw()
    assert raw(site, request_bytes)[0] == status


def test_embedder_policy_is_the_one_safari_knows():  # BR-46
    assert HEADERS["Cross-Origin-Embedder-Policy"] == "require-corp"


def test_policy_allows_wasm_but_no_eval_and_no_foreign_host():
    policy = HEADERS["Content-Security-Policy"]
    assert "'wasm-unsafe-eval'" in policy and "'unsafe-eval'" not in policy and "'unsafe-inline'" not in policy
    assert "http" not in policy and "*" not in policy


def test_mirrors_are_allowed_by_name_and_nothing_else():
    with Server(Path(__file__).parent, port=0, mirrors=["https://models.example.org"]) as server:
        policy = server.headers["Content-Security-Policy"].split("; ")
    assert "connect-src 'self' blob: https://models.example.org" in policy
    assert [part for part in policy if "example" in part] == ["connect-src 'self' blob: https://models.example.org"]
    assert origin("http://localhost:8001/") == "http://localhost:8001"
    for wrong in ("example.org", "https://*", "https://a.org/models", "https://a.org; script-src *", "javascript:x", ""):
        with pytest.raises(ValueError, match="wanted an origin"):
            origin(wrong)


def test_service_worker_may_look_after_the_whole_site(site):
    assert get(site, "/web/sw.js")[1]["service-worker-allowed"] == "/"
    assert "service-worker-allowed" not in get(site, "/web/app.js")[1]


def test_versioned_addresses_are_kept_others_revalidated(site):
    assert get(site, "/web/app.js")[1]["cache-control"] == "no-cache"
    assert "immutable" in get(site, "/web/app.js?v=abc")[1]["cache-control"]
    assert "immutable" in get(site, "/build/pyodide/1.2.3/pyodide.mjs")[1]["cache-control"]
    assert get(site, "/build/pyodide/image.data")[1]["cache-control"] == "no-cache"


# --- redirects, folders, 404 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "location"),
    [("/", "/web/"), ("/web", "/web/"), ("/web/demo?a=1&b", "/web/demo/?a=1&b"), ("/web/a%20b", "/web/a%20b/")],
)
def test_redirects(site, target, location):
    status, headers, body = get(site, target)
    assert (status, headers["location"], body) == (308, location, b"")


@pytest.mark.parametrize(
    "target", ["//example.org", "//example.org/..", "/web//demo", "/%2f/example.org", "/web/demo/%2f"]
)
def test_no_redirect_leaves_the_site(site, target):
    status, headers, _ = get(site, target)
    assert status in (400, 404) and "location" not in headers


@pytest.mark.parametrize(
    "target",
    ["/web/none.html", "/web/index.html/", "/none", "/models/", "/models/tiny/", "/build/wheels/", "/web/a%20b/"],
)
def test_missing_files_and_bare_folders_are_404_and_never_the_index(site, target):  # BR-52
    status, headers, body = get(site, target)
    assert status == 404 and headers["content-type"].startswith("text/plain") and b"hello" not in body
    assert headers["cache-control"] == "no-store"


def test_404_for_a_person_is_a_page_that_repeats_nothing(site):
    status, headers, body = get(site, "/web/<script>alert(1)</script>", Accept="text/html,*/*")
    assert status == 404 and headers["content-type"].startswith("text/html") and b"alert" not in body


# --- nothing outside -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/web/../../secret.txt",
        "/web/%2e%2e/%2e%2e/secret.txt",
        "/web/%2E%2E/serve.py",
        "/web/..%2f..%2fsecret.txt",
        "/web/%252e%252e/%252e%252e/secret.txt",
        "/web/..\\..\\secret.txt",
        "/web/..%5c..%5csecret.txt",
        "/web/app.js%00.html",
        "/web/%00",
        "/web/./app.js",
        "/web/app.js%0d%0aX: y",
        "/etc/passwd",
        "//etc/passwd",
        "/web//etc/passwd",
        "/web/%2fetc/passwd",
        "/web/C:/Windows/win.ini",
        "/web/index.html::$DATA",
        "http://x/web/app.js",
        "web/app.js",
        "*",
        "/web/%c0%ae%c0%ae/secret.txt",
        "/web/%ff",
        "/web/link.txt",
        "/web/inner.js",
        "/web/folder/x.json",
        "/web/pipe.json",
        "/web/notes.swp",
        "/web/.hidden.js",
        "/web/.git/config.json",
        "/models/tiny/model.safetensors.part",
        "/build/downloads/x.zip",
        "/build/setup.json",
        "/build",
        "/build/",
        "/serve.py",
        "/pyproject.json",
        "/py/candlewick/x.json",
        "/WEB/app.js",
        "/web/" + "a" * 5000 + ".js",
    ],
)
def test_nothing_outside_is_served(site, target):  # BR-56; bodies are checked in raw()
    assert raw(site, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())[0] in (400, 404)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            ["/", "web", "..", ".", "%2e", "%2f", "%5c", "\\", "%00", "link.txt", "folder", "secret.txt", "a", "?"]
        ),
        max_size=9,
    )
)
def test_any_target_names_a_served_file_or_is_refused(site, pieces):  # BR-56
    try:
        found = paths.locate(site.root, "".join(pieces))
    except paths.Refused as refused:
        assert refused.status in (400, 404)
        return
    if isinstance(found, paths.Moved):
        assert found.location.startswith("/") and not found.location.startswith("//")
    else:
        assert found.path.resolve() == found.path and found.path.parts[len(site.root.parts)] in paths.SERVED
        assert SECRET not in found.path.read_bytes()


# --- ranges ---------------------------------------------------------------------------------------------------------

DATA = bytes(range(256)) * 4


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-", 0, 1024),
        ("bytes=10-19", 10, 20),
        ("bytes=-5", 1019, 1024),
        ("bytes=5-5", 5, 6),
        ("bytes=1023-", 1023, 1024),
        ("bytes=1000-99999999999999", 1000, 1024),
        ("bytes=-99999", 0, 1024),
    ],
)
def test_ranges(site, header, start, end):  # BR-55
    status, headers, body = get(site, "/models/tiny/model.safetensors", Range=header)
    assert (status, body) == (206, DATA[start:end])
    assert headers["content-range"] == f"bytes {start}-{end - 1}/1024" and headers["content-length"] == str(end - start)


@pytest.mark.parametrize("header", ["bytes=1024-", "bytes=5000-6000", "bytes=-0"])
def test_ranges_outside_the_file(site, header):  # BR-55
    status, headers, body = get(site, "/models/tiny/model.safetensors", Range=header)
    assert (status, headers["content-range"], body) == (416, "bytes */1024", b"")


@pytest.mark.parametrize(
    "header", ["bytes=20-10", "bytes=a-b", "bytes=-", "lines=1-2", "bytes=0-1,3-4", "bytes", "bytes=١-٢"]
)
def test_ranges_that_mean_nothing_send_everything(site, header):  # BR-55
    status, headers, body = get(site, "/models/tiny/model.safetensors", Range=header)
    assert (status, body) == (200, DATA) and headers["accept-ranges"] == "bytes"


def test_ranges_of_an_empty_file(site):  # BR-55
    assert get(site, "/web/empty.json")[0::2] == (200, b"")
    for header in ("bytes=0-", "bytes=-5", "bytes=0-0"):
        assert get(site, "/web/empty.json", Range=header)[0] == 416


def test_head_has_the_length_and_no_body(site):  # BR-55
    with connect(site) as connection:
        connection.sendall(b"HEAD /models/tiny/model.safetensors HTTP/1.1\r\nRange: bytes=1-2\r\n\r\n")
        connection.sendall(b"HEAD /web/none HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\nConnection: close\r\n\r\n")
        stream = connection.makefile("rb")
        status, headers, _ = read_answer(stream, head=True)
        assert (status, headers["content-length"]) == (200, "1024")
        assert read_answer(stream, head=True)[0] == 404
        assert read_answer(stream, head=True)[0] == 308
        assert stream.read() == b""


def test_ranges_of_text_are_never_compressed(site):
    status, headers, body = get(site, "/web/app.js", Range="bytes=0-5", Accept_Encoding="gzip")
    assert (status, body) == (206, b"export") and "content-encoding" not in headers


def test_if_range(site):
    target = "/models/tiny/model.safetensors"
    etag = get(site, target)[1]["etag"]
    assert get(site, target, Range="bytes=0-0", If_Range=etag)[0] == 206
    assert get(site, target, Range="bytes=0-0", If_Range='"older"')[0::2] == (200, DATA)


def test_big_files_stream_in_constant_memory(site):  # BR-55
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with connect(site) as connection:
        connection.sendall(b"GET /models/tiny/big.bin HTTP/1.1\r\nConnection: close\r\n\r\n")
        total = 0
        while piece := connection.recv(1 << 16):
            total += len(piece)
    assert total > 50_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


@settings(max_examples=300, deadline=None)
@given(st.text("bytes=-0123456789 ,", max_size=20), st.integers(0, 50))
def test_any_range_header_is_a_part_of_the_file_or_ignored(header, size):
    try:
        part = ranges.parse_range(header, size)
    except ranges.Unsatisfiable:
        return
    assert part is None or 0 <= part[0] < part[1] <= size


# --- entity tags and compression -----------------------------------------------------------------------------------


def test_not_modified(site):
    _, headers, _ = get(site, "/web/app.js")
    for condition in (headers["etag"], "W/" + headers["etag"], f'"x", {headers["etag"]}', "*"):
        status, again, body = get(site, "/web/app.js", If_None_Match=condition)
        assert (status, body, again["etag"]) == (304, b"", headers["etag"])
    assert get(site, "/web/app.js", If_None_Match='"other"')[0] == 200
    assert get(site, "/web/app.js", If_Modified_Since=headers["last-modified"])[0] == 304
    assert get(site, "/web/app.js", If_None_Match='"other"', If_Modified_Since=headers["last-modified"])[0] == 200


def test_entity_tag_changes_with_the_file(site):
    path = site.root / "web" / "changing.txt"
    path.write_bytes(b"a" * 2000)
    first = get(site, "/web/changing.txt", Accept_Encoding="gzip")
    path.write_bytes(b"b" * 2000)
    second = get(site, "/web/changing.txt", Accept_Encoding="gzip", If_None_Match=first[1]["etag"])
    assert second[0] == 200 and gzip.decompress(second[2]) == b"b" * 2000


@pytest.mark.parametrize(
    ("accept", "packed"),
    [
        ("gzip", True),
        ("br, gzip;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("", False),
        ("x;q=y", False),
    ],
)
def test_compression_of_text(site, accept, packed):
    plain = get(site, "/web/app.js")
    status, headers, body = get(site, "/web/app.js", Accept_Encoding=accept)
    assert status == 200 and headers["vary"] == "Accept-Encoding"
    assert (headers.get("content-encoding") == "gzip") is packed
    assert (gzip.decompress(body) if packed else body) == plain[2]
    assert (headers["etag"] != plain[1]["etag"]) is packed
    assert get(site, "/web/app.js", Accept_Encoding=accept, If_None_Match=headers["etag"])[0] == 304


def test_binaries_and_small_files_are_not_compressed(site):
    for target in ("/workers/kernels.wasm", "/models/tiny/model.safetensors", "/web/sw.js"):
        assert "content-encoding" not in get(site, target, Accept_Encoding="gzip")[1]


def test_gzip_cache_stays_within_its_limit(tmp_path):
    from setup.server import GzipCache

    cache = GzipCache(limit=100)
    path = tmp_path / "x"
    for i in range(9):
        path.write_bytes(os.urandom(30))
        with path.open("rb") as file:
            cache.get(path, str(i), file)
    assert cache.total == sum(map(len, cache._entries.values())) <= 100


# --- connections ----------------------------------------------------------------------------------------------------


def test_many_requests_on_one_connection(site):
    with connect(site) as connection:
        stream = connection.makefile("rb")
        for target, status in (("/web/app.js", 200), ("/web/none", 404), ("/", 308), ("/web/app.js", 200)):
            connection.sendall(f"GET {target} HTTP/1.1\r\n\r\n".encode())
            assert read_answer(stream)[0] == status


def test_a_body_is_not_taken_for_the_next_request(site):
    body = b"GET /web/app.js HTTP/1.1\r\n\r\n"
    with connect(site) as connection:
        connection.sendall(b"GET /web/none HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        stream = connection.makefile("rb")
        assert read_answer(stream)[0] == 404
        assert stream.read() == b""


def test_client_that_leaves_is_one_quiet_line(site):  # BR-57
    site.lines.clear()
    connection = connect(site)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
    connection.sendall(b"GET /models/tiny/big.bin HTTP/1.1\r\n\r\n")
    connection.recv(1024)
    connection.close()
    assert get(site, "/web/app.js")[0] == 200  # others are served meanwhile
    deadline = time.monotonic() + 60
    while not site.lines and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(site.lines) == 1 and "client left" in site.lines[0] and "\n" not in site.lines[0]
    time.sleep(0.1)
    assert len(site.lines) == 1


def test_taken_port_is_one_line_and_a_restart_works(tmp_path):  # BR-58
    (tmp_path / "web").mkdir()
    first = Running(tmp_path)
    command = [sys.executable, REPOSITORY / "serve.py", "--no-setup", "--port", str(first.server_port)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1 and str(first.server_port) in refused.stderr and "--port" in refused.stderr
    get_port = first.server_port
    with connect(first) as connection:  # leave a connection in TIME_WAIT
        connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        connection.recv(10)
    first.shutdown()
    first.server_close()
    second = Server(tmp_path, port=get_port)
    second.server_close()


def test_address_for_people():
    for host, address in (("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "127.0.0.1")):
        server = Server(REPOSITORY, host=host, port=0)
        assert server.url.startswith(f"http://{address}:") or "[::1]" in server.url
        server.server_close()
