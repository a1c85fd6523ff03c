"""The audit log's files: one for each bridge, limited, private, and a chain of hashes."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.errors import AuditError
from bridge.gate.audit.log import AuditLog, RunAudit, before_first, lines, link_record, opened
from bridge.gate.audit.reading import BEGUN, verify
from tests.audit_rig import (
    ALLOWED,
    DAY,
    NOON,
    FakeClock,
    a_call,
    kinds,
    log_paths,
    note,
    records,
    tear,
    whole,
    write,
    wrong,
)
from tests.waiting import PATIENCE_SECONDS

MIDNIGHT = 1_790_035_200.0
"""Between 2026-09-21 and 2026-09-22, in UTC."""


async def test_a_record_is_in_the_file_of_its_day_before_append_returns(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "audit"
    log = AuditLog(directory, now=FakeClock())
    found = await log.append(note("one"))
    (path,) = directory.iterdir()
    data = path.read_bytes()
    assert path.name == "2026-09-21-000001.jsonl"
    assert data.endswith(b'"time":"2026-09-21T14:13:20.000Z","hash":"%b"}\n' % found.encode())
    assert json.loads(data)["seq"] == 1
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, directory)] == [0o600, 0o700]
    log.close()


@pytest.mark.parametrize(
    ("times", "largest", "names"),
    [
        # Midnight.
        ([MIDNIGHT - 0.001, MIDNIGHT], 9999, ["2026-09-21-000001", "2026-09-22-000001"]),
        # A clock that is put back, and a bridge that begins then.
        ([MIDNIGHT, MIDNIGHT - DAY], 9999, ["2026-09-22-000001"]),
        (
            [MIDNIGHT, None, MIDNIGHT - DAY, None, MIDNIGHT - DAY],
            9999,
            ["2026-09-22-000001", "2026-09-22-000002", "2026-09-22-000003"],
        ),
        # Full files.
        ([NOON] * 11, 1, [f"2026-09-21-0000{number:02}" for number in range(1, 12)]),
    ],
)
async def test_another_file_is_begun_that_names_those_before(
    tmp_path: Path, times: list[float | None], largest: int, names: list[str]
) -> None:
    clock = FakeClock()
    log = AuditLog(tmp_path, now=clock, largest=largest)
    hashes: list[str] = []
    for time in times:
        if time is None:
            log.close()
        else:
            clock.now = time
            hashes += await write(log, str(len(hashes)))
    log.close()
    assert _names(tmp_path) == names
    found = records(tmp_path)
    assert [each["hash"] for each in found] == hashes
    before = [{f"{name}.jsonl": [1, head]} for name, head in zip(names, hashes, strict=False)]
    for each, last in zip(found[1:], before, strict=False):
        assert last.items() <= each.get("previous", last).items()
    assert whole(tmp_path).files == len(names)


def _names(directory: Path) -> list[str]:
    return [path.stem for path in log_paths(directory)]


async def test_old_files_are_removed_and_that_is_recorded_and_no_tampering(tmp_path: Path) -> None:
    clock = FakeClock()
    log = AuditLog(tmp_path, now=clock, days=3)
    for day in range(8):
        await write(log, str(day))
        clock.now += DAY
    log.close()
    assert _names(tmp_path)[0] == "2026-09-25-000001"
    whole(tmp_path)
    assert kinds(tmp_path).count("retention") == 4
    # The same file taken away by somebody else is missed.
    log_paths(tmp_path)[0].unlink()
    (found,) = wrong(tmp_path)
    assert (
        "2026-09-25-000001.jsonl: 2026-09-26-000001.jsonl names it, and it does not exist" in found
    )


async def test_a_removal_that_was_recorded_and_not_done_is_done_later(tmp_path: Path) -> None:
    clock = FakeClock()
    log = AuditLog(tmp_path, now=clock, days=1)
    await write(log, "one", "two")
    first = log_paths(tmp_path)[0]
    kept = first.read_bytes()
    clock.now += 3 * DAY
    await write(log, "three")
    assert not first.exists()
    first.write_bytes(kept)
    assert whole(tmp_path).files == 2
    log.close()
    await write(log, "four")
    log.close()
    assert not first.exists()
    assert whole(tmp_path).files == 2


@pytest.mark.parametrize("torn", [b'{"kind":"call","ru\x00\x00', bytes(300_000)])
async def test_an_unfinished_line_is_no_tampering(tmp_path: Path, torn: bytes) -> None:
    """Only of that line nothing is known; what it was for was not done. Some file systems leave
    zeros where a machine lost its power."""
    log = AuditLog(tmp_path, now=FakeClock())
    await write(log, "one")
    log.close()
    tear(tmp_path, torn)
    before = whole(tmp_path)
    assert [(each.line, each.what) for each in before.notes] == [(2, BEGUN)]
    await write(log, "two")
    log.close()
    assert kinds(tmp_path) == ["run"] * 2
    assert whole(tmp_path).notes == before.notes


async def test_with_sync_records_are_written_to_the_disk(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, now=FakeClock(), sync=True, largest=700)
    await log.append(note("first"))
    assert log._file is not None
    assert fcntl.fcntl(log._file.descriptor, fcntl.F_GETFL) & os.O_DSYNC
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(log.append, note(str(number)))
    log.close()
    assert whole(tmp_path).records == 13


async def test_sync_records_cancelled_calls_completely(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, now=FakeClock(), sync=True)
    run = RunAudit(log, "r1")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run.record_call(1, a_call(), ALLOWED, None)
    assert kinds(tmp_path) == []
    await run.record_call(2, a_call(), ALLOWED, None)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run.record_outcome(2, "ok", size=1, ms=1)
    assert kinds(tmp_path) == ["call", "outcome"]
    log.close()


@pytest.mark.parametrize(
    "prepare",
    [
        "mkdir -m 700 audit; ln -s ../elsewhere audit/2026-09-21-000001.jsonl",
        "mkdir -m 700 audit; touch elsewhere; ln elsewhere audit/2026-09-21-000001.jsonl",
        "mkdir -m 700 audit; mkfifo -m 600 audit/2026-09-21-000001.jsonl",
        "mkdir other; ln -s other audit",
        "mkdir -m 770 audit",
        "mkdir -m 700 audit; touch audit/2026-09-21-000001.jsonl; chmod 602 audit/*",
    ],
)
async def test_what_is_not_the_users_own_is_not_written(tmp_path: Path, prepare: str) -> None:
    await anyio.run_process(["sh", "-ec", f"umask 077; {prepare}"], cwd=tmp_path)
    directory = tmp_path / "audit"
    log = AuditLog(directory, now=FakeClock())
    with (
        anyio.fail_after(PATIENCE_SECONDS),
        pytest.raises(AuditError, match=r"written \(.*it.*\)") as caught,
    ):
        await write(log, "one")
    assert "0700" in caught.value.remedy
    log.close()
    elsewhere = tmp_path / "elsewhere"
    assert not elsewhere.exists() or not elsewhere.read_bytes()


async def test_what_is_owed_is_written_before_anything_else(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, now=FakeClock(NOON))
    log.later(note("one"))
    log.later(note("two"))
    await write(log, "three")
    log.later(note("four"))
    log.later(note("five"))
    log.close()
    assert [found["run"] for found in records(tmp_path)] == ["one", "two", "three", "four", "five"]


@pytest.mark.guarantee("audit-floods")
async def test_a_full_log_refuses_calls_and_keeps_records(tmp_path: Path) -> None:
    """A flood must not remove earlier records. The ends of calls and runs are still written."""
    log = AuditLog(tmp_path, now=FakeClock(), quota=5000)
    await log.append({"kind": "call", "run": "first"})
    refused = await _flood(log)
    assert 10 < len(refused) < 40
    assert {error.code for error in refused} == {"audit_unavailable"}
    assert "MCP_BRIDGE_AUDIT_BYTES" in refused[0].remedy
    await log.append({"kind": "end", "run": "r"})
    found = records(tmp_path)
    assert (found[0]["run"], found[-1]["kind"], len(found)) == ("first", "end", 42 - len(refused))
    assert sum(path.stat().st_size for path in log_paths(tmp_path)) < 6000
    log.close()
    # Nor has the next bridge room for it, or begins a file.
    assert len(await _flood(AuditLog(tmp_path, now=FakeClock(), quota=5000), 3)) == 3
    assert len(log_paths(tmp_path)) == 1
    whole(tmp_path)


@pytest.mark.guarantee("audit-floods")
async def test_a_caller_that_has_used_up_its_share_is_refused_alone(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, now=FakeClock(), quota=20_000)
    taken = dict.fromkeys(("#greedy", "#other"), 0)
    await log.append({"kind": "call", "run": "first"}, owner="#other")

    async def flood(log: AuditLog, owner: str) -> str:
        for number in range(200):
            try:
                await log.append({"kind": "call", "run": f"{owner}-{number}"}, owner=owner)
            except AuditError as error:
                return error.message
            taken[owner] += 1
        raise AssertionError("nothing stopped it")

    assert "This caller has used up its share" in await flood(log, "#greedy")
    await log.append({"kind": "call", "run": "another"}, owner="#other")
    assert "This caller has used up its share" in await flood(log, "#other")
    assert taken["#greedy"] > taken["#other"] > 5
    await log.append({"kind": "call", "run": "mine"}, owner="stdio")
    log.close()
    # The next bridge knows of no caller's part, and keeps a quarter for its user all the same.
    again = AuditLog(tmp_path, now=FakeClock(), quota=20_000)
    for owner in taken:
        assert "its share" in await flood(again, owner)
    for number in range(5):
        await again.append({"kind": "call", "run": f"mine-{number}"})
    again.close()
    whole(tmp_path)


async def test_a_full_log_continues_once_its_oldest_files_are_too_old(tmp_path: Path) -> None:
    clock = FakeClock()
    log = AuditLog(tmp_path, now=clock, days=2, quota=5000)
    assert await _flood(log)
    clock.now += 4 * DAY
    assert not await _flood(log, 2)
    log.close()
    assert "retention" in kinds(tmp_path)
    whole(tmp_path)


async def _flood(log: AuditLog, records: int = 40) -> list[AuditError]:
    refused = []
    for number in range(records):
        try:
            await log.append({"kind": "call", "run": "r", "text": "x" * 200, "call": number})
        except AuditError as error:
            refused.append(error)
    return refused


Mutation = Callable[[dict[str, bytes], random.Random], None]


async def _make(directory: Path) -> None:
    clock = FakeClock()
    log = AuditLog(directory, now=clock, days=2, largest=1200)
    for day in range(5):
        await write(log, *(f"{day}-{number}" for number in range(5)), text="ä" * day)
        clock.now += DAY
    log.close()
    tear(directory, b'{"kind":"run","ru')
    log = AuditLog(directory, now=clock, days=2, largest=1200)
    await write(log, "after the crash", "and more")
    log.close()


@pytest.fixture(scope="module")
def log_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("made") / "audit"
    anyio.run(_make, directory)
    report = whole(directory)
    assert report.files >= 4
    assert BEGUN in {note.what for note in report.notes}
    assert "removed for their age" in str(report.notes)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _older_files(files: dict[str, bytes]) -> list[str]:
    """Return all files but the newest, whose end nothing else knows."""
    return sorted(files)[:-1]


def _change_a_byte(files: dict[str, bytes], chance: random.Random) -> None:
    name = chance.choice(_older_files(files))
    data = bytearray(files[name])
    # What is after the last newline was never a record.
    data[chance.randrange(data.rindex(b"\n") + 1)] ^= chance.randrange(1, 256)
    files[name] = bytes(data)


def _add_a_byte(files: dict[str, bytes], chance: random.Random) -> None:
    name = chance.choice(sorted(files))
    data = files[name]
    # At the very end it is a line begun, which is told and is no tampering.
    at = chance.randrange(data.rindex(b"\n") + 1)
    files[name] = data[:at] + bytes([chance.randrange(256)]) + data[at:]


def _cut_the_end(files: dict[str, bytes], chance: random.Random) -> None:
    name = chance.choice(_older_files(files))
    # What is after the last newline was never a record.
    files[name] = files[name][: chance.randrange(files[name].rindex(b"\n") + 1)]


def _remove_a_file(files: dict[str, bytes], chance: random.Random) -> None:
    del files[chance.choice(_older_files(files))]


def _exchange_files(files: dict[str, bytes], chance: random.Random) -> None:
    first, second = chance.sample(sorted(files), 2)
    files[first], files[second] = files[second], files[first]


def _rename_a_file(files: dict[str, bytes], chance: random.Random) -> None:
    files["2026-10-01-000001.jsonl"] = files.pop(chance.choice(sorted(files)))


def _change_lines(change: Callable[[list[bytes], random.Random], None], least: int = 1) -> Mutation:
    """Return a mutation of the complete lines of a file that has at least so many."""

    def mutate(files: dict[str, bytes], chance: random.Random) -> None:
        names = [name for name in sorted(files) if files[name].count(b"\n") >= least]
        name = chance.choice(names)
        *lines, rest = files[name].split(b"\n")
        change(lines, chance)
        files[name] = b"\n".join([*lines, rest])

    return mutate


def _exchange_lines(lines: list[bytes], chance: random.Random) -> None:
    first, second = chance.sample(range(len(lines)), 2)
    lines[first], lines[second] = lines[second], lines[first]


def _insert_a_line(lines: list[bytes], chance: random.Random) -> None:
    forged, _ = link_record(note("forged"), before_first(FILE), "2026-09-21T00:00:00.000Z")
    inserted = [forged.removesuffix(b"\n"), chance.choice(lines), b"{}", b""]
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(inserted))


def _remove_a_line(files: dict[str, bytes], chance: random.Random) -> None:
    name = chance.choice(_older_files(files))
    lines = files[name].splitlines(keepends=True)
    del lines[chance.randrange(files[name].count(b"\n"))]
    files[name] = b"".join(lines)


FILE = "2026-09-21-000001.jsonl"

MUTATIONS: list[Mutation] = [
    _change_a_byte,
    _add_a_byte,
    _cut_the_end,
    _remove_a_file,
    _exchange_files,
    _rename_a_file,
    _remove_a_line,
    _change_lines(_exchange_lines, 2),
    _change_lines(_insert_a_line),
]


@given(seed=st.integers(0, 2**32), which=st.sampled_from(MUTATIONS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_done_to_any_file_is_found(
    log_files: dict[str, bytes], tmp_path: Path, seed: int, which: Mutation
) -> None:
    changed = dict(log_files)
    which(changed, random.Random(seed))
    if changed == log_files:
        return
    directory = tmp_path / "audit"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    for name, data in changed.items():
        (directory / name).write_bytes(data)
    assert verify(directory).problems


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "audit", now=FakeClock())
    await write(log, "one", "two", "three", "four")
    log.close()
    return tmp_path / "audit"


def _rewrite(directory: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = directory / FILE
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def _forge(lines: list[bytes], count: int) -> list[bytes]:
    """Return records that are right in themselves in place of the first ones."""
    made, last = [], before_first(FILE)
    for number in range(count):
        line, last = link_record(note(f"forged {number}"), last, "2026-09-21T00:00:00.000Z")
        made.append(line)
    return [*made, *lines[count:]]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            lambda lines: [line.replace(b"two", b"2wo") for line in lines],
            ["line 2: the line is not what a bridge wrote there"],
        ),
        (lambda lines: [lines[0], *lines[3:]], ["line 2: record 4 does not follow record 1"]),
        (lambda lines: lines[2:], ["line 1: record 3 does not follow record 0"]),
        (
            lambda lines: [lines[0], lines[2], lines[1], lines[3]],
            [
                "line 2: record 3 does not follow record 1",
                "line 3: record 2 does not follow record 3",
                "line 4: record 4 does not follow record 2",
            ],
        ),
        (lambda lines: _forge(lines, 1), ["line 2: record 2 does not follow record 1"]),
        # The next file says how this one ended.
        (
            lambda lines: _forge(lines, 4),
            ["line 4: record 4 is not the one that 2026-09-21-000002.jsonl names"],
        ),
        (lambda lines: lines[:2], [": record 4, which 2026-09-21-000002.jsonl names, is missing"]),
    ],
)
async def test_what_was_changed_is_named(
    directory: Path, change: Callable[[list[bytes]], list[bytes]], found: list[str]
) -> None:
    log = AuditLog(directory, now=FakeClock())
    await write(log, "five")
    log.close()
    _rewrite(directory, change)
    problems = wrong(directory)
    assert len(problems) == len(found)
    assert all(text in problem for text, problem in zip(found, problems, strict=True))


async def test_findings_have_a_limit(directory: Path) -> None:
    _rewrite(directory, lambda lines: [*lines, b"\n" * 200_000])
    tracemalloc.start()
    report = verify(directory)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(report.problems), report.omitted) == (100, 199_900)
    assert peak < 4 * 1024 * 1024


async def test_a_file_that_retention_removes_while_it_is_opened_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def remove(path: Any, *rest: Any, **more: Any) -> int:
        descriptor = opening(path, *rest, **more)
        (directory / FILE).unlink()
        return descriptor

    with opened(directory) as (folder, _), monkeypatch.context() as patch:
        patch.setattr(os, "open", remove)
        assert len(list(lines(folder, FILE))) == 4


async def test_forged_first_records_are_checked_safely(directory: Path) -> None:
    name = "2026-09-21-000002.jsonl"
    for previous in (7, [FILE], {FILE: 7}, {FILE: ["x", 1]}, {FILE: [4, {}]}, {"": [1, "a"]}):
        record = {**note("forged"), "previous": previous}
        line, _ = link_record(record, before_first(name), "2026-09-21T00:00:00.000Z")
        (directory / name).write_bytes(line)
        assert verify(directory).records == 5


def _replace(path: Path) -> None:
    data = path.read_bytes().replace(b"two", b"2wo")
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, path.read_bytes().index(b"\n") + 1),
        lambda path: path.unlink(),
        lambda path: path.rename(path.parents[1] / "elsewhere"),
        _replace,
        lambda path: shutil.rmtree(path.parent),
    ],
    ids=["shortened", "removed", "moved", "changed", "all removed"],
)
async def test_changes_under_a_running_bridge_show(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    directory, elsewhere = tmp_path / "audit", tmp_path / "elsewhere"
    log = AuditLog(directory, now=FakeClock())
    await write(log, "one", "two")
    before = (directory / FILE).read_bytes()
    change(directory / FILE)
    await write(log, "three")
    log.close()
    assert wrong(directory)
    # What is recorded is in the directory where it is looked for.
    assert not elsewhere.exists() or elsewhere.read_bytes() == before
    assert records(directory)[-1]["run"] == "three"


async def test_a_hash_is_found_where_its_record_is_or_nowhere(directory: Path) -> None:
    head = verify(directory).head
    assert str(verify(directory, head).expected) == f"{FILE}, line 4: record 4."
    assert str(verify(directory, head[:16]).expected).startswith(f"{FILE}, line 4")
    assert verify(directory, "0" * 64).expected is None
    _rewrite(directory, lambda lines: lines[:3])
    assert verify(directory, head).expected is None


async def test_hostile_texts_neither_end_a_line_nor_forge_one(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit", now=FakeClock())
    for text in ('\n{"kind":"end"}\n', '","hash":"' + "0" * 64 + '"}', "\ud800\x00\u2028", "\r"):
        await write(log, text, arguments=dict(a_call(text=text).arguments))
    log.close()
    assert whole(tmp_path / "audit").records == 4
