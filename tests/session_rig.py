"""Runs in sessions, and signals between processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from bridge.model import RunRequest, RunResult, SessionReport
from bridge.runs import Engine
from bridge.settings import Settings
from bridge.store import Store
from bridge.store.schema import sessions
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend

OWNER = "ada"


async def run(engine: Engine, code: str, *, session: str = "work", **fields: Any) -> RunResult:
    request = RunRequest(code=code, session=session, **{"owner": OWNER, **fields})
    with anyio.fail_after(60):
        return await engine.run(request)


async def value(engine: Engine, code: str, **fields: Any) -> Any:
    """Return the value of a successful program in a session."""
    result = await run(engine, code, **fields)
    assert result.status == "success", result.error
    return result.result


def told(result: RunResult) -> SessionReport:
    assert result.session is not None
    return result.session


def saved_sessions(state: Path) -> int:
    """Return the number of sessions in the store of a state directory."""
    return len(Store(state).query(sessions.select()))


def waits_for(path: Path, *, said: Path) -> str:
    """Return a program that creates `said`, then waits until a file exists."""
    begun = f"open({str(said)!r}, 'w').close()\n"
    return (
        f"import os, time\n{begun}while not os.path.exists({str(path)!r}):\n    time.sleep(0.01)\n"
    )


@asynccontextmanager
async def reopened(
    settings: Settings, backend: FakeBackend, *finds: Any, **changes: Any
) -> AsyncIterator[Engine]:
    changed = replace(settings, **changes)
    finder = ListFinder(*finds)
    async with engine_on(backend, changed, finder=finder) as engine:
        yield engine
    assert backend.live == set()
