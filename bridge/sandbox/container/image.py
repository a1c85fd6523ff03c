"""The runtime image: its names and labels, which one a run uses, and its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bridge.errors import ImageMissingError
from bridge.sandbox.container.facts import EngineKind
from bridge.sandbox.container.image_engine import ImageEngine, Progress

Flavour = Literal["slim", "data"]

FLAVOURS: tuple[Flavour, ...] = ("data", "slim")
"""In order of preference if both are built: a user who built `data` needs its packages, and it
contains all of `slim`."""

DEFAULT_FALLBACK = "python:3.13-slim"  # The image of runs if none was built and none is set.

REPOSITORY = "localhost/mcp-code-bridge-runtime"
"""One name for both engines. podman gives `localhost/` to what it builds, and completes a bare name
with a registry's; Docker takes the prefix as it is, and neither ever pulls from it."""

LABEL_FLAVOUR = "org.mcp-code-bridge.image.flavour"
LABEL_VERSION = "org.mcp-code-bridge.image.version"
LABEL_GUEST = "org.mcp-code-bridge.guest-digest"
LABEL_PACKAGES = "org.mcp-code-bridge.image.packages"  # Those of `image build --package`.


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
    """Pull an image unless the engine has it; `place` is where it is set, for errors.

    Without `progress` a missing image is an error: a pull takes minutes on a slow line.
    """
    if await engine.inspect(name) is not None:
        return
    if name.startswith("localhost/"):
        raise ImageMissingError(f"{engine.kind} has no image {name}.")
    if progress is None:
        if name == DEFAULT_FALLBACK:
            raise ImageMissingError(f"{engine.kind} has no runtime image yet.")
        remedy = f"Run `{engine.kind} pull {name}`."
        raise ImageMissingError(f"{engine.kind} has no image {name} yet.", remedy=remedy)
    size = " (about 45 MB; a minute on most lines)" if name == DEFAULT_FALLBACK else ""
    progress(f"{engine.kind}: pulling {name}, once{size}")
    try:
        await engine.pull(name, progress=progress)
    except ImageMissingError as error:
        if name == DEFAULT_FALLBACK:
            raise
        remedy = f"Check the name in {place}, or unset it."
        raise ImageMissingError(error.message, remedy=remedy, code="image_pull_failed") from error


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    """One image on one engine, as `image status` shows it.

    Attributes:
        present: Whether the engine has it; the rest is empty if not.
        created: ISO 8601, as the engine reports it.
        flavour, version: From the bridge's labels; empty for other images.
        packages: Those that `image build --package` added, as they were asked for.
        guest_matches: Whether it contains this bridge's guest, compiled; None for other images.
        stale: Why to rebuild it; empty if there is no reason. A stale image still works.
    """

    engine: EngineKind
    name: str
    present: bool
    id: str = ""
    size: int = 0
    created: str = ""
    flavour: str = ""
    version: str = ""
    packages: tuple[str, ...] = ()
    guest_matches: bool | None = None
    stale: str = ""


async def describe(
    engine: ImageEngine, name: str, *, guest_digest: str, version: str
) -> ImageStatus:
    facts = await engine.inspect(name)
    if facts is None:
        return ImageStatus(engine=engine.kind, name=name, present=False)
    ours = LABEL_VERSION in facts.labels
    matches = facts.labels.get(LABEL_GUEST) == guest_digest if ours else None
    return ImageStatus(
        engine=engine.kind,
        name=name,
        present=True,
        id=facts.id,
        size=facts.size,
        created=facts.created,
        flavour=facts.labels.get(LABEL_FLAVOUR, ""),
        version=facts.labels.get(LABEL_VERSION, ""),
        packages=tuple(filter(None, facts.labels.get(LABEL_PACKAGES, "").split("|"))),
        guest_matches=matches,
        stale=_stale(facts.labels, matches, version) if ours else "",
    )


async def status(
    engine: ImageEngine, *, guest_digest: str, version: str, setting: str | None = None
) -> tuple[ImageStatus, ...]:
    """Return what `image status` shows of one engine: both flavours, and the image runs get."""
    chosen = await choose(setting, engine)
    names = dict.fromkeys([*(local_name(flavour) for flavour in FLAVOURS), chosen])
    told = [
        await describe(engine, name, guest_digest=guest_digest, version=version) for name in names
    ]
    return tuple(told)


def _stale(labels: Mapping[str, str], matches: bool | None, version: str) -> str:
    built = labels.get(LABEL_VERSION, "")
    if built != version:
        return f"It was built by recipe {built or 'unknown'}; this bridge has {version}."
    if not matches:
        return "It carries another version's guest, so runs start slower until it is built again."
    return ""
