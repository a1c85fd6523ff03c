"""Getting wheels from the index.

Owns the requests and the copying, their bounds, and that nothing comes from where it should not: a
directory's wheels from that directory, an index's over HTTP, and over TLS where the index is.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
import httpx2

from bridge.errors import PackageUnavailableError
from bridge.saving import UNFINISHED
from bridge.settings.dependencies import Dependencies
from bridge.wheels.pins import Pin

REQUEST_SECONDS = 30.0
"""For a connection, and between two pieces of an answer; the whole is bounded by the caller."""

MAX_REDIRECTS = 5

_MAX_PORT = 65535

_PIECE = 1024 * 1024


def client(dependencies: Dependencies) -> httpx2.AsyncClient:
    """Return what requests are made with; enter it before use."""
    parts = urlsplit(dependencies.index)
    return httpx2.AsyncClient(
        auth=_Login(dependencies) if parts.username else None,
        timeout=REQUEST_SECONDS,
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        headers={"accept-encoding": "identity"},
        event_hooks={"request": [_check_port]},
    )


async def _check_port(request: httpx2.Request) -> None:
    """See that a request, which an index may have sent elsewhere, is for a port that there is.

    Raises:
        InvalidURL: It is not; a connection to it would fail with an error that is nobody's.
    """
    if (request.url.port or 0) > _MAX_PORT:
        message = "no such port"
        raise httpx2.InvalidURL(message)


class _Login(httpx2.BasicAuth):
    """The index's own login, for its own host only."""

    def __init__(self, dependencies: Dependencies) -> None:
        parts = urlsplit(dependencies.index)
        super().__init__(unquote(parts.username or ""), unquote(parts.password or ""))
        self._origin = _origin(dependencies.index)

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        if _origin(str(request.url)) == self._origin:
            yield from super().auth_flow(request)
        else:
            yield request


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), port


Come = Callable[[int, int], Awaitable[None]]
"""Told how many bytes have come, and of how many; 0 where nobody says."""


async def fetch(
    pin: Pin,
    dependencies: Dependencies,
    directory: Path,
    room: int,
    http: httpx2.AsyncClient,
    come: Come | None = None,
) -> tuple[str, int]:
    """Bring one wheel to `directory`, as its SHA-256; return that and its size.

    Args:
        room: Bytes that it may have.
        come: Called after each piece that is downloaded.

    Raises:
        PackageUnavailableError: It cannot be had, is too large, or is not what it should be.
    """
    with _beside(directory) as (file, path):
        try:
            parts = urlsplit(pin.url)
            if parts.scheme == "file":
                source = _local(unquote(parts.path), pin, dependencies)
                digest, size = await anyio.to_thread.run_sync(_copy, source, file, room, pin)
            else:
                digest, size = await _download(pin, dependencies, file, room, http, come)
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            why = getattr(error, "strerror", "") or type(error).__name__
            message = f"{pin.name} {pin.version} could not be fetched from the index: {why}."
            raise PackageUnavailableError(message) from None
        if pin.sha256 and digest != pin.sha256:
            message = (
                f"What the index has as {pin.file} is not what it was said to be: its SHA-256 is "
                f"{digest}, not {pin.sha256}."
            )
            remedy = "See whether the index was tampered with."
            raise PackageUnavailableError(message, remedy=remedy)
        path.replace(directory / f"{digest}.whl")
    return digest, size


@contextmanager
def _beside(directory: Path) -> Iterator[tuple[BinaryIO, Path]]:
    descriptor, name = tempfile.mkstemp(dir=directory, prefix=UNFINISHED)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, path
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _local(path: str, pin: Pin, dependencies: Dependencies) -> Path:
    directory = dependencies.directory
    real = Path(os.path.realpath(path))
    if directory is None or real.parent != Path(os.path.realpath(directory)):
        message = f"{pin.name} {pin.version} is said to be in a place that is not the index."
        raise PackageUnavailableError(message)
    return real


def _copy(source: Path, file: BinaryIO, room: int, pin: Pin) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as stream:
        while data := stream.read(_PIECE):
            size += len(data)
            if size > room:
                raise too_large(pin)
            digest.update(data)
            file.write(data)
    file.flush()
    return digest.hexdigest(), size


async def _download(
    pin: Pin,
    dependencies: Dependencies,
    file: BinaryIO,
    room: int,
    http: httpx2.AsyncClient,
    come: Come | None,
) -> tuple[str, int]:
    _insist_on_tls(pin.url, dependencies, pin)
    digest, size = hashlib.sha256(), 0
    async with http.stream("GET", pin.url) as response:
        for passed in (*response.history, response):
            _insist_on_tls(str(passed.url), dependencies, pin)
        if response.status_code != httpx2.codes.OK:
            answer = f"the index answered {response.status_code}"
            message = f"{pin.name} {pin.version} could not be fetched: {answer}."
            raise PackageUnavailableError(message)
        given = response.headers.get("content-length", "")
        whole = int(given) if given.isascii() and given.isdigit() and len(given) < 16 else 0
        if whole > room:
            raise too_large(pin)
        # As it was sent: what is decoded can be a thousand times as much.
        async for data in response.aiter_raw(_PIECE):
            size += len(data)
            if size > room:
                raise too_large(pin)
            digest.update(data)
            await anyio.to_thread.run_sync(file.write, data)
            if come is not None:
                await come(size, whole)
    file.flush()
    return digest.hexdigest(), size


def _insist_on_tls(url: str, dependencies: Dependencies, pin: Pin) -> None:
    scheme = urlsplit(url).scheme
    allowed = ("https",) if dependencies.index.startswith("https:") else ("https", "http")
    if scheme not in allowed or dependencies.directory is not None:
        message = f"{pin.name} {pin.version} is said to be in a place that is not the index's."
        raise PackageUnavailableError(message)


def too_large(pin: Pin) -> PackageUnavailableError:
    """Return the error on what goes beyond the bound."""
    message = f"With {pin.name} {pin.version} the packages are larger than a run's may be."
    remedy = "The person who runs the bridge can raise `max_bytes` of [dependencies]."
    return PackageUnavailableError(message, remedy=remedy)
