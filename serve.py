#!/usr/bin/env python3
"""Set up everything that Candlewick needs, then serve it: python3 serve.py"""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"Candlewick needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: python3.11 serve.py")

import argparse
import webbrowser
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from setup.fetch import SetupError
from setup.server import Server, explain_bind, origin
from setup.steps import Setup


def main() -> int:
    """Parse arguments, set up, serve -> exit status."""
    parser = argparse.ArgumentParser(prog="serve.py", description="Set up everything that Candlewick needs, then serve it.")
    parser.add_argument("--setup", action="store_true", help="set up only; leaves .venv/bin/candlewick")
    parser.add_argument("--no-setup", action="store_true", help="serve what is there")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default 8000; 0 takes a free one)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--mirror", action="append", default=[], metavar="ORIGIN", type=origin,
                        help="allow pages to fetch models from this server too (https://example.org); may be given again")
    parser.add_argument("--verbose", action="store_true", help="print a line for each request")
    options = parser.parse_args()
    if not 0 <= options.port <= 65535:
        parser.error(f"--port takes 0 to 65535, got {options.port}")
    try:
        if not options.no_setup:
            Setup(ROOT).run()
    except SetupError as error:
        print(f"Set-up stopped: {error}", file=sys.stderr)
        return 1
    if options.setup:
        print("Everything is in place. python3 serve.py serves it; .venv/bin/candlewick is the command line.")
        return 0
    try:
        server = Server(ROOT, options.host, options.port, options.verbose, options.mirror)
    except OSError as error:
        print(explain_bind(error, options.host, options.port), file=sys.stderr)
        return 1
    print(f"Candlewick is at {server.url}  (Ctrl+C stops it)", flush=True)
    if options.host not in ("127.0.0.1", "localhost", "::1"):
        print("Other machines: browsers give threads, microphone and GPU only to https addresses.", flush=True)
    if options.open:
        webbrowser.open(server.url)
    with server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped. Start again to go on: what was fetched is kept.", file=sys.stderr)
        sys.exit(130)
