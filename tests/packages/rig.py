"""Wheels made by hand, and a simple index on the loopback interface."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bridge.guest.protocol.distributions import normalize_name
from bridge.packages.target import PackageTarget
from bridge.settings.dependencies import Dependencies
from bridge.settings.fields import fill

PURE = "py3-none-any"

TARGET = PackageTarget(
    version="3.9.2", implementation="cpython", abi="cp39", machine="x86_64", libc="glibc 2.31"
)
"""Another Python than any that runs the tests."""


def wheel(
    directory: Path,
    name: str,
    version: str,
    *,
    requires: Iterable[str] = (),
    files: Mapping[str, str | bytes] | None = None,
    tag: str = PURE,
    entries: Iterable[zipfile.ZipInfo] = (),
) -> Path:
    """Write a wheel whose one module says its version, or that has other files and entries."""
    path = directory / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {text}" for text in requires]
    given = files if files is not None else {f"{name}.py": f"VERSION = {version!r}\n"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in given.items():
            archive.writestr(place, content)
        for entry in entries:
            archive.writestr(entry, entry.filename)
        archive.writestr(f"{info}/METADATA", "\n".join([*metadata, ""]))
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo("x")
    made.filename = made.orig_filename = name
    made.external_attr = mode << 16
    return made


def allow_from(index: Path | str, *allow: str, **more: object) -> Dependencies:
    table = {"allow": list(allow), **({"index": str(index)} if str(index) else {}), **more}
    return fill(Dependencies, table, "config.toml: dependencies")


@contextmanager
def open_directory() -> Iterator[Path]:
    """Make a directory that every user may reach: root's bridge gives programs another user."""
    path = Path(tempfile.mkdtemp(prefix="mcb-packages-", dir="/tmp"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


class Index:
    """A simple index of the wheels in a directory; `answers` replace real ones, by path."""

    def __init__(self, directory: Path, login: str = "", *, hashes: bool = True) -> None:
        self.directory = directory
        self.login = login
        self.hashes = hashes
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, Mapping[str, str], bytes]] = {}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                status, headers, body = index.answer(self.path, self.headers.get("authorization"))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        at = f"{self.login}@" if self.login else ""
        return f"http://{at}127.0.0.1:{self._server.server_port}/simple"

    def __enter__(self) -> Index:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, login: str | None) -> tuple[int, Mapping[str, str], bytes]:
        if self.login and not login:
            return 401, {"www-authenticate": 'Basic realm="x"'}, b""
        if path in self.answers:
            return self.answers[path]
        parts = path.strip("/").split("/")
        if parts[0] == "files":
            return 200, {}, (self.directory / parts[1]).read_bytes()
        name = parts[-1]
        files = [
            f
            for f in sorted(self.directory.iterdir())
            if normalize_name(f.name).startswith(f"{name}-")
        ]
        if not files:
            return 404, {}, b""
        links = []
        for file in files:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            mark = f"#sha256={digest}" if self.hashes else ""
            links.append(f'<a href="/files/{file.name}{mark}">{file.name}</a><br>')
        page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
        return 200, {"content-type": "text/html"}, page.encode()


def tree(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): oct(stat.S_IMODE(path.lstat().st_mode))
        for path in sorted(directory.rglob("*"))
        if not path.is_dir()
    }


PATH = {"PATH": os.environ.get("PATH", "")}
