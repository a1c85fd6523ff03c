"""The runtime image: its names and labels, which one a run uses, and its status.

Decides among the setting, a built image and the public image. `image_build` builds; `image_engine`
speaks to engines.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bridge.errors import ImageMissingError, ImagePullError
from bridge.sandbox.container.facts import EngineKind
from bridge.sandbox.container.image_engine import ImageEngine, ImageFacts, Progress

Flavour = Literal["slim", "data"]

FLAVOURS: tuple[Flavour, ...] = ("data", "slim")
"""In the order in which a built one is chosen: who built `data` has a use for its packages, and
it holds all that `slim` does."""

DEFAULT_FALLBACK = "python:3.13-slim"
"""What runs get when nothing was built and nothing set."""

REPOSITORY = "localhost/mcp-code-bridge-runtime"
"""One name for both engines. podman gives `localhost/` to what it builds, and completes a bare name
with a registry's; Docker takes the prefix as it is, and neither ever pulls from it."""

LABEL_FLAVOUR = "org.mcp-code-bridge.image.flavour"
LABEL_VERSION = "org.mcp-code-bridge.image.version"
LABEL_GUEST = "org.mcp-code-bridge.guest-digest"

LEFTOVER_SECONDS = 6 * 3600.0
"""Age at which an unfinished build's name is taken for a dead one's; a build is bounded by less."""

_PARTIAL = re.compile(rf"{re.escape(REPOSITORY)}:(?:slim|data)-new-(?P<at>\d{{1,12}})-[0-9a-f]+")


def local_name(flavour: Flavour) -> str:
    """Return what `image build` calls its result."""
    return f"{REPOSITORY}:{flavour}"


def partial_name(flavour: Flavour, *, now: float) -> str:
    """Return a name of its own for an image that is not finished."""
    return f"{REPOSITORY}:{flavour}-new-{int(now)}-{secrets.token_hex(4)}"


def leftovers(names: Sequence[str], *, now: float) -> tuple[str, ...]:
    """Return the names that builds which never finished have left behind."""
    return tuple(
        name
        for name in names
        if (match := _PARTIAL.fullmatch(name)) and now - int(match["at"]) > LEFTOVER_SECONDS
    )


def resolve(setting: str | None, present: Callable[[str], bool]) -> str:
    """Return the image a run gets: the one set, else one that was built, else the public one.

    Args:
        setting: MCP_BRIDGE_IMAGE; empty or None when unset.
        present: Whether the engine holds an image of that name.
    """
    if setting:
        return setting
    for flavour in FLAVOURS:
        if present(local_name(flavour)):
            return local_name(flavour)
    return DEFAULT_FALLBACK


async def choose(setting: str | None, engine: ImageEngine) -> str:
    """Return the image a run gets on `engine`; see `resolve`."""
    if setting:
        return setting
    names = await engine.names(REPOSITORY)
    return resolve(None, lambda name: name in names)


async def ensure_present(
    name: str, engine: ImageEngine, *, progress: Progress, place: str = "MCP_BRIDGE_IMAGE"
) -> None:
    """Have the engine hold the image, fetching it if need be.

    Call it outside of a run's timeout: a fetch takes minutes on a slow line.

    Args:
        place: Where the image is set, for errors.

    Raises:
        ImageMissingError: It is a local name, which nobody serves.
        ImagePullError: It could not be fetched.
    """
    if await engine.inspect(name) is not None:
        return
    if name.startswith("localhost/"):
        raise ImageMissingError(f"{engine.kind} has no image {name}.")
    progress(f"{engine.kind}: pulling {name}")
    try:
        await engine.pull(name, progress=progress)
    except ImagePullError as error:
        if name == DEFAULT_FALLBACK:
            raise
        remedy = f"Check the name in {place}, or unset it."
        raise ImagePullError(error.message, remedy=remedy) from error


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    """One image on one engine, as `image status` tells it.

    Attributes:
        present: Whether the engine holds it; the rest is empty when not.
        created: ISO 8601, as the engine gives it.
        flavour, version: From our labels; empty for images that are not ours.
        guest_matches: Whether it carries this bridge's guest, compiled; None for foreign images.
        stale: Why a rebuild is worth while; empty when it is not.
    """

    engine: EngineKind
    name: str
    present: bool
    id: str = ""
    size: int = 0
    created: str = ""
    flavour: str = ""
    version: str = ""
    guest_matches: bool | None = None
    stale: str = ""


def describe(
    engine: EngineKind,
    name: str,
    facts: ImageFacts | None,
    *,
    guest_digest: str,
    version: str,
) -> ImageStatus:
    """Return the status of an image from what the engine knows of it.

    A stale image still works: the guest that a run uses is always the bridge's own, and one that
    the image carries is only taken when its digest is the same.
    """
    if facts is None:
        return ImageStatus(engine=engine, name=name, present=False)
    ours = LABEL_VERSION in facts.labels
    matches = facts.labels.get(LABEL_GUEST) == guest_digest if ours else None
    return ImageStatus(
        engine=engine,
        name=name,
        present=True,
        id=facts.id,
        size=facts.size,
        created=facts.created,
        flavour=facts.labels.get(LABEL_FLAVOUR, ""),
        version=facts.labels.get(LABEL_VERSION, ""),
        guest_matches=matches,
        stale=_stale(facts.labels, matches, version) if ours else "",
    )


async def status(
    engine: ImageEngine, *, guest_digest: str, version: str, setting: str | None = None
) -> tuple[ImageStatus, ...]:
    """Return what `image status` shows of one engine: both flavours, and the image runs get."""
    chosen = await choose(setting, engine)
    names = dict.fromkeys([*(local_name(flavour) for flavour in FLAVOURS), chosen])
    return tuple(
        [
            describe(
                engine.kind,
                name,
                await engine.inspect(name),
                guest_digest=guest_digest,
                version=version,
            )
            for name in names
        ]
    )


def _stale(labels: Mapping[str, str], matches: bool | None, version: str) -> str:
    built = labels.get(LABEL_VERSION, "")
    if built != version:
        return f"It was built by recipe {built or 'unknown'}; this bridge has {version}."
    if not matches:
        return "It carries another version's guest, so runs start slower until it is built anew."
    return ""
