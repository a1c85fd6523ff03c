"""The files of `run`: only named files go in, and only the program's files come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.cli.run_files import check_out, read_files, write_files
from bridge.discovery.clients import LOCATIONS
from bridge.errors import ArtifactStoreError, InvalidRequestError, UsageError
from bridge.model import Artifact, InputFile
from bridge.runs.input_files import MAX_BYTES, quote

pytestmark = pytest.mark.guarantee("files-believed", "working-directory")


def artifact(name: str) -> Artifact:
    return Artifact(uri="", name=name, mime_type="", size=0, digest="", run_id="")


def content(found: Artifact) -> Iterator[bytes]:
    yield b"1:"
    yield found.name.encode()


def test_a_file_keeps_its_name_unless_the_user_gives_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a=b.csv").write_bytes(b"\0\xff")
    (tmp_path / "link").symlink_to("a=b.csv")
    monkeypatch.chdir(tmp_path)
    assert read_files((f"in/x.csv={tmp_path}/a=b.csv", "link")) == (
        InputFile(name="in/x.csv", data=b"\0\xff"),
        InputFile(name="link", data=b"\0\xff"),
    )
    assert read_files(()) == ()


def test_a_wrong_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with (tmp_path / "big").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for words, said in (
        ([f"{tmp_path}/none"], "--file: .*/none cannot be read"),
        ([f"x={tmp_path}"], "cannot be read"),
        (["x="], "'x=' names no file"),
        ([f"/abs={tmp_path}/a"], "relative"),
        ([f"{tmp_path}/a", f"{tmp_path}/big"], "/big takes the files over 33,554,432 bytes"),
    ):
        with pytest.raises((UsageError, InvalidRequestError), match=said):
            read_files(words)
    with pytest.raises(UsageError, match="cannot be made"):
        check_out(f"{tmp_path}/a/b")


def test_files_are_put_where_the_user_wants_them(tmp_path: Path) -> None:
    out = check_out(f"{tmp_path}/new/out")
    assert write_files([artifact("a"), artifact("d/e/f")], out, content) == (["a", "d/e/f"], [])
    assert (out / "a").read_text() == "1:a"
    assert (out / "d" / "e" / "f").read_text() == "1:d/e/f"
    assert sorted(path.name for path in out.rglob("*")) == ["a", "d", "e", "f"]


PROJECT_FILES = [row.template.partition("/")[2] for row in LOCATIONS if row.in_project]
TOOL_FILES = """
.mcp.json d/.envrc .git/hooks/pre-commit node_modules/.bin/x NODE_MODULES/x CLAUDE.md
CLAUDE.md. Make\u200dfile .git/x GIT~1/config CLAUDE~1.MD package.json::$DATA __pycache__/a.pyc a.so
sub/HEAD package-lock.json Taskfile.dist.yml mise.local.toml Pipfile lefthook.yml main.tf
docs/Claude.MD AGENTS.md GEMINI.md conftest.py t/conftest.py Makefile GNUmakefile package.json
web/package.json setup.py pyproject.toml vite.config.ts justfile Dockerfile x.pth MCP.json .MCP.JSON
sitecustomize.py compose.yaml docker-compose.override.yml Cargo.toml build.rs \uff23LAUDE.md
"""
HARMLESS = """
a report.csv report.md README.md index.html data.json config.json x/config.toml analysis.py main.py
test_x.py out.log make.txt package.json.txt servers/x.json requirements.txt Makefile.md
"""


@pytest.mark.parametrize("force", [False, True])
def test_no_file_is_put_where_other_programs_would_obey_it(tmp_path: Path, force: bool) -> None:
    refused = [name.replace("*", "x") for name in PROJECT_FILES] + TOOL_FILES.split()
    harmless = HARMLESS.split()
    artifacts = [artifact(name) for name in (*refused, *harmless)]
    written, problems = write_files(artifacts, tmp_path, content, force=force)
    assert written == harmless
    files = (path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert sorted(map(str, files)) == sorted(harmless)
    assert [each.split(" was not written")[0] for each in problems] == [*map(quote, refused)]


def test_no_file_that_other_programs_obey_is_written(tmp_path: Path) -> None:
    (tmp_path / "mcp-servers").mkdir()
    (tmp_path / "link").symlink_to("mcp-servers")
    for directory in ("mcp-servers", ".git/hooks", ".Claude", "link"):
        out = check_out(f"{tmp_path}/{directory}")
        written, problems = write_files([artifact("x.json")], out, content)
        assert (written, len(problems), list(out.iterdir())) == ([], 1, [])


@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_replaced_only_if_the_user_says_so(tmp_path: Path, force: bool) -> None:
    (tmp_path / "a").write_text("the user's")
    (tmp_path / "d").mkdir()
    _, problems = write_files(
        [artifact("a"), artifact("d"), artifact("e")], tmp_path, content, force=force
    )
    assert (tmp_path / "a").read_text() == ("1:a" if force else "the user's")
    assert (tmp_path / "e").read_text() == "1:e"
    exists = (
        "`{}` already exists and was kept; use --force to replace it. The run's copy: "
        "`mcp-code-bridge artifacts get `."
    )
    told = ["`d` cannot be written: Is a directory."] if force else [*map(exists.format, "ad")]
    assert problems == told


@pytest.mark.parametrize("force", [False, True])
def test_no_link_in_the_directory_leads_out_of_it(tmp_path: Path, force: bool) -> None:
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    home.mkdir()
    (home / "rc").write_text("the user's")
    (out / "a").symlink_to(home / "rc")
    (out / "d").symlink_to(home)
    names = ("a", "d/rc", "d/new", "../home/rc", str(home / "rc"), "x/../../home/rc")
    _, problems = write_files([artifact(name) for name in names], out, content, force=force)
    assert (home / "rc").read_text() == "the user's"
    assert [path.name for path in home.iterdir()] == ["rc"]
    assert len(problems) == (5 if force else 6), problems
    assert any("`d` is there, and is a link or no directory" in told for told in problems)
    assert (out / "a").is_symlink() is not force


def test_a_damaged_artifact_leaves_no_half_file(tmp_path: Path) -> None:
    def break_off(found: Artifact) -> Iterator[bytes]:
        yield b"half"
        if found.name == "a":
            raise ArtifactStoreError("It is damaged.")

    _, problems = write_files([artifact("a"), artifact("b")], tmp_path, break_off)
    assert problems == ["`a` could not be read: It is damaged."]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
