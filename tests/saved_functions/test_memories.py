"""Memories against a dict, and damaged documents."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.errors import InvalidRequestError, LibraryError
from bridge.model import owner_digest
from bridge.saved_functions.documents import MAX_TOTAL_BYTES, MAX_VALUE_BYTES, Memories, Memory
from tests.postgresql import store_at

pytestmark = [pytest.mark.usefixtures("each_database"), pytest.mark.every_case]


# Few, so that they collide, and hostile.
KEYS = st.sampled_from(
    ["a", "A", "../../etc/passwd", "a/b", "a\x00b", "\udc80", ".lock", "ä", "a "]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "set", "delete", "again"]), KEYS, VALUES), max_size=12
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, number=st.integers(0, 10**12))
def test_memories_are_a_persistent_dict(tmp_path: Path, steps: Any, number: int) -> None:
    folder = tmp_path / str(number)
    mine, other = Memories(store_at(folder), "me"), Memories(store_at(folder), "you")
    model: dict[str, Any] = {}
    for step, key, value in steps:
        if step == "put":
            mine.put(key, value)
            model[key] = value
        elif step == "set":
            found = mine.get(key)
            revision = found.revision if found is not None else ""
            assert mine.put(key, value, unless_after=revision) is not None
            assert mine.put(key, "late", unless_after="0") is None
            model[key] = value
        elif step == "delete":
            assert mine.delete(key) == (model.pop(key, KEYS) is not KEYS)
        else:
            mine = Memories(store_at(folder), "me")
        assert {one.key: one.value for one in mine.all() if isinstance(one, Memory)} == model
    assert other.all() == []
    for key, value in model.items():
        found = mine.get(key)
        assert found is not None
        assert found.value == value
        assert mine.delete(key)
    store_at(folder).close()


def test_metadata_and_the_first_moment_stay_unless_new_ones_are_given(tmp_path: Path) -> None:
    memories = Memories(store_at(tmp_path), "me")
    first = memories.put("k", 1, {"why": "test"})
    second = memories.put("k", 2)
    assert first is not None
    assert second is not None
    assert (second.metadata, second.created) == ({"why": "test"}, first.created)
    assert second.revision != first.revision
    third = memories.put("k", 2, {})
    assert third is not None
    assert third.metadata == {}


def test_what_is_too_much_is_refused_and_leaves_what_there_was(tmp_path: Path) -> None:
    memories = Memories(store_at(tmp_path), "me")
    memories.put("k", "kept")
    for key, value, metadata in (
        ("k", "x" * MAX_VALUE_BYTES, None),
        ("k", 1, {"m": "x" * MAX_VALUE_BYTES}),
        ("", 1, None),
        ("k" * (201), 1, None),
        ("k", float("nan"), None),
    ):
        with pytest.raises(InvalidRequestError):
            memories.put(key, value, metadata)
    kept = memories.get("k")
    assert kept is not None
    assert kept.value == "kept"
    large = "x" * (MAX_VALUE_BYTES - 2)
    for number in range(MAX_TOTAL_BYTES // MAX_VALUE_BYTES - 1):
        memories.put(f"large{number}", large)
    with pytest.raises(InvalidRequestError, match="All memories together"):
        memories.put("one more", large)
    assert memories.put("small", 1) is not None


def test_there_are_only_so_many_owners(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert Memories(store_at(tmp_path), name, most_owners=2).put("k", 1)
    with pytest.raises(LibraryError, match="2 callers have memories here"):
        Memories(store_at(tmp_path), "c", most_owners=2).put("k", 1)
    assert Memories(store_at(tmp_path), "a", most_owners=2).put("k", 2)
    assert Memories(store_at(tmp_path), "c").put("k", 1)


def test_a_damaged_memory_is_reported_and_replaced_by_saving(tmp_path: Path) -> None:
    memories = Memories(store_at(tmp_path), "me")
    memories.put("good", 1)
    memories.put("bad", 1)
    with store_at(tmp_path).writing() as kept:
        [name] = [name for name, data in kept.all("memory", owner_digest("me")) if b'"bad"' in data]
        kept.put("memory", owner_digest("me"), name, b'{"key": "bad"')
    with pytest.raises(LibraryError, match="cannot be read"):
        memories.get("bad")
    assert name in memories.all()
    memories.put("bad", 2)
    assert [one.value for one in memories.all() if isinstance(one, Memory)] == [2, 1]


def test_changes_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    def add() -> None:
        memories = Memories(store_at(tmp_path), "me")
        for _ in range(10):
            while True:
                found = memories.get("n")
                value = 0 if found is None else found.value
                revision = "" if found is None else found.revision
                if memories.put("n", value + 1, unless_after=revision) is not None:
                    break

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Memories(store_at(tmp_path), "me").get("n")
    assert found is not None
    assert found.value == 40
