"""The runtime image: its names and labels, which one a run uses, and its status."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from bridge.errors import SandboxError
from bridge.sandbox.container import faults
from bridge.sandbox.container.api import EngineApi
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from bridge.sandbox.container.facts import EngineKind

Progress = Callable[[str], None]
Flavour = Literal["slim", "data"]

# In order of preference if both are built: a user who built `data` needs its packages.
FLAVOURS: tuple[Flavour, ...] = ("data", "slim")

DEFAULT_FALLBACK = "python:3.13-slim"  # The image of runs if none was built and none is set.

# podman gives `localhost/` to what it builds; Docker takes it as it is. Neither pulls from it.
REPOSITORY = "localhost/mcp-code-bridge-runtime"

LABEL_FLAVOUR = "org.mcp-code-bridge.image.flavour"
LABEL_VERSION = "org.mcp-code-bridge.image.version"
LABEL_GUEST = "org.mcp-code-bridge.guest-digest"
LABEL_PACKAGES = "org.mcp-code-bridge.image.packages"  # Those of `image build --package`.


_REGISTRY = (
    "pinging container registry", "initializing source docker://", "manifest unknown",
    "pull access denied", "toomanyrequests", "dial tcp", "no such host", "i/o timeout",
    "tls handshake", "connection refused", "request canceled while waiting for connection",
    "temporary failure", "could not resolve",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    id: str
    names: tuple[str, ...] = ()
    size: int = 0
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class ImageEngine:
    """One engine's images; `command` is its own command, led to the same engine."""

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
        done = await self._run([*self._command, "pull", name], timeout=1800.0, on_line=progress)
        if not done.ok:
            message = f"{self.kind} could not pull {name}: {faults.shorten(_told(done))}."
            raise SandboxError(message, code="image_pull_failed")

    async def import_rootfs(self, tarball: Path, *, changes: Sequence[str]) -> str:
        """Make a nameless image of one layer from a root filesystem and return its id."""
        words = [word for change in changes for word in ("--change", change)]
        # The slowest of storage drivers (vfs) unpacks a few hundred megabytes.
        words = [*self._command, "import", *words, str(tarball)]
        done = await self._run(words, timeout=900.0)
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
        words = [*self._command, "build", "--force-rm", "--file", str(context / "Containerfile")]
        words += ["--target", target, "--tag", name]
        words += [word for each in labels.items() for word in ("--label", "=".join(each))]
        done = await self._run([*words, str(context)], timeout=3600.0, on_line=progress)
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


def _names(tags: Iterable[object] | None) -> tuple[str, ...]:
    return tuple(str(tag) for tag in tags or () if "<none>" not in str(tag))


def local_name(flavour: Flavour) -> str:
    return f"{REPOSITORY}:{flavour}"


async def choose(setting: str | None, engine: ImageEngine) -> str:
    """Return the image that a run gets: the one set, else a built one, else the public one."""
    if setting:
        return setting
    built = await engine.names(REPOSITORY)
    names = (local_name(flavour) for flavour in FLAVOURS)
    return next((name for name in names if name in built), DEFAULT_FALLBACK)


async def ensure_present(
    name: str, engine: ImageEngine, *, progress: Progress | None, place: str = "MCP_BRIDGE_IMAGE"
) -> None:
    """Pull an image unless the engine has it; without `progress` that is an error."""
    if await engine.inspect(name) is not None:
        return
    if name.startswith("localhost/"):
        raise SandboxError(f"{engine.kind} has no image {name}.", code="image_missing")
    if progress is None:
        if name == DEFAULT_FALLBACK:
            raise SandboxError(f"{engine.kind} has no runtime image yet.", code="image_missing")
        remedy = f"Run `{engine.kind} pull {name}`."
        message = f"{engine.kind} has no image {name} yet."
        raise SandboxError(message, remedy=remedy, code="image_missing")
    size = " (about 45 MB; a minute on most lines)" if name == DEFAULT_FALLBACK else ""
    progress(f"{engine.kind}: pulling {name}, once{size}")
    try:
        await engine.pull(name, progress=progress)
    except SandboxError as error:
        if name == DEFAULT_FALLBACK or error.code != "image_pull_failed":
            raise
        remedy = f"Check the name in {place}, or unset it."
        raise SandboxError(error.message, remedy=remedy, code="image_pull_failed") from error


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    """One image on one engine, as `image status` shows it."""

    engine: EngineKind
    name: str
    present: bool  # Whether the engine has it; the rest is empty if not.
    id: str = ""
    size: int = 0
    created: str = ""  # ISO 8601, as the engine reports it.
    # From the bridge's labels; empty for other images.
    flavour: str = ""
    version: str = ""
    # Those that `image build --package` added, as they were asked for.
    packages: tuple[str, ...] = ()
    # Whether it contains this bridge's guest, compiled; None for other images.
    guest_matches: bool | None = None
    stale: str = ""  # Why to rebuild it; empty if there is no reason. A stale image still works.


async def describe(
    engine: ImageEngine, name: str, *, guest_digest: str, version: str
) -> ImageStatus:
    facts = await engine.inspect(name)
    if facts is None:
        return ImageStatus(engine=engine.kind, name=name, present=False)
    built, matches, stale = facts.labels.get(LABEL_VERSION), None, ""
    if built is not None:
        matches = facts.labels.get(LABEL_GUEST) == guest_digest
        if built != version:
            stale = f"It was built by recipe {built or 'unknown'}; this bridge has {version}."
        elif not matches:
            stale = "It carries another version's guest, so runs start slower until it is built"
            stale += " again."
    return ImageStatus(
        engine=engine.kind,
        name=name,
        present=True,
        id=facts.id,
        size=facts.size,
        created=facts.created,
        flavour=facts.labels.get(LABEL_FLAVOUR, ""),
        version=built or "",
        packages=tuple(filter(None, facts.labels.get(LABEL_PACKAGES, "").split("|"))),
        guest_matches=matches,
        stale=stale,
    )


async def status(
    engine: ImageEngine, *, guest_digest: str, version: str, setting: str | None = None
) -> tuple[ImageStatus, ...]:
    """Return what `image status` shows of one engine: both flavours, and the image runs get."""
    chosen = await choose(setting, engine)
    names = dict.fromkeys([*(local_name(flavour) for flavour in FLAVOURS), chosen])
    described = partial(describe, engine, guest_digest=guest_digest, version=version)
    return tuple([await described(name) for name in names])
