"""The runtime image: its names and labels, the choice for runs, and its status."""

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
from bridge.sandbox.container.endpoints import EngineKind

Progress = Callable[[str], None]
Flavour = Literal["slim", "data"]

# In order of preference: a user who built `data` needs its packages.
FLAVOURS: tuple[Flavour, ...] = ("data", "slim")

DEFAULT_FALLBACK = "python:3.13-slim"  # The image of runs if none was built and none is set.

# podman's prefix of built images, which docker accepts. Neither pulls from it.
REPOSITORY = "localhost/mcp-code-bridge-runtime"

LABEL_FLAVOUR = "org.mcp-code-bridge.image.flavour"
LABEL_VERSION = "org.mcp-code-bridge.image.version"
LABEL_GUEST = "org.mcp-code-bridge.guest-digest"
LABEL_PACKAGES = "org.mcp-code-bridge.image.packages"  # From `image build --package`.


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
    """One engine's images; `command` is its command line with the same address."""

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
        images = await self._api.ask("list images", self._api.client.images)
        return frozenset(
            name
            for image in images
            for name in _names(image.get("RepoTags"))
            if name.rpartition(":")[0] == repository
        )

    async def pull(self, name: str, *, progress: Progress) -> None:
        done = await self._run([*self._command, "pull", name], timeout=1800.0, on_line=progress)
        if not done.ok:
            message = f"{self.kind} could not pull {name}: {faults.one_line(_reason(done))}."
            raise SandboxError(message, code="image_pull_failed")

    async def import_rootfs(self, tarball: Path, *, changes: Sequence[str]) -> str:
        words = [word for change in changes for word in ("--change", change)]
        # The slowest storage driver (vfs) unpacks a few hundred megabytes.
        words = [*self._command, "import", *words, str(tarball)]
        done = await self._run(words, timeout=900.0)
        ids = re.findall(r"[0-9a-f]{64}", done.stdout)
        if not done.ok or not ids:
            raise build_failure(self.kind, f"import {tarball.name}", _reason(done))
        return str(ids[-1])

    async def build(
        self,
        context: Path,
        name: str,
        *,
        target: str,
        labels: Mapping[str, str],
        progress: Progress,
    ) -> None:
        words = [*self._command, "build", "--force-rm", "--file", str(context / "Containerfile")]
        words += ["--target", target, "--tag", name]
        words += [word for each in labels.items() for word in ("--label", "=".join(each))]
        done = await self._run([*words, str(context)], timeout=3600.0, on_line=progress)
        if not done.ok:
            raise build_failure(self.kind, f"build {name}", _reason(done))

    async def tag(self, name: str, new: str) -> None:
        """Give an image another name and tag, which an earlier image loses."""
        repository, _, tag = new.rpartition(":")
        await self._api.ask("tag an image", self._api.client.tag, name, repository, tag)

    async def remove(self, name: str) -> None:
        """Remove a name or id, and with the last name the image, unless it is in use."""
        # `image prune` removes an image that a container uses.
        harmless = (faults.is_no_image, faults.is_in_use)
        remove = self._api.client.remove_image
        await self._api.ask("remove an image", remove, name, harmless=harmless)


def _reason(done: CompletedCommand) -> str:
    if done.timed_out:
        return "it did not finish in time"
    return done.stderr.strip() or done.stdout.strip() or "it named no image"


def build_failure(engine: str, doing: str, output: str) -> SandboxError:
    low = output.lower()
    remedy = "Run `mcp-code-bridge doctor` to see whether the engine works at all."
    if "no space left on device" in low or "disk quota exceeded" in low:
        remedy = f"Free space where {engine} keeps its images (`{engine} system df`)."
    elif any(mark in low for mark in _REGISTRY):
        remedy = "Run `mcp-code-bridge image build --offline`, which needs no registry."
    message = f"{engine} could not {doing}: {faults.one_line(output[-faults.MAX_DETAIL :])}."
    return SandboxError(message, remedy=remedy, code="image_build_failed")


def _names(tags: Iterable[object] | None) -> tuple[str, ...]:
    return tuple(str(tag) for tag in tags or () if "<none>" not in str(tag))


def local_name(flavour: Flavour) -> str:
    return f"{REPOSITORY}:{flavour}"


async def choose(setting: str | None, engine: ImageEngine) -> str:
    """Return the image of runs: the configured one, else a built one, else the public one."""
    if setting:
        return setting
    built = await engine.names(REPOSITORY)
    names = (local_name(flavour) for flavour in FLAVOURS)
    return next((name for name in names if name in built), DEFAULT_FALLBACK)


async def ensure_present(
    name: str, engine: ImageEngine, *, progress: Progress | None, place: str = "MCP_BRIDGE_IMAGE"
) -> None:
    """Pull a missing image; without `progress` a missing image is an error."""
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
    engine: EngineKind
    name: str
    present: bool  # If not, the other fields are empty.
    id: str = ""
    size: int = 0
    created: str = ""  # The engine's text, in ISO 8601.
    # From the bridge's labels; empty for other images.
    flavour: str = ""
    version: str = ""
    packages: tuple[str, ...] = ()  # The requirements of `image build --package`.
    # Whether it contains this bridge's compiled guest; None for other images.
    guest_matches: bool | None = None
    stale: str = ""  # The reason to rebuild it, if any. A stale image still works.


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
            stale = "It has another version's guest, so runs start slower until it is rebuilt."
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
    chosen = await choose(setting, engine)
    names = dict.fromkeys([*(local_name(flavour) for flavour in FLAVOURS), chosen])
    described = partial(describe, engine, guest_digest=guest_digest, version=version)
    return tuple([await described(name) for name in names])
