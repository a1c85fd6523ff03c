"""The folder of skills, and the approvals in the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.errors import InvalidRequestError, LibraryError
from bridge.saved_functions.files import MAX_SKILLS, MAX_VERSIONS, SkillFiles
from bridge.saved_functions.source import read_skill, text_digest
from tests.postgresql import store_at

pytestmark = pytest.mark.usefixtures("each_database")


@pytest.fixture
def files(tmp_path: Path) -> SkillFiles:
    return SkillFiles(tmp_path / "skills", store_at(tmp_path / "state"))


def source(number: int) -> str:
    return f"def f():\n    return {number}\n"


def version(saved: tuple[str, bool]) -> int:
    return read_skill("f", saved[0]).version


def test_every_version_stays_as_a_file_and_an_edit_is_one(files: SkillFiles) -> None:
    assert files.states() == {}
    assert files.text("f") is None
    first = files.save("f", source(1), "d", {}, "then")
    assert (version(first), first[1]) == (1, True)
    same = files.save("f", source(1), "d", {}, "now")
    assert (version(same), *same) == (1, first[0], False)
    described = files.save("f", source(1), "other", {"s": {"t": "digest"}}, "now")
    # The source is the same, and the text another.
    assert (version(described), described[1]) == (2, False)
    assert version(files.save("f", source(2), "d", {}, "now")) == 3
    header = read_skill("f", files.text("f") or "").header
    assert (header.created, header.updated) == ("then", "now")

    path = files.folder / "f.py"
    path.write_text(path.read_text().replace("return 2", "return 20"))
    assert version(files.save("f", source(3), "d", {}, "now")) == 5
    kept = {file.name: file.read_text() for file in (files.folder / "f").iterdir()}
    assert sorted(kept) == ["1.py", "2.py", "3.py", "4.py", "5.py"]
    returned = ((1, 1), (2, 1), (3, 2), (4, 20), (5, 3))
    assert all(f"return {n}\n" in kept[f"{version}.py"] for version, n in returned)

    # Removed and saved again, it does not begin again.
    assert files.remove("f", versions=False)
    assert version(files.save("f", source(5), "d", {}, "now")) == 6
    for number in range(7, MAX_VERSIONS + 10):
        files.save("f", source(number), "d", {}, "now")
    assert len(list((files.folder / "f").iterdir())) == MAX_VERSIONS
    assert files.remove("f", versions=True)
    assert not files.remove("f", versions=True)
    assert list(files.folder.iterdir()) == []


def test_other_things_in_the_folder_are_left_alone(files: SkillFiles, tmp_path: Path) -> None:
    files.save("good", source(1).replace("f()", "good()"), "", {}, "")
    (files.folder / ".git").mkdir()
    (files.folder / "README.md").touch()
    (files.folder / "no-name.py").touch()
    (files.folder / "link.py").symlink_to("/etc/passwd")
    (files.folder / "directory.py").mkdir()
    os.mkfifo(files.folder / "pipe.py")
    (files.folder / "large.py").write_bytes(b"#" * 200_000)
    assert set(files.states()) == {"good", "large"}
    for name in ("link", "directory", "pipe", "large"):
        with pytest.raises(LibraryError):
            files.text(name)
    assert set(files.texts(files.states())) == {"good"}
    for name in ("../good", "a/b", "", "x\0"):
        with pytest.raises(InvalidRequestError):
            files.text(name)
    with pytest.raises(InvalidRequestError, match="differs only by case"):
        files.save("Good", "", "", {}, "")
    for number in range(MAX_SKILLS):
        (files.folder / f"s{number}.py").touch()
    with pytest.raises(InvalidRequestError, match="500 skills"):
        files.save("one_more", "", "", {}, "")


@pytest.mark.guarantee("event-loop")
def test_of_removed_skills_the_versions_of_the_last_stay(files: SkillFiles) -> None:
    """Else a program that saves and removes under new names fills the disk."""
    own = files.folder / "own"
    own.mkdir(parents=True)
    (own / "notes.txt").write_text("mine")
    for number in range(105):
        files.save(f"f{number}", source(1), "d", {}, "now")
        files.remove(f"f{number}", versions=False)
    kept = {path.name for path in files.folder.iterdir()}
    assert "f104" in kept
    assert "f0" not in kept
    assert len(kept) <= 101
    assert (own / "notes.txt").read_text() == "mine"


def test_versions_are_not_written_where_a_link_leads(files: SkillFiles, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1.py").write_text("not ours")
    files.folder.mkdir(parents=True)
    (files.folder / "f").symlink_to(elsewhere)
    with pytest.raises(LibraryError, match="is a link"):
        files.save("f", "def f(): pass\n", "", {}, "")
    assert not files.remove("f", versions=True)
    assert [path.name for path in elsewhere.iterdir()] == ["1.py"]


VICTIM = """
import sys
from pathlib import Path
from bridge.saved_functions.files import SkillFiles
from tests.postgresql import store_at
files = SkillFiles(Path(sys.argv[1]) / "skills", store_at(Path(sys.argv[1])))
print("up", flush=True)
for number in range(10**9):
    files.save("f", "def f():\\n" + f"    return {number}\\n" * 300, str(number), {}, "")
"""


def test_killed_in_the_middle_of_saving_it_has_the_old_version_or_the_new(tmp_path: Path) -> None:
    files = SkillFiles(tmp_path / "skills", store_at(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not files.states():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    skill = read_skill("f", files.text("f") or "")
    assert not skill.edited
    assert set(skill.source.splitlines()[1:]) == {f"    return {skill.header.description}"}
    assert version(files.save("f", source(0), "", {}, "")) > skill.version


def test_approvals_are_of_one_source_and_what_is_damaged_approves_nothing(
    files: SkillFiles, tmp_path: Path
) -> None:
    def put(data: str) -> None:
        with store_at(tmp_path / "state").writing() as kept:
            kept.put("approved", "skills", "", data.encode())

    digest = text_digest(files.save("f", source(1), "", {}, "")[0])
    assert files.approvals() == set()
    for _ in range(2):
        assert files.approve("f", digest)
    assert not files.approve("f", "other")
    assert not files.approve("g", digest)
    assert files.approvals() == {("f", digest)}
    for damage in ("{", "[1]", '{"form": 2}', "[" * 100_000):
        put(damage)
        assert files.approvals() == set()
        with pytest.raises(LibraryError):
            files.approve("f", digest)
