"""Calls that the person at a terminal is asked about, as `mcp-code-bridge run` has them asked."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import anyio

from bridge.cli.run import request_of
from bridge.cli.terminal import Terminal
from bridge.model import RunResult
from bridge.settings import Settings, load
from tests.cli.desk import desk
from tests.engine_rig import ListFinder, backend, engine_on, settings
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorder, tools_recorded
from tests.waiting import typing_answers

__all__ = ["backend", "settings"]

CODE = "await mcp_desk.write_note(topic='t', text='x')\n'done'"


def _policy(path: Path) -> Settings:
    path.write_text("[policy]\n")
    return load({}, {**os.environ, "MCP_BRIDGE_CONFIG": str(path)})


async def test_a_person_at_a_terminal_is_asked_and_a_script_is_refused(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    log, config = tmp_path / "calls.log", tmp_path / "config.toml"
    own = replace(settings, policy=_policy(config).policy)
    async with engine_on(backend, own, finder=ListFinder(recorder("desk", log))) as engine:

        async def run(terminal: Terminal) -> RunResult:
            with anyio.fail_after(60):
                return await engine.run(request_of(code=CODE), terminal)

        script = Terminal(io.StringIO("1\n"), io.StringIO())
        refused = await run(script)
        assert "Nobody can be asked: this run has no terminal. It was not called." in refused.error
        with desk() as (typist, reader, writer):
            person = Terminal(reader, writer)
            # Typed before anybody was asked, it allows nothing.
            os.write(typist, b"always\n")
            async with typing_answers(typist, "no\n"):
                assert (await run(person)).status == "error"
            assert tools_recorded(log) == []
            async with typing_answers(typist, "always\n") as told:
                assert (await run(person)).result == "done"
            # Written into the policy, which the next run has read again.
            assert (await run(person)).result == "done"
    [shown] = told
    assert (
        "?\nReason: your policy asks before calls with an unknown effect\nArguments digest: "
        in shown
    )
    assert "  1. Once [call]\n  2. This run, any arguments [run]\n" in shown
    # The bridge ends with the run.
    assert "[session]" not in shown
    assert shown.count("Decision (1-4, or a word in brackets): ") == 1
    assert tools_recorded(log) == ["write_note"] * 2
