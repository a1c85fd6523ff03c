"""Which files of a workspace are kept, and that they come back there and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.guest.checkpoint_rig import opened, saved


@pytest.mark.guarantee("checkpoints")
def test_files_come_back_and_nothing_through_links(tmp_path: Path) -> None:
    space, other = tmp_path / "space", tmp_path / "other"
    for path in (
        space / "sub/deep",
        space / "out",
        space / "__pycache__",
        other,
        tmp_path / "aside",
    ):
        path.mkdir(parents=True)
    (space / "a.txt").write_text("a")
    (space / "sub/deep/b").write_bytes(bytes(1000))
    (space / "sub/deep/b").chmod(0o640)
    (space / "out/left").write_text("handed over already")
    (space / "__pycache__/x.pyc").write_text("x")
    (tmp_path / "aside/secret").write_text("not ours")
    (space / "link").symlink_to(tmp_path / "aside/secret")
    (space / "linked").symlink_to(tmp_path / "aside")
    os.mkfifo(space / "pipe")
    os.chdir(space / "sub")
    data, lost = saved({}, workspace=str(space))
    assert lost == {
        "file link": "it is a link",
        "file linked": "it is a link",
        "file pipe": "it is no file",
    }
    assert b"not ours" not in data
    (other / "a.txt").write_text("newer")
    assert opened(data, str(other)) == ({}, {})
    assert sorted(str(p.relative_to(other)) for p in other.rglob("*") if p.is_file()) == [
        "a.txt",
        "sub/deep/b",
    ]
    assert (other / "a.txt").read_text() == "newer"
    assert (other / "sub/deep/b").stat().st_mode & 0o777 == 0o640
    assert Path.cwd() == other / "sub"


def test_files_have_a_share_of_the_limit_and_the_largest_go_first(tmp_path: Path) -> None:
    for name, size in (("small", 10), ("medium", 20_000), ("large", 40_000)):
        (tmp_path / name).write_bytes(bytes(size))
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    data, lost = saved({"a": bytes(30_000)}, limit=60_000)
    assert set(lost) == {"file large", "file sparse"}
    assert len(data) < 60_000
    other = tmp_path / "other"
    other.mkdir()
    found, _ = opened(data, str(other))
    assert found == {"a": bytes(30_000)}
    assert sorted(p.name for p in other.iterdir()) == ["medium", "small"]


@pytest.mark.guarantee("checkpoints")
@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", ".", "a//b", "link/x", "a\0b"])
def test_a_changed_checkpoint_writes_nothing_outside_of_the_workspace(
    tmp_path: Path, path: str
) -> None:
    space, aside = tmp_path / "space", tmp_path / "aside"
    space.mkdir()
    aside.mkdir()
    (space / "link").symlink_to(aside)
    data, _ = saved({})
    line, _, rest = data.partition(b"\n")
    header = json.loads(rest[8 : 8 + int.from_bytes(rest[:8], "big")])
    header["names"] = []
    header["files"] = [[path, 0o644, 1]]
    header["directory"] = "../aside"
    made = json.dumps(header).encode()
    changed = line + b"\n" + len(made).to_bytes(8, "big") + made + b"x"
    _, lost = opened(changed, str(space))
    assert f"file {path}" in lost
    assert lost["working directory"] == "it is outside of the workspace"
    assert list(aside.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["aside", "space"]


def test_a_directory_outside_of_the_workspace_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "space").mkdir()
    _, lost = saved({}, workspace=str(tmp_path / "space"))
    assert lost == {"working directory": "it is outside of the workspace"}
