"""Frames of displayed contents from any program."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.guest.protocol.wire import Shown
from bridge.model import Limits
from bridge.rpc.channel import RedactStream
from bridge.runs.collect.outputs import (
    MAX_ITEMS,
    MAX_PICTURES,
    MAX_TEXT,
    MAX_TEXTS,
    Collected,
    ShownItems,
)
from bridge.store import Store
from tests.png import write_png

PNG = write_png(8, 4, lambda x, y: (x, y, 0))
OTHER = write_png(4, 2, lambda x, y: (x, y, 9))
RUN = "0123456789abcdef" * 2
MEBIBYTE = 1024**2


class Upper:
    """Clears by a rule that shows."""

    def text(self, text: str) -> str:
        return text.replace("secret", "[gone]")

    def frame(self, line: bytes) -> bytes:
        raise NotImplementedError

    def stream(self) -> RedactStream:
        raise NotImplementedError


class Rig:
    """A store, and what takes frames."""

    def __init__(self, root: Path, *, run_bytes: int = 64 * MEBIBYTE, **limits: Any) -> None:
        self.store = ArtifactStore(
            Store(root), total_bytes=64 * MEBIBYTE, run_bytes=run_bytes, days=1
        )
        self.items = ShownItems(Limits(**limits), RunArtifacts(self.store, "me", RUN), Upper())

    async def left(self, *frames: Shown) -> Collected:
        for frame in frames:
            await self.items.add(frame)
        await self.items.finish(left := Collected())
        return left


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def picture(data: bytes = PNG, mime: str = "image/png", **more: Any) -> Shown:
    return Shown(mime, data=data, **more)


async def test_a_picture_is_handed_on_and_kept(rig: Rig) -> None:
    left = await rig.left(picture(note="the font has no secret"))
    (item,) = left.shown
    assert (item.mime_type, item.data, item.width, item.height) == ("image/png", PNG, 8, 4)
    assert item.note == "the font has no [gone]"
    assert item.artifact is not None
    assert rig.store.read("me", item.artifact.uri) == PNG
    assert (item.artifact.kind, item.artifact.name) == ("shown", "shown-1.png")
    # No one needs a link to what is there.
    assert (left.artifacts, left.missing) == ((), ())


async def test_of_a_large_one_the_small_is_handed_on_and_the_original_linked(rig: Rig) -> None:
    small = base64.b64encode(OTHER).decode()
    left = await rig.left(picture(small=small, note="8x4 shown as 4x2"))
    (item,) = left.shown
    assert (item.data, item.width, item.note) == (OTHER, 4, "8x4 shown as 4x2")
    (artifact,) = left.artifacts
    assert artifact == item.artifact
    assert rig.store.read("me", artifact.uri) == PNG


@pytest.mark.parametrize(
    "frame",
    [
        picture(b"<svg onload='x'/>"),
        picture(b"<html><script>x</script></html>"),
        picture(PNG, mime="image/jpeg"),
        picture(PNG, mime="text/html"),
        picture(PNG, mime="image/svg+xml"),
        picture(PNG[:-4]),
        picture(PNG + b"<script>"),
        Shown("image/png", small=base64.b64encode(b"<svg/>").decode()),
        picture(PNG, small=base64.b64encode(b"<svg/>").decode(), note="shown as less"),
        picture(PNG, small="*"),
    ],
)
async def test_what_is_not_the_picture_that_it_says_reaches_no_one(rig: Rig, frame: Shown) -> None:
    left = await rig.left(frame)
    assert [item for item in left.shown if item.data] == []
    assert [loss.name for loss in left.missing] == ["shown 1"]
    assert rig.store.find_all("me") == ()


async def test_the_budget_is_the_host_s_own(tmp_path: Path) -> None:
    size = len(base64.b64encode(PNG))
    left = await Rig(tmp_path, shown_bytes=2 * size + 8).left(*[picture()] * 4)
    assert [bool(item.data) for item in left.shown] == [True, True, False, False]
    assert left.shown[2].note.startswith("not shown: there is no room")
    assert len(left.artifacts) == 2

    left = await Rig(tmp_path / "b").left(*[picture(OTHER)] * (MAX_PICTURES + 1))
    assert [bool(item.data) for item in left.shown] == [True] * MAX_PICTURES + [False]


async def test_a_flood_is_counted(rig: Rig) -> None:
    left = await rig.left(*[Shown("text/plain", text="x")] * 30_000, picture())
    assert len(left.shown) == MAX_ITEMS
    (loss,) = left.missing
    assert loss.why.startswith("29,981 more, beyond the 20 things")
    # It was the last of this run.
    await rig.items.add(picture())
    assert rig.store.find_all("me") == ()


async def test_sixteen_megabytes_of_something_are_neither_shown_nor_kept(rig: Rig) -> None:
    noise = b"\x89PNG\r\n\x1a\n" + bytes(12 * MEBIBYTE)
    left = await rig.left(Shown("image/png", data=noise))
    assert (left.shown, left.artifacts) == ((), ())
    assert left.missing[0].why == "it is a broken picture, or one of too many pixels"


async def test_texts_are_cleared_bounded_and_kept_where_they_are_cut(rig: Rig) -> None:
    long = "secret " + "x" * 2 * MAX_TEXT
    left = await rig.left(
        Shown("text/markdown", text="| a secret |"),
        Shown("text/markdown", text=long),
        Shown("application/x-thing", text="\ud800 thing"),
        Shown("text/plain"),
    )
    short, cut, odd = left.shown
    assert (short.mime_type, short.text, short.artifact) == ("text/markdown", "| a [gone] |", None)
    assert len(cut.text) == MAX_TEXT
    assert cut.note == "8,000 of 16,007 characters"
    assert cut.artifact is not None
    kept = rig.store.read("me", cut.artifact.uri).decode()
    assert kept == long.replace("secret", "[gone]")
    assert odd.mime_type == "text/plain"
    odd.text.encode()
    assert [loss.name for loss in left.missing] == ["shown 4"]


async def test_all_texts_together_are_bounded(rig: Rig) -> None:
    left = await rig.left(*[Shown("text/plain", text="x" * MAX_TEXT)] * 10)
    assert sum(len(item.text) for item in left.shown) == MAX_TEXTS


async def test_pages_and_drawings_become_text_and_are_kept_as_they_are(rig: Rig) -> None:
    page = "<table><tr><td>a</td><td>secret</td></tr></table><script>go()</script>"
    drawing = "<svg><script>go()</script><text>Total</text></svg>"
    icon = "<svg><circle r='2'/></svg>"
    left = await rig.left(
        Shown("text/html", text=page),
        Shown("image/svg+xml", text=drawing),
        Shown("image/svg+xml", text=icon),
    )
    table, words, source = left.shown
    assert (table.mime_type, table.text, table.note) == (
        "text/plain",
        "a | [gone]",
        "the text of a page",
    )
    assert (words.text, words.note) == ("Total", "the words in a drawing (SVG)")
    assert (source.mime_type, source.text, source.artifact) == ("image/svg+xml", icon, None)
    assert [artifact.mime_type for artifact in left.artifacts] == ["text/html", "image/svg+xml"]
    assert "[gone]" in rig.store.read("me", left.artifacts[0].uri).decode()


async def test_a_full_store_costs_the_original_and_says_so(tmp_path: Path) -> None:
    small = base64.b64encode(OTHER).decode()
    left = await Rig(tmp_path, run_bytes=10).left(
        picture(), picture(small=small, note="smaller"), picture(note="not shown: no PIL")
    )
    assert [item.data for item in left.shown] == [PNG, OTHER, PNG]
    assert [item.note for item in left.shown] == ["", "smaller", ""]
    assert all(item.artifact is None for item in left.shown)
    assert [loss.name for loss in left.missing] == ["shown 2"]
    assert "the original is not kept" in left.missing[0].why


async def test_a_note_is_one_short_line(rig: Rig) -> None:
    left = await rig.left(picture(note="a\x1b[31m\n\nb" + "x" * 5000))
    assert left.shown[0].note.startswith("a\\x1b[31m b")
    assert len(left.shown[0].note) == 300


async def test_a_page_with_nothing_to_read_is_kept_and_called_that(rig: Rig) -> None:
    left = await rig.left(Shown("text/html", text="<div id=1></div><script>draw()</script>"))
    (item,) = left.shown
    assert (item.mime_type, item.text) == ("text/html", "")
    assert "nothing to read" in item.note
    assert left.artifacts == (item.artifact,)
