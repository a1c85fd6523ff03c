"""The choice among OCI runtimes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.sandbox.container.connection import RuntimeChoice, RuntimeMemory


def memory(path: Path, key: str = "podman boot") -> RuntimeMemory:
    return RuntimeMemory(path, key)


def test_a_named_runtime_is_never_replaced(tmp_path: Path) -> None:
    """Not even by one that worked before (law 4)."""
    memory(tmp_path).keep("runc")
    choice = RuntimeChoice("runsc", memory(tmp_path))
    assert choice.current == "runsc"
    assert not choice.replace("runsc")
    assert choice.current == "runsc"


def test_equals_stand_in_for_each_other_until_none_is_left(tmp_path: Path) -> None:
    """Each is tried once."""
    choice = RuntimeChoice(None, memory(tmp_path))
    tried = [choice.current]
    for broken in ("crun", "runc"):
        if choice.replace(broken):
            tried.append(choice.current)
    assert tried == [None, "runc"]


def test_only_what_the_engine_offers_is_tried(tmp_path: Path) -> None:
    """Docker knows its runtimes by name."""
    assert not RuntimeChoice(None, memory(tmp_path)).replace("runc", ["runc", "runsc"])


def test_a_weaker_or_other_runtime_is_never_a_stand_in(tmp_path: Path) -> None:
    """An engine whose default is runsc was set up so for a reason (law 4)."""
    choice = RuntimeChoice(None, memory(tmp_path))
    assert not choice.replace("runsc")
    assert choice.current is None


def test_what_worked_is_remembered_for_the_next_bridge(tmp_path: Path) -> None:
    """Only when it was not the default, and only for the same engine and boot."""
    choice = RuntimeChoice(None, memory(tmp_path / "run"))
    choice.worked("crun")
    assert RuntimeChoice(None, memory(tmp_path / "run")).current is None
    choice.replace("crun")
    choice.worked("runc")
    assert RuntimeChoice(None, memory(tmp_path / "run")).current == "runc"
    assert RuntimeChoice(None, memory(tmp_path / "run", "other boot")).current is None


def test_a_memory_that_proved_wrong_is_forgotten(tmp_path: Path) -> None:
    """One failed attempt, not one at each start."""
    memory(tmp_path).keep("runc")
    RuntimeChoice(None, memory(tmp_path)).replace("runc")
    assert memory(tmp_path).recall() is None


@pytest.mark.parametrize("text", ["", "[]", '{"podman boot": "evil"}', '{"podman boot": 1}', "\0"])
def test_a_spoilt_memory_is_no_memory(tmp_path: Path, text: str) -> None:
    """Whatever the file holds, only known names come out."""
    (tmp_path / "oci-runtime.json").write_text(text)
    assert memory(tmp_path).recall() is None


@pytest.mark.parametrize(
    "trap", ["a link to a file", "a pipe", "a linked directory", "a shared parent"]
)
def test_nothing_is_read_or_written_where_others_may_write(tmp_path: Path, trap: str) -> None:
    """In a directory for temporary files, another user may have made it before."""
    victim, place = tmp_path / "thesis", tmp_path / "shared" / "run"
    place.parent.mkdir()
    victim.write_text('{"podman boot": "runc"}')
    place.mkdir()
    if trap == "a link to a file":
        (place / "oci-runtime.json").symlink_to(victim)
    elif trap == "a pipe":
        os.mkfifo(place / "oci-runtime.json")
    else:
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
    if trap == "a shared parent":
        place.parent.chmod(0o777)
    if place.is_symlink() or trap == "a shared parent":
        (place / "oci-runtime.json").write_bytes(victim.read_bytes())
    else:
        place.chmod(0o777)
    assert memory(place).recall() is None
    memory(place).keep("crun")
    assert victim.read_text() == '{"podman boot": "runc"}'
