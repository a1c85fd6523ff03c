"""The store keeps the provenance of its writers, and the versions that they replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.errors import InvalidRequestError
from bridge.model import Provenance, owner_digest
from bridge.saved_functions.documents import (
    MAX_NAMES,
    SKILLS,
    VERSIONS,
    Memories,
    add_read,
    forget_read,
    read_by_writers,
)
from bridge.saved_functions.files import SkillFiles
from bridge.saved_functions.source import Header, encode_skill, read_skill
from tests.postgresql import store_at

pytestmark = [
    pytest.mark.usefixtures("each_database"),
    pytest.mark.guarantee("kept-names", "kept-through-the-gate"),
]


READ = Provenance(run_id="r1", labels=frozenset({"private-data"}), servers=frozenset({'a"\n é'}))
MORE = Provenance(run_id="r2", labels=frozenset({"untrusted-input"}))
WRITTEN = "def f():\n    return 'by hand'\n"


def test_provenance_adds_up_and_is_forgotten_only_by_name(tmp_path: Path) -> None:
    store = store_at(tmp_path / "state")
    assert read_by_writers(store, SKILLS) is None
    assert not store.directory.exists()
    with store.writing() as kept:
        add_read(kept, SKILLS, "a", None)
        add_read(kept, SKILLS, "a", Provenance(run_id="r0"))
        forget_read(kept, SKILLS, "a")
        assert kept.get("read", SKILLS, "") is None
        add_read(kept, SKILLS, "a", READ)
        add_read(kept, SKILLS, "b", MORE)
    assert read_by_writers(store, SKILLS) == READ.together(MORE)
    with store.writing() as kept:
        add_read(kept, SKILLS, "b", MORE)
        forget_read(kept, SKILLS, "a")
    assert read_by_writers(store, SKILLS) == MORE
    with store.writing() as kept:
        for number in range(MAX_NAMES + 5):
            add_read(kept, SKILLS, f"n{number}", READ)
        assert len(json.loads(kept.get("read", SKILLS, "") or b"")) == MAX_NAMES + 1
        forget_read(kept, SKILLS, "")
    for damage in ("{", "[]", '{"a": 5}', "[" * 100_000):
        with store.writing() as kept:
            kept.put("read", SKILLS, "", damage.encode())
        found = read_by_writers(store, SKILLS)
        assert found is not None
        assert found.anything
    if not store.shared:
        (store.directory / "store.db").write_bytes(b"no database" * 100)
        assert read_by_writers(store, SKILLS) == Provenance(anything=True)


def test_what_was_read_by_who_changes_memories_outlasts_them(tmp_path: Path) -> None:
    memories = Memories(store_at(tmp_path), "me")
    memories.put("a", 1)
    assert memories.read_by_writers() is None
    memories.delete("a", provenance=READ)
    memories.delete("a", provenance=MORE)
    assert memories.all() == []
    assert memories.read_by_writers() == READ
    memories.put("b", 1, provenance=MORE)
    memories.put("b", 1)
    read = memories.read_by_writers()
    assert read is not None
    assert read.labels == READ.labels | MORE.labels
    assert Memories(store_at(tmp_path), "you").read_by_writers() is None


def test_a_memory_that_is_replaced_or_deleted_stays_for_a_while(tmp_path: Path) -> None:
    memories = Memories(store_at(tmp_path), "me")

    def old() -> list[tuple[str, bytes]]:
        with store_at(tmp_path).reading() as kept:
            return kept.all(VERSIONS, owner_digest("me"))

    memories.put("a", "first")
    assert not old()
    memories.put("a", "second")
    memories.delete("a")
    kept = [json.loads(data) for _, data in sorted(old())]
    assert [(each["key"], each["value"]) for each in kept] == [("a", "first"), ("a", "second")]
    for number in range(20):
        memories.put("b", number)
    assert len(old()) == 7


def test_nothing_is_replaced_or_removed_but_what_was_decided_on(tmp_path: Path) -> None:
    files = SkillFiles(tmp_path / "skills", store_at(tmp_path))
    files.save("f", WRITTEN, "", {}, "now", only_if="")
    digest = read_skill("f", files.text("f") or "").digest
    changed = (files.text("f") or "").replace("by hand", "by another")
    (files.folder / "f.py").write_text(changed)
    for only_if in (digest, ""):
        with pytest.raises(InvalidRequestError, match="changed at the same moment"):
            files.save("f", "def f():\n    pass\n", "", {}, "now", only_if=only_if)
        with pytest.raises(InvalidRequestError, match="changed at the same moment"):
            files.remove("f", versions=False, only_if=only_if)
    assert files.text("f") == changed


SOURCE = "def f():\n    return 1\n"


def test_a_memory_has_what_its_last_writer_read_and_what_stays_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    memories = Memories(store_at(tmp_path), "me")

    def provenance() -> Provenance | None:
        found = memories.get("k")
        assert found is not None
        return found.provenance

    memories.put("k", 1, {"a": 1}, provenance=READ)
    assert provenance() == READ
    memories.put("k", 2, provenance=MORE)
    assert provenance() == MORE.together(READ)
    memories.put("k", 3)
    assert provenance() == MORE.together(READ)
    memories.put("k", 4, {})
    assert provenance() is None
    # Nothing stays of the one before.
    memories.put("k", 5, provenance=READ)
    memories.put("k", 6)
    assert provenance() is None
    with store_at(tmp_path).reading() as kept:
        [(_, data)] = kept.all("memory", owner_digest("me"))
    assert "provenance" not in json.loads(data)


def test_a_skill_has_it_at_its_head(tmp_path: Path) -> None:
    files = SkillFiles(tmp_path / "skills", store_at(tmp_path))

    def provenance() -> Provenance | None:
        return read_skill("f", files.text("f") or "").header.provenance

    tools = {"s": {"t": "digest"}}
    files.save("f", SOURCE, "d", tools, "now")
    assert provenance() is None
    files.save("f", SOURCE.replace("1", "2"), "d", tools, "now", READ)
    skill = read_skill("f", files.text("f") or "")
    assert skill.header.provenance == READ
    assert (skill.header.tools, skill.problem, skill.edited) == (tools, "", False)
    files.save("f", SOURCE.replace("1", "2"), "other", tools, "now", MORE)
    assert provenance() == MORE.together(READ)
    files.save("f", SOURCE.replace("1", "2"), "another", tools, "now")
    assert provenance() == MORE.together(READ)
    files.save("f", SOURCE.replace("1", "3"), "other", tools, "now")
    assert provenance() is None
    files.save("f", SOURCE, "d", tools, "now", Provenance(anything=True))
    assert provenance() == Provenance(anything=True)


def test_a_head_that_cannot_be_read_is_the_worst_and_none_says_nothing() -> None:
    assert read_skill("f", SOURCE).header.provenance is None
    whole = encode_skill(Header(version=7), "").removeprefix("# /// mcp-code-bridge-skill\n")
    none, long = whole.replace("7", "0"), whole.replace("7", "9" * 5000)
    for head in ("# x = \n# ///\n", "# []\n# ///\n", none, "# never closed\n", long):
        found = read_skill("f", f"# /// mcp-code-bridge-skill\n{head}{SOURCE}")
        assert found.header.provenance == Provenance(anything=True)
