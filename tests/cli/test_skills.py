"""The skills at the terminal."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from bridge.cli import kept as commands
from bridge.cli.terminal import Person
from bridge.model import Provenance
from bridge.runs import open_engine
from bridge.saved_functions.source import Header, encode_skill, source_digest
from bridge.settings import load
from tests.cli.desk import Cli, desk
from tests.waiting import typing_answers

READ = Provenance(run_id="r1", labels=frozenset({"private-data"}), servers=frozenset({"mail"}))


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home / "skills"
    folder.mkdir()
    monkeypatch.setenv("MCP_BRIDGE_SKILLS_DIR", str(folder))
    return folder


def test_skills_are_listed_shown_approved_and_removed(folder: Path, cli: Cli) -> None:
    run = partial(cli, "skills")
    assert run("list")[2].startswith("No skills in ")
    (folder / "greet.py").write_text("def greet():\n    '''Say \x1b[1mhello.'''\n")
    (folder / "broken.py").write_text("def broken(:")
    [_, listed, _] = run("list")
    assert "unusable" in listed
    assert "not reviewed, edited" in listed
    assert "\x1b" not in listed
    [_, shown, told] = run("show", "greet")
    assert "Say \\x1b[1mhello." in shown
    seen = told.splitlines()[-1].rpartition("mcp-code-bridge skills approve ")[2]
    assert seen.startswith("greet@")
    assert run("show", "gret")[0] == 2

    # A name does not prove that the user saw the text; a short digest could be another text's.
    status, _, told = run("approve", "greet")
    assert (status, f"skills approve {seen}" in told) == (2, True)
    assert run("approve", seen[:-1])[0] == 2
    (folder / "greet.py").write_text("def greet():\n    steal()\n")
    status, _, told = run("approve", seen)
    assert (status, "has changed since it was shown" in told) == (2, True)
    assert not any(each["approved"] for each in json.loads(run("list", "--json")[1]))

    whole = json.loads(run("show", "--json", "greet")[1])["digest"]
    assert "until it changes" in run("approve", f"greet@{whole}")[2]
    found = {each["name"]: each["approved"] for each in json.loads(run("list", "--json")[1])}
    assert found == {"broken": False, "greet": True}
    assert json.loads(run("show", "--json", "greet")[1])["signature"] == "greet()"
    assert run("rm", "greet", "broken")[0] == 0
    assert list(folder.iterdir()) == []
    assert run("rm", "greet")[0] == 2


def test_an_approval_covers_the_description_of_a_run_that_had_read_something(
    folder: Path, cli: Cli
) -> None:
    source = "def kept():\n    pass\n"

    def save(description: str) -> None:
        digest = source_digest(source)
        header = Header(description=description, version=1, digest=digest, provenance=READ)
        (folder / "kept.py").write_text(encode_skill(header, source))

    save("A way")
    status, _, err = cli("skills", "show", "kept")
    seen = err.splitlines()[-1].rpartition(" ")[2]
    save("Another")
    assert "has changed since it was shown" in cli("skills", "approve", seen)[2]
    save("A way")
    assert (status, cli("skills", "approve", seen)[0]) == (0, 0)


async def test_a_terminal_shows_what_is_approved_and_asks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load({}, dict(os.environ))
    (folder / "greet.py").write_text("def greet():\n    return 'hello'\n")
    with desk() as (typist, reader, writer):
        monkeypatch.setattr(commands, "Person", lambda: Person(reader, writer))

        async def approve(answer: str) -> tuple[int, str, str]:
            async with typing_answers(typist, answer) as told:
                status = await commands.approve_skills(settings, names=["greet"])
            return status, told[0], capsys.readouterr().err

        os.write(typist, b"yes\n")
        status, shown, _ = await approve("no\n")
        assert (status, "return 'hello'" in shown, "(2 lines)?" in shown) == (1, True, True)
        async with open_engine(settings) as engine:
            index = engine.skills.index
            before = await index.get("greet")
            # Saved while the user reads: no user has seen this text.
            text = f"def greet():\n    x = '\u3164'{' ' * 90}; steal()\n"
            (folder / "greet.py").write_text(text, "utf-8")
            assert not await index.approve(before)
            assert await index.approvals() == set()
            status, shown, said = await approve("yes\n")
            assert (status, r"x = '\u3164'[90 spaces]; steal()" in shown) == (0, True)
            assert "until it changes" in said
            [(name, digest)] = await index.approvals()
            assert (name, digest) == ("greet", (await index.get("greet")).digest)
