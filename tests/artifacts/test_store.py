"""The store of artifacts: contents, owners, limits and expiry."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from bridge.artifacts import store as module
from bridge.artifacts.store import MAX_NAME, RunArtifacts
from bridge.errors import ArtifactStoreError
from bridge.model import Artifact, ArtifactKind, Provenance, owner_digest
from bridge.model.kept import MAX_DOCUMENT
from bridge.store.retention import items_to_remove
from bridge.store.schema import artifacts
from tests.artifacts.rig import (
    DAY,
    OTHER_RUN,
    RUN,
    Clock,
    age,
    check,
    contents,
    entries,
    rows,
    store,
    unfinished_files,
)
from tests.postgresql import store_at
from tests.raised import raises_code

pytestmark = [pytest.mark.usefixtures("each_database"), pytest.mark.every_case]


def test_what_is_kept_is_told_listed_found_and_read(tmp_path: Path) -> None:
    kept = store(tmp_path / "a")
    assert kept.find_all("me") == ()
    data = b"a,b\n1,2\n"
    with RunArtifacts(kept, "me", RUN).writer("tables/one.csv") as writer:
        writer.write(data[:3])
        writer.write(data[3:])
        first = writer.finish()
    assert first == Artifact(
        uri=first.uri,
        name="tables/one.csv",
        mime_type="text/csv",
        size=8,
        digest=hashlib.sha256(data).hexdigest(),
        run_id=RUN,
        created=first.created,
        expires=first.created + 7 * DAY,
    )
    assert first.uri.startswith("bridge://artifacts/")
    second = RunArtifacts(kept, "me", OTHER_RUN).add("", b"")
    assert kept.find_all("me") == (second, first)
    assert kept.find_all("me", RUN) == (first,)
    assert kept.find_all(None) == (second, first)
    for asked in (first.uri, first.uri.rpartition("/")[2][:6], first.digest[:8], first.digest):
        assert kept.find("me", asked) == first
        assert kept.read("me", asked) == data
    assert kept.read("me", first.uri, 2, 3) == b"b\n1"
    assert kept.read("me", first.uri, 6) == b"2\n"
    assert kept.read("me", first.uri, 7, 100) == b"\n"
    assert kept.read("me", first.uri, 8) == kept.read("me", first.uri, 10**15, 1) == b""
    assert kept.read("me", second.uri) == b""
    # And another bridge, later, finds the same.
    assert store(tmp_path / "a").find_all("me") == (second, first)


@pytest.mark.parametrize("kind", ["stdout", "stderr"])
def test_a_runs_output_is_read_by_the_run_and_the_newest_counts(
    tmp_path: Path, kind: ArtifactKind
) -> None:
    kept = store(tmp_path)
    RunArtifacts(kept, "me", RUN).add("old", b"old", kind=kind)
    output = RunArtifacts(kept, "me", RUN).add("new", b"new", kind=kind)
    assert output.uri == f"bridge://runs/{RUN}/{kind}"
    assert kept.read("me", output.uri) == b"new"
    assert kept.read("me", output.uri + "?lines=1-2") == b"new"


@pytest.mark.guarantee("kept-apart")
def test_only_its_owner_finds_an_artifact_and_no_error_tells_that_it_exists(tmp_path: Path) -> None:
    kept = store(tmp_path)
    mine = RunArtifacts(kept, "me", RUN).add("secret", b"secret")
    output = RunArtifacts(kept, "me", RUN).add("out", b"out", kind="stdout")
    assert kept.find_all("you") == kept.find_all("") == ()
    never = mine.uri[:-4] + "0000"
    for asked in (mine.uri, mine.digest, mine.digest[:8], output.uri):
        told = []
        for owner, uri in (("you", asked), ("me", never)):
            with raises_code("unknown_artifact") as refused:
                kept.find(owner, uri)
            told.append(str(refused.value).replace(uri, "URI"))
            with raises_code("unknown_artifact"):
                kept.read(owner, uri)
            with raises_code("unknown_artifact"):
                kept.remove(owner, uri)
        assert told[0] == told[1]
    assert kept.remove_all("you") == 0
    assert len(kept.find_all("me")) == 2
    # Nor do the names on disk tell who it is.
    with store_at(tmp_path).reading() as database:
        assert {row.owner for row in rows(database)} == {owner_digest("me")}


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a",
        "bridge://artifacts/",
        "bridge://artifacts/../lock",
        "bridge://artifacts/" + "0" * 21,
        "bridge://artifacts/%2e%2e",
        f"bridge://runs/{RUN}/shown",
        f"bridge://runs/{RUN}/stdout/x",
        "bridge://runs/../stdout",
        "bridge://sessions",
        "../../lock",
        "0" * 65,
        "\udcff",
    ],
)
def test_what_is_no_name_of_anything_is_unknown(tmp_path: Path, uri: str) -> None:
    kept = store(tmp_path)
    RunArtifacts(kept, "me", RUN).add("x", b"x")
    with raises_code("unknown_artifact"):
        kept.find("me", uri)


def test_a_beginning_that_fits_two_contents_is_refused_and_says_so(tmp_path: Path) -> None:
    kept = store(tmp_path)
    artifacts = RunArtifacts(kept, "me", RUN)
    found: dict[str, bytes] = {}
    number = 0
    while True:
        data = str(number).encode()
        beginning = hashlib.sha256(data).hexdigest()[:4]
        if beginning in found:
            break
        found[beginning] = data
        number += 1
    artifacts.add("one", found[beginning])
    artifacts.add("two", data)
    with raises_code("unknown_artifact", match=r"2 artifacts begin with .*Give more"):
        kept.find("me", beginning)
    # The same content kept twice is no question.
    artifacts.add("again", data)
    assert kept.find("me", hashlib.sha256(data).hexdigest()).name == "again"


def test_the_same_content_is_stored_once_and_goes_with_its_last_entry(tmp_path: Path) -> None:
    kept = store(tmp_path)
    one = RunArtifacts(kept, "me", RUN).add("one", b"same" * 1000)
    two = RunArtifacts(kept, "you", OTHER_RUN).add("two", b"same" * 1000)
    assert one.uri != two.uri
    assert contents(tmp_path) == {one.digest}
    assert kept.remove("me", one.uri) == one
    assert kept.read("you", two.uri) == b"same" * 1000
    kept.remove("you", two.uri)
    assert contents(tmp_path) == set()
    check(tmp_path)


def test_all_of_a_run_or_of_an_owner_is_removed_at_once(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for owner in ("me", "you"):
        for run in (RUN, OTHER_RUN):
            RunArtifacts(kept, owner, run).add("x", f"{owner} {run}".encode())
    assert kept.remove_all("me", RUN) == 1
    assert kept.remove_all(None, OTHER_RUN) == 2
    assert [artifact.run_id for artifact in kept.find_all(None)] == [RUN]
    assert kept.remove_all(None) == 1
    check(tmp_path)
    assert store(tmp_path / "never").remove_all(None) == 0
    assert not (tmp_path / "never").exists()


def test_pages_are_the_list_in_parts_though_something_comes_meanwhile(tmp_path: Path) -> None:
    kept = store(tmp_path)
    artifacts = RunArtifacts(kept, "me", RUN)
    made = [artifacts.add(str(number), str(number).encode()) for number in range(7)]
    first, more = kept.page("me", 3)
    assert first == tuple(made[:3:-1])
    artifacts.add("late", b"late")
    second, more = kept.page("me", 3, more)
    third, end = kept.page("me", 3, more)
    assert first + second + third == tuple(reversed(made))
    assert end == ""
    assert kept.page("you", 3) == ((), "")


def test_what_is_not_finished_is_nowhere_and_counts_for_nothing(tmp_path: Path) -> None:
    kept = store(tmp_path, run=100)
    artifacts = RunArtifacts(kept, "me", RUN)
    with artifacts.writer("half") as writer:
        writer.write(b"x" * 90)
        assert kept.find_all("me") == ()
        # No one takes it for something that a dead bridge has left.
        assert store(tmp_path).tidy() == 0
        assert len(unfinished_files(tmp_path)) == 1
    assert unfinished_files(tmp_path) == []
    artifacts.add("whole", b"x" * 90)
    with pytest.raises(ArtifactStoreError, match="finished or discarded"):
        writer.finish()
    with pytest.raises(ArtifactStoreError, match="finished or discarded"):
        writer.write(b"x")


def test_a_run_is_refused_what_is_beyond_its_quota_and_is_told_the_setting(tmp_path: Path) -> None:
    kept = store(tmp_path, run=100)
    artifacts = RunArtifacts(kept, "me", RUN)
    artifacts.add("one", b"x" * 60)
    with artifacts.writer("two") as writer:
        writer.write(b"y" * 40)
        with raises_code("artifact_quota", match="100 bytes.*MCP_BRIDGE_ARTIFACT_RUN_BYTES"):
            writer.write(b"y")
        # What there was before is whole.
        assert writer.finish().size == 40
    with raises_code("artifact_quota"):
        artifacts.add("three", b"z")
    assert RunArtifacts(kept, "me", OTHER_RUN).add("three", b"z" * 100).size == 100
    assert len(kept.find_all("me")) == 3
    # More than the store has room for would drive out the run's own.
    with raises_code("artifact_quota", match="50 bytes"):
        RunArtifacts(store(tmp_path / "small", run=100, total=50), "me", RUN).add("x", b"x" * 51)


def test_a_run_leaves_so_many_things_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RUN_ENTRIES", 3)
    artifacts = RunArtifacts(store(tmp_path), "me", RUN)
    for _ in range(3):
        artifacts.add("x", b"")
    with raises_code("artifact_quota", match=r"3 .*archive"):
        artifacts.writer("one more")


def test_the_oldest_make_room_and_never_one_that_is_being_written(tmp_path: Path) -> None:
    kept = store(tmp_path, total=1000, run=1000)
    made = [
        RunArtifacts(kept, "me", f"run{number}").add(str(number), bytes([number]) * 200)
        for number in range(5)
    ]
    assert kept.find_all("me") == tuple(reversed(made))
    with RunArtifacts(kept, "you", RUN).writer("slow") as slow:
        slow.write(b"s" * 300)
        sixth = RunArtifacts(kept, "you", OTHER_RUN).add("sixth", b"6" * 100)
        # A tenth more than was needed, so that it is seldom.
        assert kept.find_all("me") == tuple(made[:0:-1])
        slow_one = slow.finish()
    assert kept.find_all("you") == (slow_one, sixth)
    assert kept.find_all("me") == tuple(made[:2:-1])
    check(tmp_path)


def test_what_has_expired_is_not_told_and_is_removed(tmp_path: Path) -> None:
    kept = store(tmp_path, days=2)
    old = RunArtifacts(kept, "me", RUN).add("old", b"old")
    age(tmp_path, DAY)
    new = RunArtifacts(kept, "me", RUN).add("new", b"new")
    age(tmp_path, DAY)
    assert [each.uri for each in kept.find_all("me")] == [new.uri]
    with raises_code("unknown_artifact"):
        kept.read("me", old.uri)
    assert kept.tidy() == 1
    assert contents(tmp_path) == {new.digest}
    age(tmp_path, 2 * DAY)
    assert kept.tidy() == 1
    assert entries(tmp_path) == contents(tmp_path) == set()


def test_a_name_of_a_program_is_one_line_and_bounded(tmp_path: Path) -> None:
    artifacts = RunArtifacts(store(tmp_path), "me", RUN)
    nasty = "a\x1b[2J\r\nb\u202e\udcff" + "c" * 10_000
    kept = artifacts.add(nasty, b"")
    assert kept.name.startswith("a\\x1b[2J\\r\\nb\\u202e\\udcffccc")
    assert len(kept.name) == 255
    assert store(tmp_path).find("me", kept.uri) == kept


def test_a_store_that_cannot_be_written_to_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = store(tmp_path / "file" / "store")
    with pytest.raises(ArtifactStoreError, match="cannot be stored") as refused:
        RunArtifacts(kept, "me", RUN).writer("x")
    assert refused.value.remedy


def test_a_content_that_is_open_can_be_read_to_its_end_though_it_is_removed(tmp_path: Path) -> None:
    kept = store(tmp_path)
    artifact = RunArtifacts(kept, "me", RUN).add("x", b"x" * 3_000_000)
    with kept.opened("me", artifact.uri) as content:
        kept.remove("me", artifact.uri)
        assert content.whole() == b"x" * 3_000_000
    assert contents(tmp_path) == set()


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_clock_that_is_put_back_keeps_the_order_and_dates_nothing_far_ahead(
    tmp_path: Path,
) -> None:
    clock = Clock()
    kept = store(tmp_path, now=clock)
    artifacts = RunArtifacts(kept, "me", RUN)
    first, second = (artifacts.add(name, name.encode()) for name in ("first", "second"))
    assert kept.find_all("me") == (second, first)
    assert first.created < second.created < first.created + 1
    clock.seconds -= DAY
    third = artifacts.add("third", b"third")
    assert third.created == clock.seconds


def test_what_is_refused_is_not_weighed_again_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a little less: each look goes through the whole store, and others wait for it."""
    clock = Clock()
    kept = store(tmp_path, total=1000, run=1000, now=clock)
    for owner in ("you", "she"):
        for number in range(5):
            RunArtifacts(kept, owner, RUN).add(str(number), f"{owner}{number}".encode() * 20)
    mine = RunArtifacts(kept, "me", OTHER_RUN)

    def is_refused(size: int) -> bool:
        try:
            mine.add("x", b"x" * size)
        except ArtifactStoreError as error:
            return "your share" in error.message
        return False

    assert is_refused(600)
    looks: list[object] = []

    def look(*given: Any) -> Any:
        looks.append(given)
        return items_to_remove(*given)

    monkeypatch.setattr(module, "items_to_remove", look)
    for size in (600, 599, 301):
        assert is_refused(size)
    assert not looks
    clock.seconds += 60
    assert is_refused(600)
    assert looks
    # What is much less is weighed, and so is what another has.
    assert not is_refused(100)
    assert RunArtifacts(kept, "you", RUN).add("more", b"m" * 100).size == 100
    check(tmp_path)


def test_it_is_what_was_read_when_the_thing_was_finished(tmp_path: Path) -> None:
    kept, read = store(tmp_path), frozenset({"private-data"})
    found: list[Provenance | None] = [None]
    artifacts = RunArtifacts(kept, "me", RUN, lambda: found[-1])
    with artifacts.writer("a") as writer:
        writer.write(b"1")
        found.append(Provenance(run_id=RUN, labels=read))
        made = writer.finish()
    assert made.provenance == Provenance(run_id=RUN, labels=read)
    assert kept.find("me", made.uri) == made
    assert kept.find_all("me") == (made,)
    # The same content of a run that had read nothing is its own.
    clean = RunArtifacts(kept, "me", OTHER_RUN).add("a", b"1")
    assert clean.provenance is None
    assert kept.find("me", clean.uri).provenance is None


@pytest.mark.parametrize("damage", ["x", 5, [], {}, {"labels": ["a"], "servers": []}])
def test_what_no_bridge_wrote_is_the_worst(tmp_path: Path, damage: object) -> None:
    kept = store(tmp_path)
    made = RunArtifacts(kept, "me", RUN).add("a", b"1")
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
    made = RunArtifacts(kept, "me", RUN, lambda: largest).add("\U0001f600" * MAX_NAME, b"1")
    assert kept.find("me", made.uri) == made
    assert made.provenance == largest
