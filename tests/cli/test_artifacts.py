"""`artifacts` at a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.artifacts.store import ArtifactStore, RunArtifacts, store_for
from bridge.model import Artifact
from bridge.settings import load
from tests.cli.desk import TerminalOutput, command_line

RUN = "0123456789abcdef0123456789abcdef"
OTHER_RUN = "fedcba9876543210fedcba9876543210"


class Commands:
    """The command line, and its store of artifacts."""

    def __init__(self, state: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self._run = command_line(capture, "--state-dir", str(state))
        self.store: ArtifactStore = store_for(load({"state_dir": str(state)}, {}))

    def left(self, name: str, data: bytes, **more: Any) -> Artifact:
        owner, run = more.pop("owner", "stdio"), more.pop("run", RUN)
        return RunArtifacts(self.store, owner, run).add(name, data, **more)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return self._run("artifacts", *words)


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "state", capsys)


def test_what_is_kept_is_listed_of_all_runs_or_one(commands: Commands) -> None:
    assert commands("list") == (0, "", "No artifacts.\n")
    assert not (commands.state / "store.db").exists()
    nasty = commands.left("evil\x1b[2J\u202ename.csv", b"a,b\n", run=OTHER_RUN)
    output = commands.left("stdout", b"o" * 2048, kind="stdout", owner="http")
    heading, first, second, _, total = commands("list")[1].splitlines()
    assert heading.split() == ["ID", "NAME", "TYPE", "SIZE", "AGE", "EXPIRES", "RUN"]
    assert first.split() == [
        *(output.digest[:10], "stdout", "text/plain", "2", "kB", "0", "s", "in", "7", "d"),
        RUN[:10],
    ]
    assert second.startswith(nasty.uri.removeprefix("bridge://artifacts/")[:10])
    assert "evil\\x1b[2J\\u202ename.csv" in second
    assert total == "2 artifacts, 2 kB."
    assert commands("list", "--run", "0123")[1].count("\n") == 4
    [fields] = json.loads(commands("list", "--run", OTHER_RUN, "--json")[1])
    assert fields["uri"] == nasty.uri
    assert (fields["runId"], fields["sha256"], fields["size"]) == (OTHER_RUN, nasty.digest, 4)
    assert fields["created"] < fields["expires"]
    status, _, err = commands("list", "--run", "zz")
    assert (status, "No run" in err) == (2, True)


def test_get_takes_a_uri_or_the_beginning_of_an_id(commands: Commands, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    artifact = commands.left("x.bin", data)
    output = commands.left("stdout", b"text\n", kind="stdout")
    assert commands("get", output.uri) == (0, "text\n", "")
    assert commands("get", output.digest[:10], "-o", "-") == (0, "text\n", "")
    target = tmp_path / "target"
    for asked in (artifact.uri, artifact.uri.rpartition("/")[2][:8]):
        assert commands("get", asked, "-o", str(target))[0] == 0
        assert target.read_bytes() == data
        target.unlink()
    assert commands("get", output.uri + "?lines=1")[0] == 2
    status, _, err = commands("get", "0" * 20)
    assert status == 2
    assert "No artifact matches" in err
    assert "`artifacts list` shows the ids" in err


def test_get_overwrites_a_file_only_with_force(commands: Commands, tmp_path: Path) -> None:
    artifact = commands.left("x", b"new")
    target = tmp_path / "target"
    target.write_text("old")
    status, _, err = commands("get", artifact.uri, "-o", str(target))
    assert (status, "already exists" in err, "--force" in err) == (2, True, True)
    assert target.read_text() == "old"
    assert commands("get", artifact.uri, "-o", str(target), "--force")[0] == 0
    assert target.read_text() == "new"
    # A link is replaced; its target stays.
    link = tmp_path / "link"
    link.symlink_to(target)
    for force in ([], ["--force"]):
        other = commands.left("y", b"other")
        commands("get", other.uri, "-o", str(link), *force)
        assert target.read_text() == "new"
    assert link.read_text() == "other"
    for wrong in (tmp_path, tmp_path / "no" / "where"):
        for force in ([], ["--force"]):
            assert commands("get", artifact.uri, "-o", str(wrong), *force)[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "state", "target"]


def test_a_damaged_artifact_leaves_no_file(commands: Commands, tmp_path: Path) -> None:
    artifact = commands.left("x", b"good")
    (commands.state / "blobs" / artifact.digest[:2] / artifact.digest).write_bytes(b"evil")
    for force in ([], ["--force"]):
        status, _, err = commands("get", artifact.uri, "-o", str(tmp_path / "target"), *force)
        assert (status, "damaged" in err) == (1, True)
        assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_get_shows_no_escape_on_a_terminal(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = commands.left("stdout", b"a\x1b[2J\tb\n\xe2\x80\xae", kind="stdout")
    binary = commands.left("x.bin", b"\0\x1b")
    monkeypatch.setattr(sys, "stdout", terminal := TerminalOutput())
    assert [commands("get", each.uri)[0] for each in (text, binary)] == [0, 2]
    assert terminal.getvalue() == "a\\x1b[2J\tb\n\\u202e"


def test_some_are_removed_or_those_of_a_run_or_all(commands: Commands) -> None:
    kept = [commands.left(str(number), str(number).encode()) for number in range(4)]
    commands.left("other", b"other", run=OTHER_RUN)
    # One wrong id removes nothing.
    assert commands("rm", kept[0].uri, "0" * 20)[0] == 2
    assert len(commands.store.find_all(None)) == 5
    status, _, err = commands("rm", kept[0].uri, kept[1].digest[:12], kept[0].uri)
    assert (status, err) == (0, "Removed 2 artifacts.\n")
    assert commands("rm", "--run", "0123")[2] == "Removed 2 artifacts.\n"
    for unclear in ((), (kept[2].uri, "--all"), ("--run", "0", "--all"), ("--run", "")):
        assert commands("rm", *unclear)[0] == 2
    assert len(commands.store.find_all(None)) == 1
    assert commands("rm", "--all")[2] == "Removed 1 artifact.\n"
    assert commands.store.find_all(None) == ()
