"""What a run had read stands beside what it left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.artifacts.store import MAX_NAME
from bridge.model import Provenance
from bridge.model.provenance import MAX_DOCUMENT
from bridge.store.schema import artifacts
from tests.artifacts.rig import OTHER_RUN, RUN, store
from tests.postgresql import store_at

pytestmark = pytest.mark.usefixtures("each_database")


def test_it_is_what_was_read_when_the_thing_was_finished(tmp_path: Path) -> None:
    kept, read = store(tmp_path), frozenset({"private-data"})
    found: list[Provenance | None] = [None]
    artifacts = kept.of_run("me", RUN, lambda: found[-1])
    with artifacts.writer("a") as writer:
        writer.write(b"1")
        found.append(Provenance(run_id=RUN, labels=read))
        made = writer.finish()
    assert made.provenance == Provenance(run_id=RUN, labels=read)
    assert kept.find("me", made.uri) == made
    assert kept.listed("me") == (made,)
    # The same content of a run that had read nothing is its own.
    clean = kept.of_run("me", OTHER_RUN).add("a", b"1")
    assert clean.provenance is None
    assert kept.find("me", clean.uri).provenance is None


@pytest.mark.parametrize("damage", ["x", 5, [], {}, {"labels": ["a"], "servers": []}])
def test_what_no_bridge_wrote_is_the_worst(tmp_path: Path, damage: object) -> None:
    kept = store(tmp_path)
    made = kept.of_run("me", RUN).add("a", b"1")
    with store_at(tmp_path).writing() as database:
        assert database.connection is not None
        text = damage if isinstance(damage, str) else json.dumps(damage)
        database.connection.execute(artifacts.update().values(provenance=text))
    found = kept.find("me", made.uri).provenance
    assert found is not None
    assert found.anything


def test_there_is_room_for_the_most_that_there_can_be(tmp_path: Path) -> None:
    servers = frozenset(f"{n:03}" for n in range(MAX_DOCUMENT // 8))
    largest = Provenance(run_id="r" * 40, servers=servers)
    assert len(json.dumps(largest.document())) > MAX_DOCUMENT // 2
    kept = store(tmp_path)
    made = kept.of_run("me", RUN, lambda: largest).add("\U0001f600" * MAX_NAME, b"1")
    assert kept.find("me", made.uri) == made
    assert made.provenance == largest
