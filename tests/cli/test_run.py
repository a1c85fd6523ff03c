"""Plans at a terminal are shown, asked about and applied; scripts only see them."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from bridge.callers.client import RunProgress
from bridge.cli.run import (
    TERMINAL,
    exit_status,
    is_fully_shown,
    pictures,
    run_and_apply,
    run_program,
    show,
)
from bridge.cli.run import _run_live as run_live
from bridge.cli.terminal import LiveTerminal, Terminal
from bridge.errors import ApprovalRefusedError
from bridge.gate.pipeline import Tally
from bridge.gate.policy import CallFacts
from bridge.gate.question import MAX_PLAN_LINES
from bridge.model import Artifact, HeldCall, Plan, RunRequest, RunResult, ShownContent
from bridge.runs import open_engine
from bridge.settings import Settings
from tests.cli.desk import desk
from tests.engine_rig import ListFinder, always_choose, backend, engine_on, settings
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorder, tools_recorded
from tests.waiting import typing_answers

__all__ = ["backend", "settings"]

CODE = (
    "made = await mcp_desk.create(title='a')\nawait mcp_desk.write_note(topic='t', text=made.url)"
)


async def test_a_plan_is_applied_after_a_yes_at_a_terminal_only(
    settings: Settings, backend: FakeBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "calls.log"
    async with engine_on(backend, settings, finder=ListFinder(recorder("desk", log))) as engine:

        async def run(terminal: Terminal, *, scripted: bool = False) -> RunResult:
            request = RunRequest(code=CODE, principal=TERMINAL, mode="plan")
            with anyio.fail_after(60):
                return await run_and_apply(engine, request, terminal, scripted=scripted)

        result = await run(Terminal(io.StringIO(), io.StringIO()))
        show(result, terminal=False)
        shown = capsys.readouterr()
        assert exit_status(result) == 0
        assert "#2 desk.write_note" in shown.out
        assert "terminal" in shown.err
        assert tools_recorded(log) == []

        with desk() as (typist, reader, writer):
            person = Terminal(reader, writer)
            assert (await run(person, scripted=True)).plan is not None
            assert tools_recorded(log) == []
            # Typed before anybody was asked, it allows nothing.
            os.write(typist, b"apply\n")
            async with typing_answers(typist, "no\n") as first:
                with pytest.raises(ApprovalRefusedError):
                    await run(person)
            assert tools_recorded(log) == []
            capsys.readouterr()
            async with typing_answers(typist, "apply\n") as second:
                applied = await run(person)
        asked = "Apply 2 calls: 1 × desk."
        assert [text.count(asked) for text in (*first, *second)] == [1, 1]
        assert (exit_status(applied), applied.plan) == (0, None)
        shown = capsys.readouterr()
        assert "#2 desk.write_note" in shown.out
        assert "2 of 2 calls done." in shown.err
        assert tools_recorded(log) == ["create", "write_note"]


CALL = HeldCall(
    number=1, server="desk", tool="create", arguments={}, action="ask", rule="default for writes"
)


def plan_of(*calls: HeldCall) -> Plan:
    return Plan(plan_id="0" * 16, seconds=60, calls=calls)


def test_a_plan_that_the_question_lists_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(CALL)
    assert is_fully_shown(plan)
    assert not is_fully_shown(replace(plan, stopped="line 2: it looks at a held result"))
    text = "x" * 200
    long = (replace(CALL, number=n, tool=f"t{n}", arguments={"text": text}) for n in range(99))
    assert not is_fully_shown(plan_of(*long))
    many = replace(CALL, arguments={f"a{n}": n for n in range(MAX_PLAN_LINES)})
    assert not is_fully_shown(plan_of(many))
    result = RunResult(run_id="r", status="success", summary="", stdout="planned\n", plan=plan)
    show(result, terminal=True, lists_plan=False)
    assert capsys.readouterr().out == "planned\n"
    unknown = plan_of(replace(CALL, action="allow", rule="no policy"))
    show(replace(result, plan=unknown), terminal=False)
    assert "`mcp-code-bridge policy init`" in capsys.readouterr().err


async def test_a_script_s_plan_says_that_no_later_process_can_apply_it(
    settings: Settings,
    backend: FakeBackend,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finder = ListFinder(recorder("desk", tmp_path / "calls.log"))
    opened = partial(open_engine, finder=finder, choose_backend=always_choose(backend))
    monkeypatch.setattr("bridge.cli.run.open_engine", opened)
    assert await run_program(settings, code=CODE, plan=True, as_json=True) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert len(plan["calls"]) == 2
    assert "no other can apply it" in plan["note"]
    assert not {"id", "seconds"} & plan.keys()


async def test_an_interruption_names_the_calls_that_went_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = Tally()

    class Engine:
        def __init__(self, scope: anyio.CancelScope) -> None:
            self.scope = scope

        async def run(self, request: RunRequest, client: LiveTerminal) -> RunResult:
            run_progress = RunProgress()
            run_progress.tally = tally
            client.follow(run_progress)
            self.scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

    async def interrupt_run() -> str:
        with anyio.CancelScope() as scope:
            request = RunRequest(code=CODE)
            await run_live(cast("Any", Engine(scope)), request, scripted=False)
        return capsys.readouterr().err

    assert await interrupt_run() == "Interrupted. No call went out.\n"
    for tool in ("create", "create", "wri\x1bte"):
        tally.count("sent", CallFacts(server="desk", tool=tool))
    tally.count("unknown", CallFacts(server="desk", tool="create"), "no answer came")
    assert await interrupt_run() == (
        "Interrupted. 3 calls had gone out: 2 × desk.create, 1 × desk.wri?te. "
        "Not known whether carried out: 1 × desk.create (no answer came).\n"
    )


ORIGINAL = Artifact(
    uri="bridge://artifacts/a",
    name="shown-1.png",
    mime_type="image/png",
    size=9,
    digest="0" * 64,
    run_id="r",
    kind="shown",
)
RESULT = RunResult(
    run_id="r",
    status="success",
    summary="",
    stdout="1\n",
    shown=(
        ShownContent(mime_type="image/png", data=b"png", width=6, height=4, artifact=ORIGINAL),
        ShownContent(mime_type="text/markdown", text="|a|"),
        ShownContent(
            mime_type="text/plain", text="b", note="the text\x1b of a page", artifact=ORIGINAL
        ),
    ),
)


def test_texts_are_output_and_a_terminal_names_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    notes = (
        "shown: image/png 6x4 bridge://artifacts/a\n"
        "shown: text/plain (the text\\x1b of a page) bridge://artifacts/a\n"
    )
    for terminal in (True, False):
        show(RESULT, terminal=terminal)
        assert capsys.readouterr() == ("1\n|a|\nb\n", notes if terminal else "")
    assert pictures(RESULT) == [ORIGINAL]
