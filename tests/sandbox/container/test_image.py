"""Names, the choice of an image, and what is said about one. No engine is involved."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from bridge.errors import SandboxError
from bridge.sandbox.bundle import guest_digest
from bridge.sandbox.container.endpoints import EngineKind
from bridge.sandbox.container.image import (
    DEFAULT_FALLBACK,
    LABEL_FLAVOUR,
    LABEL_GUEST,
    LABEL_VERSION,
    REPOSITORY,
    ImageEngine,
    ImageFacts,
    Progress,
    choose,
    describe,
    ensure_present,
    local_name,
    status,
)
from tests.raised import raises_code

OURS = {LABEL_FLAVOUR: "slim", LABEL_VERSION: "3", LABEL_GUEST: guest_digest()}


@dataclass
class FakeImages(ImageEngine):
    kind: EngineKind = "podman"
    images: dict[str, ImageFacts] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)
    reachable: bool = True

    async def inspect(self, name: str) -> ImageFacts | None:
        return self.images.get(name)

    async def names(self, repository: str) -> frozenset[str]:
        return frozenset(n for n in self.images if n.rpartition(":")[0] == repository)

    async def pull(self, name: str, *, progress: Progress) -> None:
        if not self.reachable:
            raise SandboxError(f"podman could not pull {name}.", code="image_pull_failed")
        self.pulled.append(name)
        self.images[name] = ImageFacts(id="pulled")


@pytest.mark.parametrize(
    ("setting", "built", "chosen"),
    [
        ("registry.example/mine:1", {"slim", "data"}, "registry.example/mine:1"),
        ("", {"slim"}, f"{REPOSITORY}:slim"),
        (None, {"data"}, f"{REPOSITORY}:data"),
        (None, {"slim", "data"}, f"{REPOSITORY}:data"),
        (None, set(), DEFAULT_FALLBACK),
    ],
)
async def test_the_set_image_comes_first_then_a_built_one_then_the_public_one(
    setting: str | None, built: set[str], chosen: str
) -> None:
    names = {f"{REPOSITORY}:{flavour}" for flavour in built}
    engine = FakeImages(images={name: ImageFacts(id=name) for name in names})
    assert await choose(setting, engine) == chosen


@pytest.mark.parametrize(
    ("name", "progress", "error"),
    [
        ("there:1", print, ""),
        ("there:1", None, ""),
        # A model's call does not wait for an image.
        (DEFAULT_FALLBACK, None, r"no runtime image yet.*image build"),
        ("own:2", None, r"no image own:2 yet.*podman pull own:2"),
        (local_name("slim"), print, "image build"),
    ],
)
async def test_what_is_there_or_must_not_be_pulled_is_never_asked_of_a_registry(
    name: str, progress: Progress | None, error: str
) -> None:
    engine = FakeImages(images={"there:1": ImageFacts(id="1")})
    with pytest.raises(SandboxError, match=error) if error else nullcontext():
        await ensure_present(name, engine, progress=progress)
    assert engine.pulled == []


async def test_a_missing_public_image_is_fetched_or_points_to_the_offline_build() -> None:
    engine, lines = FakeImages(), list[str]()
    await ensure_present(DEFAULT_FALLBACK, engine, progress=lines.append)
    assert engine.pulled == [DEFAULT_FALLBACK]
    said = f"podman: pulling {DEFAULT_FALLBACK}, once (about 45 MB; a minute on most lines)"
    assert lines == [said]
    with raises_code("image_pull_failed", match="image build --offline"):
        await ensure_present(DEFAULT_FALLBACK, FakeImages(reachable=False), progress=print)


@pytest.mark.parametrize(
    ("labels", "matches", "stale"),
    [
        (OURS, True, ""),
        ({**OURS, LABEL_GUEST: "old"}, False, "another version's guest"),
        ({LABEL_FLAVOUR: "slim", LABEL_VERSION: "3"}, False, "another version's guest"),
        ({**OURS, LABEL_VERSION: "2"}, True, "built by recipe 2"),
        ({"maintainer": "somebody"}, None, ""),
    ],
)
async def test_an_image_is_stale_when_its_recipe_or_its_guest_is_not_this_bridges(
    labels: dict[str, str], matches: bool | None, stale: str
) -> None:
    facts = ImageFacts(id="1", size=2, created="2026-01-01T00:00:00Z", labels=labels)
    engine = FakeImages(images={"x": facts})
    told = await describe(engine, "x", "3")
    assert told.present
    assert told.guest_matches is matches
    assert (stale in told.stale) if stale else (told.stale == "")


async def test_the_status_names_both_flavours_and_the_image_that_runs_get() -> None:
    engine = FakeImages(images={DEFAULT_FALLBACK: ImageFacts(id="1")})
    told = await status(engine, "3")
    assert [(one.name, one.present) for one in told] == [
        (local_name("data"), False),
        (local_name("slim"), False),
        (DEFAULT_FALLBACK, True),
    ]
    set_one = await status(engine, "3", local_name("slim"))
    assert len(set_one) == 2
