"""Images on an engine: inspect, pull, build, import, tag, remove.

Owns its requests through the docker SDK, for docker and podman alike: both serve
the same calls on their sockets, so neither command need be installed, and a remote engine gets its
context and tarballs over the same connection. Decides no names.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions

from bridge.errors import ImageBuildError, ImageMissingError, ImagePullError
from bridge.sandbox.container import faults
from bridge.sandbox.container.facts import EngineKind

Progress = Callable[[str], None]
_T = TypeVar("_T")
_FOREIGN = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What an engine knows of an image."""

    id: str
    names: tuple[str, ...] = ()
    size: int = 0
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class ImageEngine:
    """One engine's images, on a client of the docker SDK that it does not close.

    Everything raises `SandboxError` when the engine does not answer.
    """

    def __init__(self, client: docker.APIClient, kind: EngineKind) -> None:
        self._client = client
        self._kind: EngineKind = kind

    @property
    def kind(self) -> EngineKind:
        return self._kind

    async def inspect(self, name: str) -> ImageFacts | None:
        """Return what is known of an image; None if there is no such."""
        try:
            seen = await self._call(partial(self._client.inspect_image, name), "look for an image")
        except ImageMissingError:
            return None
        config = seen.get("Config") or seen.get("ContainerConfig") or {}
        return ImageFacts(
            id=str(seen["Id"]).removeprefix("sha256:"),
            names=_names(seen.get("RepoTags")),
            size=int(seen.get("Size") or 0),
            created=str(seen.get("Created") or ""),
            labels={str(k): str(v) for k, v in (config.get("Labels") or {}).items()},
        )

    async def names(self, repository: str) -> frozenset[str]:
        """Return the names, tags included, of the images of a repository."""
        found = await self._call(self._client.images, "list images")
        return frozenset(
            name
            for image in found
            for name in _names(image.get("RepoTags"))
            if name.rpartition(":")[0] == repository
        )

    async def pull(self, name: str, *, progress: Progress) -> None:
        """Fetch an image, or raise `ImagePullError`."""
        start = partial(self._client.pull, name, stream=True, decode=True)
        error = await self._stream(start, f"pull {name}", 1800.0, progress)
        if error:
            message = f"{self.kind} could not pull {name}: {faults.shorten(error)}."
            raise ImagePullError(message)

    async def import_rootfs(self, tarball: Path, *, changes: Sequence[str]) -> str:
        """Make a nameless image of one layer from a root filesystem and return its id."""
        doing = f"import {tarball.name}"
        said: list[str] = []
        try:
            file = await anyio.to_thread.run_sync(partial(tarball.open, "rb"))
        except OSError as error:
            raise build_failure(self.kind, doing, str(error)) from error

        def start() -> Iterator[Any]:
            # Without a name: podman 4 drops the tag and would leave a stray "latest".
            answer = self._client.import_image_from_data(file, changes=list(changes))
            said.append(str(answer))
            # Some versions answer with one document, some with a line per step.
            return iter([_loads(line) for line in said[0].splitlines()])

        with file:
            # The slowest of storage drivers (vfs) unpacks a few hundred megabytes.
            failed = await self._stream(start, doing, 900.0, lambda _: None)
        found = re.findall(r"sha256:([0-9a-f]{64})", "".join(said))
        if failed or not found:
            raise build_failure(self.kind, doing, failed or "it named no image")
        return str(found[-1])

    async def build(
        self,
        context: Path,
        name: str,
        *,
        target: str,
        labels: Mapping[str, str],
        progress: Progress,
    ) -> None:
        """Build the stage `target` of the context's Containerfile, or raise `ImageBuildError`."""
        start = partial(
            self._client.build,
            path=str(context),
            dockerfile="Containerfile",
            tag=name,
            target=target,
            labels=dict(labels),
            rm=True,
            forcerm=True,
            decode=True,
        )
        error = await self._stream(start, f"build {name}", 3600.0, progress)
        if error:
            # The steps before it went to `progress`.
            raise build_failure(self.kind, f"build {name}", error)

    async def tag(self, name: str, new: str) -> None:
        """Give an image a further name with a tag, taking it from another image that has it."""
        repository, _, tag = new.rpartition(":")
        await self._call(partial(self._client.tag, name, repository, tag), "tag an image")

    async def remove(self, name: str) -> None:
        """Take a name or id away, and with the last name the image. Harmless if gone or in use."""

        def remove() -> None:
            try:
                self._client.remove_image(name)
            except docker.errors.APIError as error:
                # 409: a container uses it; it goes with `image prune`.
                if error.status_code != 409 and not _is_missing(error):
                    raise

        await self._call(remove, "remove an image")

    async def _call(self, call: Callable[[], _T], doing: str) -> _T:
        try:
            return await anyio.to_thread.run_sync(call)
        except _FOREIGN as error:
            if _is_missing(error):
                message = f"{self.kind} has no such image (trying to {doing})."
                raise ImageMissingError(message) from error
            raise faults.from_exception(error, doing=doing, engine=self.kind) from error

    async def _stream(
        self, start: Callable[[], Iterable[Any]], doing: str, seconds: float, progress: Progress
    ) -> str:
        """Run a call that answers with a stream of documents; report each, and return the error.

        The thread cannot be interrupted in a read. When the time is up or the caller is cancelled
        it is left alone, and ends at the next document or with the process.
        """
        failed: list[str] = []
        stop = threading.Event()

        def read() -> None:
            for document in start():
                if stop.is_set():
                    return
                if isinstance(document, dict) and (said := document.get("error")):
                    failed.append(str(said))
                elif line := progress_line(document):
                    anyio.from_thread.run_sync(progress, line)

        try:
            with anyio.fail_after(seconds):
                await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        except docker.errors.APIError as error:
            # A refusal before the stream began is the same as one in it.
            failed.append(str(error.explanation or error))
        except TimeoutError:
            failed.append(f"it was not done after {seconds:.0f} seconds")
        except (docker.errors.StreamParseError, urllib3.exceptions.HTTPError) as error:
            failed.append(f"the connection broke: {error}")
        except _FOREIGN as error:
            raise faults.from_exception(error, doing=doing, engine=self.kind) from error
        finally:
            stop.set()
        return failed[-1] if failed else ""


def progress_line(document: object) -> str:
    """Return the line to show for a document of an engine's progress; empty for none."""
    # A layer's progress bar sends the same status hundreds of times.
    if not isinstance(document, dict) or document.get("progressDetail"):
        return ""
    where = f"{document['id']}: " if document.get("id") else ""
    return f"{where}{document.get('stream') or document.get('status') or ''}".strip()[:1000]


def build_failure(engine: str, doing: str, told: str) -> ImageBuildError:
    """Return the error for a build or an import that an engine refused, with its remedy."""
    low = told.lower()
    remedy = "Run `mcp-code-bridge doctor` to see whether the engine works at all."
    if "no space left on device" in low or "disk quota exceeded" in low:
        remedy = f"Free space where {engine} keeps its images (`{engine} system df`)."
    elif any(mark in low for mark in _REGISTRY):
        remedy = "Run `mcp-code-bridge image build --offline`, which needs no registry."
    message = f"{engine} could not {doing}: {faults.shorten(told[-faults.MAX_DETAIL :])}."
    return ImageBuildError(message, remedy=remedy)


_REGISTRY = (
    "pinging container registry", "initializing source docker://", "manifest unknown",
    "pull access denied", "toomanyrequests", "dial tcp", "no such host", "i/o timeout",
    "tls handshake", "connection refused", "request canceled while waiting for connection",
    "temporary failure", "could not resolve",
)  # fmt: skip


def _is_missing(error: BaseException) -> bool:
    """Return whether an error means that the image does not exist, whatever the status code."""
    if not isinstance(error, docker.errors.APIError):
        return False
    # podman 4 answers 500 to the id of an image that is gone: it tries to read it as a name.
    return error.status_code == 404 or "cannot specify 64-byte hexadecimal" in str(
        error.explanation
    )


def _names(tags: Iterable[object] | None) -> tuple[str, ...]:
    return tuple(str(tag) for tag in tags or () if "<none>" not in str(tag))


def _loads(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return {"status": line}
