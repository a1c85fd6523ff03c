"""What a run had read stands in what it saved: memories and skills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.model import Provenance
from bridge.saved_functions.documents import Memories
from bridge.saved_functions.files import SkillFiles
from bridge.saved_functions.source import Header, encode_skill, read_skill
from bridge.store import owner_digest
from tests.postgresql import store_at

pytestmark = pytest.mark.usefixtures("each_database")


READ = Provenance(run_id="r1", labels=frozenset({"private-data"}), servers=frozenset({'a"\n é'}))
MORE = Provenance(run_id="r2", labels=frozenset({"untrusted-input"}))
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
