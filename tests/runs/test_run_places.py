"""Runs, sessions and commands of one engine share the places there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.commands.runner import Commands
from bridge.model import CommandRequest, RunRequest, RunResult
from bridge.runs import Engine
from bridge.runs.suspended_runs import OpenQuestions
from bridge.sandbox import pool
from bridge.sandbox.backend import LaunchSpec, Sandbox
from bridge.settings import Settings
from bridge.settings.commands import parse_commands
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend
from tests.fakes.client import FakeClient
from tests.raised import raises_code
from tests.waiting import until, until_exists


@pytest.fixture
async def narrow(settings: Settings) -> AsyncIterator[Engine]:
    async with engine_on(
        FakeBackend(), replace(settings, runs=1), finder=ListFinder(workshop())
    ) as engine:
        yield engine


class Clinging(FakeBackend):
    """A backend whose sandboxes take long to go."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving, self.may_go = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        async with super().launch(spec) as sandbox:
            yield sandbox
            self.leaving.set()
            await self.may_go.wait()


def _waits_for(path: Path) -> str:
    """Return a program that says where it is, and ends when a file is there."""
    return (
        f"import os, time\nopen({str(path)!r} + '.begun', 'w').close()\n"
        f"while not os.path.exists({str(path)!r}): time.sleep(0.01)\n'done'"
    )


def _begun(path: Path) -> Path:
    return path.with_name(f"{path.name}.begun")


async def test_a_run_beyond_the_places_waits_says_so_and_has_all_its_time_afterwards(
    narrow: Engine, tmp_path: Path
) -> None:
    first, client = tmp_path / "first", FakeClient()
    results: dict[str, RunResult] = {}

    async def run(name: str, request: RunRequest, client: FakeClient | None = None) -> None:
        results[name] = await narrow.run(request, client)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "first", RunRequest(code=_waits_for(first)))
            await until_exists(_begun(first))
            tasks.start_soon(run, "second", RunRequest(code="'second'", timeout=1), client)
            tasks.start_soon(run, "session", RunRequest(code="'third'", session="s"))
            await until(lambda: narrow.queue.waiting == 2)
            await until(lambda: any("waiting: this run is next" in text for _, text in client.told))
            first.touch()
    assert [results[name].result for name in ("first", "second", "session")] == [
        "done",
        "second",
        "third",
    ]
    await until(lambda: (narrow.queue.taken, narrow.queue.waiting) == (0, 0))


async def test_a_place_is_given_on_when_its_sandbox_is_gone_and_the_result_does_not_wait(
    settings: Settings,
) -> None:
    backend = Clinging()

    with anyio.fail_after(60):
        async with (
            engine_on(backend, replace(settings, runs=1), finder=ListFinder(workshop())) as engine,
            anyio.create_task_group() as tasks,
        ):
            assert (await engine.run(RunRequest(code="1"))).result == 1
            tasks.start_soon(engine.run, RunRequest(code="2"))
            await backend.leaving.wait()
            await until(lambda: engine.queue.waiting == 1)
            assert backend.launched == 1
            backend.may_go.set()
    assert backend.launched == 2


async def test_a_command_takes_a_place_as_a_run_does(
    narrow: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_WAITING_OF_OWNER", 0)
    table = {"tool": {"executables": ["true"], "workspace": str(tmp_path)}}
    settings = replace(narrow.settings, commands=parse_commands(table, "commands"))
    commands = Commands(settings, queue=narrow.queue)
    request = CommandRequest(profile="tool", stages=(("true",),))
    async with narrow.queue.slot("", lambda ahead: None):
        with raises_code("overloaded", match="under way"):
            await commands.run(request)


@pytest.mark.guarantee("runs-at-once")
async def test_runs_that_wait_for_people_leave_places_for_others() -> None:
    questions = OpenQuestions(1)
    with questions.ask("one"):
        with questions.ask("one"):
            pass
        with raises_code("cannot_ask", match="1 runs wait for answers"), questions.ask("two"):
            pass
    # One that has its answers waits for no one.
    with questions.ask("two"):
        pass
