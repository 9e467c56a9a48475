"""The web server: four folders of this checkout, on this machine, with the headers that WASM threads need.

It stands on http.server because every answer must carry the isolation headers, also to requests that the parser of a
framework refuses before our code sees them, and because it must run before anything is installed.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import socket
import socketserver
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from setup.paths import Found, Moved, Refused, locate
from setup.ranges import Unsatisfiable, accepts_gzip, etag_matches, parse_range

CONNECT = "connect-src 'self' blob:"
# On every answer. Isolation (the first three) gives pages shared memory, hence WASM threads.
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'self'",
            "script-src 'self' 'wasm-unsafe-eval'",
            "worker-src 'self' blob:",
            CONNECT,
            "img-src 'self' blob: data:",
            "media-src 'self' blob: data:",
            "style-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
REVALIDATE = "no-cache"  # keep it, but ask each time whether it changed (a 304 costs a millisecond here)
# For addresses that carry a version, in the path or as ?v=... Chromium keeps compiled WebAssembly only with these: its
# code cache is void as soon as the file was asked for again, even when the answer is that nothing changed.
KEEP = "public, max-age=31536000, immutable"
SERVICE_WORKER = Path("web/sw.js")  # lives in web/ but may look after the whole site
GZIP_FROM, GZIP_TO = 1 << 10, 8 << 20  # bytes: below it is not worth it, above it delays the answer
GZIP_CACHE = 32 << 20  # bytes of compressed files kept
IDLE_SECONDS = 75


def origin(text: str) -> str:
    """scheme://host[:port], as a content security policy names a server. Raises ValueError for anything else."""
    found = re.fullmatch(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?", text)
    if not found:
        raise ValueError(f"wanted an origin such as https://example.org, got {text!r}")
    return text.rstrip("/")


class GzipCache:
    """Compressed files by path and entity tag; least recently used ones go first."""

    def __init__(self, limit: int = GZIP_CACHE):
        self.limit, self.total = limit, 0
        self._entries: OrderedDict[tuple[Path, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path, etag: str, data: Any) -> bytes:
        """Compressed content of an open file `data`, from the cache if it is there."""
        key = path, etag
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        packed = gzip.compress(data.read(), 1, mtime=0)  # a quarter of the size in 10 ms a MB; level 6 needs 30 to 110
        with self._lock:
            self.total += len(packed) - len(self._entries.get(key, b""))
            self._entries[key] = packed
            while self.total > self.limit:
                self.total -= len(self._entries.popitem(last=False)[1])
        return packed


class Handler(BaseHTTPRequestHandler):
    """One connection. Files are streamed by the kernel; nothing but compressed text is held in memory."""

    server: Server
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # else answers to malformed request lines would have no headers at all
    server_version, sys_version = "candlewick", ""
    disable_nagle_algorithm = True  # headers and body are two writes; without this the second waits for an ACK
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0") != "0":
            self.close_connection = True  # a body we do not read must not be taken for the next request
        try:
            found = locate(self.server.root, self.path)
        except Refused as refused:
            return self.send_error(refused.status, explain=str(refused))
        if isinstance(found, Moved):
            return self.answer(HTTPStatus.PERMANENT_REDIRECT, {"Location": found.location, "Cache-Control": REVALIDATE})
        try:
            with open(found.path, "rb") as file:
                self.send_file(found, file)
        except (FileNotFoundError, PermissionError):
            self.send_error(HTTPStatus.NOT_FOUND, explain="nothing is served here")

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.refuse_method
        raise AttributeError(name)

    def refuse_method(self) -> None:
        self.close_connection = True
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, explain="only GET and HEAD are answered")

    def send_file(self, found: Found, file: Any) -> None:
        """Answer with an open file: 200, 206, 304 or 416."""
        facts = os.fstat(file.fileno())
        size, etag = facts.st_size, f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
        modified = formatdate(facts.st_mtime, usegmt=True)
        wanted = self.headers.get("Range") if self.command == "GET" else None
        zipped = (
            found.compress
            and wanted is None
            and GZIP_FROM <= size <= GZIP_TO
            and accepts_gzip(self.headers.get("Accept-Encoding"))
        )
        if zipped:
            etag = etag[:-1] + '-gz"'
        headers = {
            "ETag": etag,
            "Last-Modified": modified,
            "Cache-Control": KEEP if found.versioned or "v" in parse_qs(self.path.partition("?")[2]) else REVALIDATE,
        }
        if found.compress:
            headers["Vary"] = "Accept-Encoding"
        if self.not_modified(etag, modified):
            return self.answer(HTTPStatus.NOT_MODIFIED, headers)
        headers |= {"Content-Type": found.type, "Accept-Ranges": "bytes"}
        if found.path.relative_to(self.server.root) == SERVICE_WORKER:
            headers["Service-Worker-Allowed"] = "/"
        if zipped:
            packed = self.server.gzip_cache.get(found.path, etag, file)
            return self.answer(HTTPStatus.OK, headers | {"Content-Encoding": "gzip"}, packed)
        if self.headers.get("If-Range") not in (None, etag, modified):
            wanted = None  # the client holds pieces of another version: send all of this one
        try:
            part = parse_range(wanted, size)
        except Unsatisfiable:
            headers = {"Content-Range": f"bytes */{size}", "Cache-Control": REVALIDATE}
            return self.answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers)
        start, end = part or (0, size)
        if part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self.answer(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK, headers, length=end - start)
        if self.command == "GET" and end > start and self.connection.sendfile(file, start, end - start) != end - start:
            self.close_connection = True  # the file shrank while it was sent; the client sees a short body

    def not_modified(self, etag: str, modified: str) -> bool:
        if self.headers.get("If-None-Match") is not None:
            return etag_matches(self.headers["If-None-Match"], etag)
        return self.headers.get("If-Modified-Since") == modified

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"", length: int | None = None) -> None:
        """Status line, headers (those of every answer too) and, unless the request was HEAD, the body."""
        self.send_response(status)
        for name, value in {**self.server.headers, **headers}.items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A short page in words. Nothing of the request is repeated in it."""
        status = HTTPStatus(code)
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            headers = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        else:
            self.close_connection, headers = True, {}  # what follows on this connection may be out of step
        lines = [f"{code} {status.phrase}", explain or status.description]
        if status == HTTPStatus.NOT_FOUND:
            lines.append("If it should be here: python3 serve.py --setup makes models/ and build/.")
        kind, body = "text/plain; charset=utf-8", "\n".join(lines) + "\n"
        if "text/html" in (getattr(self, "headers", None) or {}).get("Accept", ""):
            kind, body = "text/html; charset=utf-8", _error_page(lines)
        headers |= {"Content-Type": kind, "Cache-Control": "no-store"}
        self.answer(status, headers, body.encode())

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, TimeoutError) as error:  # nobody is there to answer
            self.server.log(f"client left: {getattr(self, 'requestline', '')[:80]!r} ({type(error).__name__})")

    def finish(self) -> None:
        try:
            super().finish()
        except (ConnectionError, TimeoutError):
            pass

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        if self.server.verbose:
            self.server.log(f"{getattr(code, 'value', code)} {self.requestline[:200]!r}")

    def log_message(self, format: str, *args: Any) -> None:
        if self.server.verbose:
            self.server.log(format % args)


def _error_page(lines: list[str]) -> str:
    title, *rest = lines
    paragraphs = "".join(f"<p>{line}</p>" for line in rest)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<h1>{title}</h1>{paragraphs}<p><a href="/web/">Candlewick</a></p></html>\n'
    )


class Server(ThreadingHTTPServer):
    """A thread for each connection. Raises OSError when the address cannot be had."""

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # restart at once; on Windows the flag would steal a taken port
    request_queue_size = 128

    def __init__(self, root: str | Path, host: str = "127.0.0.1", port: int = 8000, verbose: bool = False,
                 mirrors: Iterable[str] = ()):
        """mirrors: origins that pages may fetch from besides this one."""
        self.root = Path(os.path.realpath(root))
        policy = HEADERS["Content-Security-Policy"].replace(CONNECT, " ".join((CONNECT, *mirrors)))
        self.headers = {**HEADERS, "Content-Security-Policy": policy}
        self.verbose = verbose
        self.gzip_cache = GzipCache()
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        super().__init__((str(address[0]), int(address[1])), Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer would ask the network for this machine's name
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the site."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.server_name, self.server_name)
        return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{self.server_port}/"

    def log(self, line: str) -> None:
        """One line on standard error."""
        print(line, file=sys.stderr, flush=True)


def explain_bind(error: OSError, host: str, port: int) -> str:
    """One line for a server that could not start."""
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is taken. Choose another: python3 serve.py --port {port + 1} (or --port 0 for a free one)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Port {port} needs rights that this user lacks. Choose one above 1023: python3 serve.py --port 8000"
    return f"Cannot listen on {host} port {port}: {error.strerror or error}. Choose with --host and --port."
