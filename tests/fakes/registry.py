"""A package registry on loopback that answers only when a test lets it: a slow one.

Passes requests on to the registry that this machine's npm is configured for.
"""

from __future__ import annotations

import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SlowRegistry:
    """The registry.

    Attributes:
        open: Lets held requests pass, once it is set.
        held: Requests that had to wait.
        free: Packages that are sent at once, with all that is asked about them before; 0 holds all.
    """

    def __init__(self, upstream: str, free: int) -> None:
        self.upstream = upstream.rstrip("/")
        self.free = free
        self.open = threading.Event()
        self.held = 0
        self.url = ""
        self._sent = 0

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        if self._sent >= self.free:
            self.held += 1
            self.open.wait()
        self._sent += handler.path.endswith(".tgz")
        wanted = {"Accept": handler.headers.get("Accept", "*/*")}
        request = urllib.request.Request(f"{self.upstream}{handler.path}", headers=wanted)
        try:
            with urllib.request.urlopen(request) as reply:
                status, body, kind = reply.status, reply.read(), reply.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            status, body, kind = error.code, error.read(), "text/plain"
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def slow_registry(npm: str, free: int = 0) -> Iterator[SlowRegistry]:
    """Serve the registry while this is open."""
    command = [npm, "config", "get", "registry"]
    named = subprocess.run(command, capture_output=True, text=True, check=True)
    registry = SlowRegistry(named.stdout.strip(), free)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                registry.answer(self)
            except OSError:
                # The client was killed.
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.open.set()
        server.shutdown()
        server.server_close()
        thread.join()
