"""`File` frames that no honest supervisor sends: each costs its own file, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.gate.redaction import Redactor
from bridge.guest.protocol.wire import Call, Done, Exited, File
from bridge.model import Limits
from bridge.runs.collect.collector import Collector
from bridge.runs.collect.outputs import MAX_ITEMS, MAX_PART, Collected
from bridge.runs.program import COLLECT_SECONDS, GRACE_SECONDS, ProgramEnd
from bridge.sandbox.failure import classify
from bridge.store import Store
from tests.runs.scripted import Scripted, carried_out

pytestmark = pytest.mark.guarantee("files-believed")

RUN = "0123456789abcdef"
LIMITS = Limits(out_bytes=1000, out_files=5, timeout=5)


def store(tmp_path: Path, run_bytes: int = 1 << 20) -> ArtifactStore:
    return ArtifactStore(Store(tmp_path / "kept"), total_bytes=1 << 30, run_bytes=run_bytes, days=1)


def part(name: str, data: bytes = b"x", **more: Any) -> File:
    return File(name=name, data=data, **more)


PLAIN = Redactor({})


async def taken(
    kept: ArtifactStore, frames: Iterable[File], limits: Limits = LIMITS, clear: Any = PLAIN
) -> tuple[Collected, Mapping[str, bytes], Mapping[str, str]]:
    """Take frames; return what is left, each file's content, and why others are missing."""
    collector = Collector(limits, artifacts=RunArtifacts(kept, "me", RUN), clear=clear)
    for frame in frames:
        await collector.add(frame)
    left = await collector.finish()
    files = {one.name: kept.read("me", one.uri) for one in left.artifacts}
    listed = {one.uri for one in kept.find_all("me")}
    assert listed == {one.uri for one in left.artifacts}
    # Nothing that was begun and not finished stays on the disk.
    assert not list((kept.blobs.root.parent / "blobs" / "writing").glob("*"))
    return left, files, {loss.name: loss.why for loss in left.missing}


BAD_NAMES = (
    *("", "/etc/passwd", "../../up", "..//up", "a/../../b", "a//b", "./a", "a/", ".", "..", "a\\b"),
    *("new\nline", "nul\0", "bell\x07", "\x9b", "\udc80", "\u202egnp.exe", "\u2028"),
    *("x" * 256, "d/" * 10 + "deep", "/".join(["x" * 250] * 5)),
)


async def test_no_name_leads_out_of_a_directory_or_deceives_a_reader(tmp_path: Path) -> None:
    for name in BAD_NAMES:
        _, files, missing = await taken(
            store(tmp_path), [part(name, more=True), part(name), part(name)]
        )
        assert not files, name
        assert len(missing) == 1, missing
        [(shown, why)] = missing.items()
        assert why.startswith("its name "), why
        assert shown.isprintable(), shown
        assert len(shown) <= 600, shown


async def test_what_is_kept_is_told_from_the_bytes_that_came(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(16)
    left, files, missing = await taken(
        store(tmp_path),
        [
            part("a.csv", b"1,", size=-5, more=True),
            part("a.csv", b"2\n", size=1 << 50),
            part("page.html", png, size=7),
            part("empty", b"", size=9),
        ],
    )
    assert files == {"a.csv": b"1,2\n", "page.html": png, "empty": b""}
    assert not missing
    found = {one.name: one for one in left.artifacts}
    assert found["a.csv"].digest == hashlib.sha256(b"1,2\n").hexdigest()
    assert (found["a.csv"].size, found["a.csv"].mime_type) == (4, "text/csv")
    # What a browser would make of it, is told from what it is.
    assert found["page.html"].mime_type == "image/png"


async def test_parts_out_of_order_cost_their_own_file_alone(tmp_path: Path) -> None:
    _, files, missing = await taken(
        store(tmp_path),
        [
            part("a", more=True),
            part("b", more=True),
            part("a"),
            part("b"),
            part("good", b"1"),
            part("good", b"2"),
            part("late", more=True),
            File(name="late", data=bytes(MAX_PART + 1), more=True),
            part("late"),
            part("empty part", more=True),
            File(name="empty part", more=True),
            part("never", more=True),
        ],
        Limits(out_bytes=1000, out_files=100),
    )
    assert files == {"good": b"1"}
    assert missing == {
        "a": "it came twice; the first is kept",
        "b": "it came twice; the first is kept",
        "good": "it came twice; the first is kept",
        "late": "a part of it is too large",
        "empty part": "a part of it is empty",
        "never": "it did not come whole",
    }


async def test_quotas_hold_whatever_comes(tmp_path: Path) -> None:
    kept = store(tmp_path)
    endless = [part("endless", bytes(300), more=True) for _ in range(50)]
    _, files, missing = await taken(kept, [*endless, part("small", b"x")])
    # It has used the run's share up, and nothing of it is there.
    assert files == {}
    assert "more bytes" in missing["endless"]
    assert "more bytes" in missing["small"]

    _, files, missing = await taken(store(tmp_path / "2"), (part(str(n)) for n in range(100_000)))
    assert len(files) == LIMITS.out_files
    assert missing == {"out": "there are more files than a run may leave"}

    huge = [part("huge", bytes(MAX_PART + 3))]
    _, files, missing = await taken(store(tmp_path / "3"), huge, Limits())
    assert missing == {"huge": "a part of it is too large"}

    # Other outputs of the run count towards the same limit.
    narrow = store(tmp_path / "4", run_bytes=10)
    _, files, missing = await taken(narrow, [part("a", bytes(11)), part("b", bytes(9))])
    assert list(files) == ["b"]
    assert "MCP_BRIDGE_ARTIFACT_RUN_BYTES" in missing["a"]


async def test_problems_are_told_in_few_short_clean_lines(tmp_path: Path) -> None:
    clear = Redactor({"hunter2hunter2": "PASSWORD of desk"})
    frames = [
        File(name="a", problem="line\nline \x1b[31m hunter2hunter2 " + "x" * 10_000),
        part("hunter2hunter2.txt", b"it is hunter2hunt", more=True),
        part("hunter2hunter2.txt", b"er2\n"),
        *(File(name=str(n), problem="x") for n in range(100)),
    ]
    left, files, missing = await taken(store(tmp_path), frames, clear=clear)
    assert len(left.missing) == MAX_ITEMS + 1
    assert left.missing[-1].why == f"{101 - MAX_ITEMS} more could not be kept"
    assert missing["a"].isprintable()
    assert len(missing["a"]) < 400
    assert "hunter2" not in f"{missing}{files}{left.artifacts}"


async def test_a_store_that_cannot_be_written_to_loses_files_and_no_run(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("in the way")
    collector = Collector(LIMITS, artifacts=RunArtifacts(store(tmp_path), "me", RUN))
    await collector.add(part("a"))
    left = await collector.finish()
    assert left.artifacts == ()
    assert [loss.name for loss in left.missing] == ["a"]


async def test_what_was_begun_is_gone_when_no_one_asks_for_it(tmp_path: Path) -> None:
    kept = store(tmp_path)
    collector = Collector(LIMITS, artifacts=RunArtifacts(kept, "me", RUN))
    await collector.add(part("a", more=True))
    collector.discard()
    assert [path for path in kept.blobs.root.parent.rglob("*") if path.stat().st_size == 1] == []
    assert kept.find_all("me") == ()


def files_carried_out(
    kept: ArtifactStore, *frames: tuple[float, object], asked: bool = False
) -> tuple[ProgramEnd, float]:
    """Carry a program out whose files are kept; return how it ended, and after how long."""
    collector = Collector(LIMITS, artifacts=RunArtifacts(kept, "me", RUN))
    return carried_out(Scripted(*frames), LIMITS, collector=collector, asked=asked)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_files_have_a_time_of_their_own_which_is_bounded(
    tmp_path: Path, done: bool, asked: bool
) -> None:
    first = [(0.0, Done("ok"))] if done else []
    endless = [(1.0, part("a", more=True)) for _ in range(100)]
    end, seconds = files_carried_out(store(tmp_path), *first, *endless, asked=asked)
    assert seconds == pytest.approx(1 + COLLECT_SECONDS)
    # How the program itself ended is known, if it said so.
    assert classify(end.ending, LIMITS).status == ("success" if done else "timeout")
    assert "reading took too long; the rest was left out" in [
        one.why for one in end.collected.missing
    ]
    assert end.collected.artifacts == ()


def test_files_may_come_after_the_deadline(tmp_path: Path) -> None:
    late = [(LIMITS.timeout + GRACE_SECONDS - 0.1, part("a", more=True))]
    late += [(3.0, part("a", more=True))] * 3
    end, _ = files_carried_out(store(tmp_path), *late, (3.0, Exited(timed_out=True)))
    assert end.ending.exited is not None
    assert classify(end.ending, LIMITS).status == "timeout"


def test_no_call_is_made_once_files_come(tmp_path: Path) -> None:
    call = Call(id=1, method="call_tool", params={})
    end, seconds = files_carried_out(store(tmp_path), (0.0, part("a", more=True)), (0.0, call))
    assert "a call after the program's end" in end.ending.protocol_error
    assert seconds < 1
