"""The skills at the terminal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bridge.cli import skills as commands
from bridge.cli.main import main
from bridge.cli.person import Person
from bridge.model import Provenance
from bridge.runs import open_engine
from bridge.saved_functions.source import Header, encode_skill, source_digest
from bridge.settings import load
from tests.cli.desk import command_line, desk
from tests.waiting import typing_answers

READ = Provenance(run_id="r1", labels=frozenset({"private-data"}), servers=frozenset({"mail"}))


def test_skills_are_listed_shown_approved_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_BRIDGE_SKILLS_DIR", str(tmp_path / "skills"))
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        return command_line(capsys)("skills", *words)

    assert run("list")[2].startswith("No skills in ")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "greet.py").write_text("def greet():\n    '''Say \x1b[1mhello.'''\n")
    (tmp_path / "skills" / "broken.py").write_text("def broken(:")
    [_, listed, _] = run("list")
    assert "unusable" in listed
    assert "not reviewed, edited" in listed
    assert "\x1b" not in listed
    [_, shown, told] = run("show", "greet")
    assert "Say \\x1b[1mhello." in shown
    line = told.splitlines()[-1]
    seen = line.rpartition(" ")[2]
    assert line.endswith(f"mcp-code-bridge skills approve {seen}")
    assert seen.startswith("greet@")
    assert run("show", "gret")[0] == 2

    # By its name alone no one has seen it; half a digest could be another's.
    status, _, told = run("approve", "greet")
    assert (status, f"skills approve {seen}" in told) == (2, True)
    assert run("approve", seen[:-1])[0] == 2
    (tmp_path / "skills" / "greet.py").write_text("def greet():\n    steal()\n")
    status, _, told = run("approve", seen)
    assert (status, "has changed since it was shown" in told) == (2, True)
    assert not any(each["approved"] for each in json.loads(run("list", "--json")[1]))

    whole = json.loads(run("show", "--json", "greet")[1])["digest"]
    assert "until it changes" in run("approve", f"greet@{whole}")[2]
    found = {each["name"]: each["approved"] for each in json.loads(run("list", "--json")[1])}
    assert found == {"broken": False, "greet": True}
    assert json.loads(run("show", "--json", "greet")[1])["signature"] == "greet()"
    assert run("rm", "greet", "broken")[0] == 0
    assert list((tmp_path / "skills").iterdir()) == []
    assert run("rm", "greet")[0] == 2


def test_what_was_seen_is_the_description_too_if_a_run_that_had_read_something_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program may save the same source with another, between a look and the approval."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_BRIDGE_SKILLS_DIR", str(tmp_path))
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    source = "def kept():\n    pass\n"

    def save(description: str) -> None:
        digest = source_digest(source)
        header = Header(description=description, version=1, digest=digest, provenance=READ)
        (tmp_path / "kept.py").write_text(encode_skill(header, source))

    save("A way")
    assert main(["skills", "show", "kept"]) == 0
    seen = capsys.readouterr().err.splitlines()[-1].rpartition(" ")[2]
    save("Another")
    assert main(["skills", "approve", seen]) == 2
    assert "has changed since it was shown" in capsys.readouterr().err
    save("A way")
    assert main(["skills", "approve", seen]) == 0


async def test_at_a_terminal_what_is_approved_is_shown_and_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was saved while the person read is another text, and no one has seen that."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "skills"
    folder.mkdir()
    environ = {"MCP_BRIDGE_SKILLS_DIR": str(folder), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "s")}
    settings = load({}, {**os.environ, **environ})
    (folder / "greet.py").write_text("def greet():\n    return 'hello'\n")
    with desk() as (typist, reader, writer):
        person = Person(reader, writer)

        monkeypatch.setattr(commands, "Person", lambda: person)

        async def approve(answer: str) -> tuple[int, str, str]:
            async with typing_answers(typist, answer) as told:
                status = await commands.approve(settings, names=["greet"])
            return status, told[0], capsys.readouterr().err

        os.write(typist, b"yes\n")
        status, shown, _ = await approve("no\n")
        assert (status, "return 'hello'" in shown, "(2 lines)?" in shown) == (1, True, True)
        async with open_engine(settings) as engine:
            index = engine.skills.index
            before = await index.get("greet")
            text = f"def greet():\n    x = '\u3164'{' ' * 90}; steal()\n"
            (folder / "greet.py").write_text(text, "utf-8")
            assert not await index.approve(before)
            assert await index.approvals() == set()
            status, shown, said = await approve("yes\n")
            assert (status, r"x = '\u3164'[90 spaces]; steal()" in shown) == (0, True)
            assert "until it changes" in said
            [(name, digest)] = await index.approvals()
            assert (name, digest) == ("greet", (await index.get("greet")).digest)
