"""Tampering with the audit log: whatever is done to it afterwards is found, and said where."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.gate.audit import AuditLog
from bridge.gate.audit.log import before_first, link_record
from bridge.gate.audit.reading import BEGUN, verify
from tests.audit_rig import DAY, FakeClock, a_call, note, records, tear, whole, write, wrong

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
    assert "removed for its age" in str(report.notes)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _named(files: dict[str, bytes]) -> list[str]:
    """Return all files but the newest, whose end nothing else knows."""
    return sorted(files)[:-1]


def _change_a_byte(files: dict[str, bytes], chance: random.Random) -> None:
    name = chance.choice(_named(files))
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
    name = chance.choice(_named(files))
    # What is after the last newline was never a record.
    files[name] = files[name][: chance.randrange(files[name].rindex(b"\n") + 1)]


def _remove_a_file(files: dict[str, bytes], chance: random.Random) -> None:
    del files[chance.choice(_named(files))]


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
    name = chance.choice(_named(files))
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


async def _make_small(directory: Path) -> None:
    log = AuditLog(directory, now=FakeClock())
    await write(log, "one", "two", "three", "four")
    log.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    anyio.run(_make_small, tmp_path / "audit")
    return tmp_path / "audit"


def _rewrite(directory: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = directory / FILE
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def _forged(lines: list[bytes], count: int) -> list[bytes]:
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
        (lambda lines: _forged(lines, 1), ["line 2: record 2 does not follow record 1"]),
        # The next file says how this one ended.
        (
            lambda lines: _forged(lines, 4),
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


def test_a_hash_is_found_where_its_record_is_or_nowhere(directory: Path) -> None:
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
