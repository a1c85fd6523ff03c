"""Servers' questions at a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.cli.run import request_of
from bridge.cli.terminal import Terminal, prompt, read_field
from bridge.errors import CannotAskError
from bridge.model import Json, RunResult
from bridge.settings import Settings, load
from tests.cli.desk import desk
from tests.discovery.writing import write
from tests.engine_rig import ListFinder, backend, engine_on, settings
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorder, tools_recorded
from tests.waiting import PATIENCE_SECONDS, typing_answers

FORM: dict[str, Json] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "age": {"type": "integer"},
        "sure": {"type": "boolean"},
    },
    "required": ["name"],
}


async def _ask(typed: Sequence[str], params: dict[str, Json]) -> tuple[object, str]:
    """Ask, and type the answers; return the result and all that was shown."""
    with desk() as (typist, reader, writer), anyio.fail_after(PATIENCE_SECONDS):
        async with typing_answers(typist, *typed) as shown:
            answered = await Terminal(reader, writer).elicit(params)
    return answered, shown[0]


@pytest.mark.parametrize(
    ("typed", "content"),
    [
        (("Ann\n", "41\n", "yes\n"), {"name": "Ann", "age": 41, "sure": True}),
        (("\n", "Ann\n", "old\n", "\n", "\n"), {"name": "Ann"}),
        (("Ann\n", "\x04"), None),
    ],
)
async def test_a_form_is_filled_by_line(typed: tuple[str, ...], content: Json) -> None:
    answered, _ = await _ask(typed, {"message": "Who?", "requestedSchema": FORM})
    accepted = {"action": "accept", "content": content}
    assert answered == ({"action": "decline"} if content is None else accepted)


CHOICE: dict[str, Json] = {
    "type": "object",
    "properties": {
        "decision": {
            "title": "Decision",
            "enum": ["call", "run", "no"],
            "enumNames": ["Yes, this one", "Yes, all\n9. Yes", "No"],
        }
    },
    "required": ["decision"],
}


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        (("2\n",), "run"),
        (("ma\x1bybe\n", "no\n"), "no"),
        (("\n", "4\n", "yes\n", "Call\n", "call\n"), "call"),
    ],
)
async def test_a_choice_is_made_by_number_or_word(typed: tuple[str, ...], decision: str) -> None:
    params: dict[str, Json] = {"message": "May it?", "requestedSchema": CHOICE}
    answer, shown = await _ask(typed, params)
    assert answer == {"action": "accept", "content": {"decision": decision}}
    question = "Decision (1-3, or a word in brackets): "
    titles = "  1. Yes, this one [call]\n  2. Yes, all\\n9. Yes [run]\n  3. No [no]\n"
    assert titles + question in shown
    assert shown.count(question) == len(typed)
    if "ma\x1bybe\n" in typed:
        assert "  ma\\x1bybe is not a valid answer. Choose one of call, run, no, or its" in shown


async def test_a_url_is_shown_and_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    url = "https://example.com"
    params: dict[str, Json] = {"mode": "url", "message": "[s] \x1b[2J", "url": url}
    answer, shown = await _ask(("\n",), params)
    assert (answer, "\\x1b[2J" in shown, url in shown) == ({"action": "accept"}, True, True)
    # Only the mark, which names the asker, has control characters.
    mark, _, rest = shown.partition(" A server asks \x1b[0m\n")
    assert mark.endswith("\x1b[7m")
    assert "\x1b" not in rest


async def test_without_a_terminal_no_user_is_asked() -> None:
    terminal = Terminal(io.StringIO("Ann\n"), io.StringIO())
    with pytest.raises(CannotAskError, match="no terminal"):
        await terminal.elicit({"message": "Who?", "requestedSchema": FORM})
    with pytest.raises(CannotAskError, match="no model"):
        await terminal.sample({})
    assert not terminal.wants_progress


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ({"type": "string", "enum": ["a", "b"]}, "b", "b"),
        ({"oneOf": [{"const": "a", "title": "A"}]}, "a", "a"),
        ({"oneOf": [{"const": "b", "title": "A"}]}, "1", "b"),
        ({"type": "string", "enum": ["2", "3"], "enumNames": ["A", "B"]}, "2", "2"),
        ({"enum": ["apply", "none"], "enumNames": ["Yes, all 3", "No"]}, "y", "apply"),
        ({"enum": ["a", "b", "none"], "enumNames": ["Yes", "Yes, all", "No"]}, "N", "none"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "No", False),
        ({"type": "array"}, "a, b", ["a", "b"]),
        ({"type": "integer", "default": 3}, "", 3),
        ({}, "", None),
    ],
)
def test_a_line_is_read_by_its_schema(field: dict[str, Json], text: str, value: Json) -> None:
    assert read_field(field, text, needed=False) == value


@pytest.mark.parametrize(
    ("field", "text", "complaint"),
    [
        ({"enum": ["a", "b"]}, "c", "one of a, b"),
        ({"enum": ["a", "b"]}, "1", "one of a, b"),
        ({"enum": ["a", "b"], "enumNames": ["Yes", "Yes, all"]}, "y", "a, b, or its number"),
        ({"enum": ["a", "b"], "enumNames": ["Nothing", "Yeso"]}, "y", "one of a, b"),
        ({"enum": ["a", "b"], "enumNames": ["A"]}, "1", "one of a, b"),
        ({"type": "integer"}, "1.5", "whole number"),
        ({"type": "number"}, "x", "a number"),
        ({"type": "boolean"}, "maybe", "yes or no"),
        ({}, "", "required"),
    ],
)
def test_a_wrong_line_is_explained(field: dict[str, Json], text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_field(field, text, needed=True)


def test_a_field_says_what_it_takes() -> None:
    field: dict[str, Json] = {"title": "Size", "description": "of it", "enum": ["s", "m"]}
    assert prompt("x", field, needed=True) == "Size (of it; one of s, m): "
    assert prompt("x", {"type": "string"}, needed=False) == "x (may be empty): "


__all__ = ["backend", "settings"]

CODE = "await mcp_desk.write_note(topic='t', text='x')\n'done'"


async def test_a_user_at_a_terminal_is_asked_and_a_script_is_refused(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    log, config = tmp_path / "calls.log", write(tmp_path / "config.toml", "[policy]\n")
    policy = load({}, {**os.environ, "MCP_BRIDGE_CONFIG": str(config)}).policy
    own = replace(settings, policy=policy)
    async with engine_on(backend, own, finder=ListFinder(recorder("desk", log))) as engine:

        async def run(terminal: Terminal) -> RunResult:
            with anyio.fail_after(60):
                return await engine.run(request_of(code=CODE), terminal)

        script = Terminal(io.StringIO("1\n"), io.StringIO())
        refused = await run(script)
        assert "No user can be asked: this run has no terminal. It was not called." in refused.error
        with desk() as (typist, reader, writer):
            person = Terminal(reader, writer)
            # Input from before the question allows nothing.
            os.write(typist, b"always\n")
            async with typing_answers(typist, "no\n"):
                assert (await run(person)).status == "error"
            assert tools_recorded(log) == []
            async with typing_answers(typist, "always\n") as told:
                assert (await run(person)).result == "done"
            # The answer is in the policy, which the next run reads again.
            assert (await run(person)).result == "done"
    [shown] = told
    reason = "?\nReason: your policy asks before calls with an unknown effect\nArguments digest: "
    choices = "  1. Once [call]\n  2. This run, any arguments [run]\n"
    # The bridge ends with the run, so it offers no session.
    assert (reason in shown, choices in shown, "[session]" in shown) == (True, True, False)
    assert shown.count("Decision (1-4, or a word in brackets): ") == 1
    assert tools_recorded(log) == ["write_note"] * 2
