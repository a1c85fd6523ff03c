"""Images on an engine: looked at over its API; pulled, built and imported by its own command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bridge.errors import ImageMissingError, SandboxError
from bridge.sandbox.container import faults
from bridge.sandbox.container.api import EngineApi
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from bridge.sandbox.container.facts import EngineKind

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    id: str
    names: tuple[str, ...] = ()
    size: int = 0
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class ImageEngine:
    """One engine's images, over a connection that it does not close.

    `command` is the engine's command, with the options that lead it to this engine.
    """

    def __init__(self, api: EngineApi, *, command: Sequence[str], run: SystemRunner) -> None:
        self._api = api
        self.kind: EngineKind = api.kind
        self._command = command
        self._run = run

    async def inspect(self, name: str) -> ImageFacts | None:
        look, harmless = self._api.client.inspect_image, (faults.is_no_image,)
        seen = await self._api.ask("look for an image", look, name, harmless=harmless)
        if seen is None:
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
        found = await self._api.ask("list images", self._api.client.images)
        return frozenset(
            name
            for image in found
            for name in _names(image.get("RepoTags"))
            if name.rpartition(":")[0] == repository
        )

    async def pull(self, name: str, *, progress: Progress) -> None:
        done = await self._order("pull", name, seconds=1800.0, progress=progress)
        if not done.ok:
            message = f"{self.kind} could not pull {name}: {faults.shorten(_told(done))}."
            raise ImageMissingError(message, code="image_pull_failed")

    async def import_rootfs(self, tarball: Path, *, changes: Sequence[str]) -> str:
        """Make a nameless image of one layer from a root filesystem and return its id."""
        words = [word for change in changes for word in ("--change", change)]
        # The slowest of storage drivers (vfs) unpacks a few hundred megabytes.
        done = await self._order("import", *words, str(tarball), seconds=900.0)
        found = re.findall(r"[0-9a-f]{64}", done.stdout)
        if not done.ok or not found:
            raise build_failure(self.kind, f"import {tarball.name}", _told(done))
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
        """Build the stage `target` of the context's Containerfile, or raise `SandboxError`."""
        words = ["--file", str(context / "Containerfile"), "--target", target, "--tag", name]
        words += [word for each in labels.items() for word in ("--label", "=".join(each))]
        done = await self._order(
            "build", "--force-rm", *words, str(context), seconds=3600.0, progress=progress
        )
        if not done.ok:
            raise build_failure(self.kind, f"build {name}", _told(done))

    async def tag(self, name: str, new: str) -> None:
        """Give an image a further name with a tag, taking it from another image that has it."""
        repository, _, tag = new.rpartition(":")
        await self._api.ask("tag an image", self._api.client.tag, name, repository, tag)

    async def remove(self, name: str) -> None:
        """Remove a name or id, and with the last name the image. Harmless if gone or in use."""
        # What a container uses goes with `image prune`.
        harmless = (faults.is_no_image, faults.is_in_use)
        remove = self._api.client.remove_image
        await self._api.ask("remove an image", remove, name, harmless=harmless)

    async def _order(
        self, *words: str, seconds: float, progress: Progress | None = None
    ) -> CompletedCommand:
        return await self._run([*self._command, *words], timeout=seconds, on_line=progress)


def _told(done: CompletedCommand) -> str:
    if done.timed_out:
        return "it was not done in time"
    return done.stderr.strip() or done.stdout.strip() or "it named no image"


def build_failure(engine: str, doing: str, told: str) -> SandboxError:
    low = told.lower()
    remedy = "Run `mcp-code-bridge doctor` to see whether the engine works at all."
    if "no space left on device" in low or "disk quota exceeded" in low:
        remedy = f"Free space where {engine} keeps its images (`{engine} system df`)."
    elif any(mark in low for mark in _REGISTRY):
        remedy = "Run `mcp-code-bridge image build --offline`, which needs no registry."
    message = f"{engine} could not {doing}: {faults.shorten(told[-faults.MAX_DETAIL :])}."
    return SandboxError(message, remedy=remedy, code="image_build_failed")


_REGISTRY = (
    "pinging container registry", "initializing source docker://", "manifest unknown",
    "pull access denied", "toomanyrequests", "dial tcp", "no such host", "i/o timeout",
    "tls handshake", "connection refused", "request canceled while waiting for connection",
    "temporary failure", "could not resolve",
)  # fmt: skip


def _names(tags: Iterable[object] | None) -> tuple[str, ...]:
    return tuple(str(tag) for tag in tags or () if "<none>" not in str(tag))
