"""A program's output on the host: what is shown, what is kept, and what is said where it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.gate.redaction import Redactor
from bridge.guest.protocol.wire import Output
from bridge.model import MEBIBYTE, Limits
from bridge.runs.collect.collector import AT_ONCE_BYTES, MEMORY_BYTES, Streams, terminal_view
from bridge.runs.collect.outputs import Collected
from bridge.store import Store

LIMITS = Limits(output_tokens=1000)
RUN = "0" * 32
SECRET = "correct-horse-battery-staple"


def store_in(path: Path, run_bytes: int = 64 * MEBIBYTE) -> ArtifactStore:
    return ArtifactStore(Store(path / "kept"), total_bytes=1 << 30, run_bytes=run_bytes, days=1)


async def written(
    store: ArtifactStore | None, *frames: Output, limits: Limits = LIMITS
) -> Collected:
    artifacts = None if store is None else RunArtifacts(store, "", RUN)
    streams = Streams(limits, None, artifacts, Redactor({SECRET: "TOKEN of x"}))
    for frame in frames:
        await streams.add(frame)
    await streams.finish(left := Collected())
    return left


def all_of(store: ArtifactStore) -> bytes:
    return store.read("", f"bridge://runs/{RUN}/stdout")


async def test_what_can_be_shown_is_not_kept(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    left = await written(store, Output("stdout", b"out\n"), Output("stderr", b"err\n"))
    assert (left.stdout, left.stderr, left.dropped) == ("out\n", "err\n", {})
    assert left.artifacts == ()
    assert not (tmp_path / "kept").exists()


@example_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([("\x80²¹", 1)])  # its beginning costs more than all of it
@given(st.lists(st.tuples(st.text(max_size=30), st.integers(1, 400)), max_size=30))
async def test_head_and_tail_and_what_is_kept_are_what_was_written(
    tmp_path: Path, pieces: list[tuple[str, int]]
) -> None:
    store = store_in(tmp_path)
    store.remove_all(None)
    texts = [(text * times).encode() for text, times in pieces]
    left = await written(store, *(Output("stdout", text) for text in texts))
    whole = b"".join(texts)
    shown = terminal_view(whole).decode()
    if not left.artifacts:
        assert left.stdout == shown
        return
    head, _, rest = left.stdout.partition("[… ")
    _, _, tail = rest.rpartition(" …]\n")
    assert all_of(store) == whole
    assert left.dropped["stdout"] < len(whole)
    if len(whole) <= MEMORY_BYTES or shown == whole.decode():
        assert shown.startswith(head.removesuffix("\n"))
        assert shown.endswith(tail)


async def test_bars_and_repeated_lines_take_a_line_and_are_kept_raw(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    bars = b"".join(b"\r%d%%|%s|" % (n, b"#" * n) for n in range(101))
    left = await written(store, Output("stderr", bars + b"\n" + b"findfont: none\n" * 81))
    assert left.stderr == f"100%|{'#' * 100}|\nfindfont: none (81 times)\n"
    assert left.artifacts == ()
    numbers = b"".join(b"%d\n" % n for n in range(5000))
    left = await written(store, Output("stdout", bars + numbers))
    assert left.stdout.startswith(f"100%|{'#' * 100}|0\n1\n")
    assert all_of(store) == bars + numbers
    left = await written(store, Output("stdout", bars * 200))
    head, _, tail = left.stdout.splitlines()
    assert set(head + tail) <= set("0123456789%|#")
    assert all_of(store) == bars * 200


@pytest.mark.parametrize("split", [b"\x1b[0m", b"x\b", b"\x1b[K", b"\x1b]0;t\x07"])
async def test_no_secret_is_made_whole_by_what_a_terminal_ignores(split: bytes) -> None:
    """The raw stream is searched piece by piece, where the secret is in two parts."""
    left = await written(None, Output("stdout", b"correct-horse" + split + b"-battery-staple\n"))
    assert left.stdout == "[redacted: TOKEN of x]\n"


@pytest.mark.parametrize("size", [5_000, 127_000, 128 * 1024, 1_000_000, 5_000_000])
async def test_a_stream_of_any_length_is_kept_whole(tmp_path: Path, size: int) -> None:
    store = store_in(tmp_path)
    text = "".join(f"{number}\n" for number in range(size // 6))
    pieces = [text[at : at + 65536] for at in range(0, len(text), 65536)]
    left = await written(store, *(Output("stdout", piece.encode()) for piece in pieces))
    assert all_of(store).decode() == text
    [artifact] = left.artifacts
    assert (artifact.kind, artifact.size) == ("stdout", len(text))
    assert left.stdout.startswith("0\n1\n")
    assert left.stdout.endswith(text[-20:])
    shown = len(left.stdout.encode()) - len(left.stdout[left.stdout.index("[…") :].split("\n")[0])
    assert shown + left.dropped["stdout"] == pytest.approx(len(text), abs=10)


async def test_a_secret_in_two_pieces_is_neither_shown_nor_kept(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    unit = f"{'x' * 50}{SECRET}\n"
    text = unit * 5000
    for step in (1009, 4096, 65536):
        store.remove_all(None)
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        left = await written(store, *(Output("stdout", piece.encode()) for piece in pieces))
        kept = all_of(store).decode()
        assert kept == text.replace(SECRET, "[redacted: TOKEN of x]")
        assert SECRET[:12] not in kept + left.stdout


async def test_a_gap_of_the_guests_is_told_about_and_counted(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    half = "x" * 200_000
    left = await written(
        store,
        Output("stdout", half.encode()),
        Output("stdout", f"{half}\nend\n".encode(), skipped=1_000_000),
    )
    assert all_of(store) == f"{half}\n[… 1,000,000 bytes dropped …]\n{half}\nend\n".encode()
    assert "1,000,000 of them dropped …]\n" in left.stdout
    assert 1_390_000 < left.dropped["stdout"] < 1_400_005


async def test_a_guest_that_sends_more_than_it_may_loses_the_rest(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    limits = replace(LIMITS, output_bytes=200_000)
    flood = [Output("stdout", b"x" * 50_000)] * 10
    left = await written(store, *flood, limits=limits)
    assert len(all_of(store)) == 200_000
    assert "300,000 of them dropped" in left.stdout
    [loss] = left.missing
    assert (loss.name, loss.why.partition(":")[0]) == ("stdout", "300,000 bytes of it")


async def test_without_room_the_beginning_is_kept_and_the_result_says_so(tmp_path: Path) -> None:
    store = store_in(tmp_path, run_bytes=200_000)
    left = await written(store, *[Output("stdout", b"x" * 65_536)] * 10)
    kept = len(all_of(store))
    assert 100_000 < kept <= 200_000
    assert f"{655_360 - kept:,} of them dropped" in left.stdout
    [loss] = left.missing
    assert (loss.name, "200,000 bytes" in loss.why) == ("stdout", True)


async def test_without_a_store_the_middle_is_dropped_and_the_result_says_so(tmp_path: Path) -> None:
    nowhere = tmp_path / "kept"
    nowhere.write_text("a file, no directory")
    for store in (store_in(tmp_path), None):
        left = await written(store, *[Output("stderr", b"line\n" * 10_000)] * 10)
        assert left.artifacts == ()
        assert " dropped …]" in left.stderr
        assert left.stderr.endswith("line (250 times)\n")
        assert [loss.name for loss in left.missing] == (["stderr"] if store else [])


async def test_the_streams_share_the_budget(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    out = b"".join(b"out %d\n" % n for n in range(10_000))
    left = await written(store, Output("stdout", out), Output("stderr", b"a warning\n" * 9))
    assert left.stderr == "a warning\n" * 9
    assert [artifact.kind for artifact in left.artifacts] == ["stdout"]


async def test_what_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    streams = Streams(LIMITS, None, RunArtifacts(store, "", RUN), Redactor({}))
    for _ in range(10):
        await streams.add(Output("stdout", b"x" * 65_536))
    streams.discard()
    assert store.find_all(None) == ()
    assert [path for path in (tmp_path / "kept").rglob("*") if path.stat().st_size > 60_000] == []


async def test_others_have_their_turn_while_a_large_piece_is_taken() -> None:
    streams = Streams(LIMITS, None, None, Redactor({SECRET: "TOKEN of x"}))
    before = "x" * (AT_ONCE_BYTES - len(SECRET) // 2)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await streams.add(
            Output("stdout", f"{before}{SECRET}{'y' * 3 * AT_ONCE_BYTES}end".encode())
        )
        tasks.cancel_scope.cancel()
    assert turns >= 4
    await streams.finish(left := Collected())
    assert left.stdout.endswith("yend")
    size = len(before) + len("[redacted: TOKEN of x]") + 3 * AT_ONCE_BYTES + len("end")
    assert left.dropped["stdout"] + len(left.stdout.replace(_notice(left.stdout), "")) == size


def _notice(text: str) -> str:
    start = text.index("\n[\u2026")
    return text[start : text.index("\u2026]\n") + 3]
