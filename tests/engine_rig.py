"""An engine on the fake backend, with real servers behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.discovery.finder import Discovery
from bridge.model import RunRequest, RunResult, ServerSpec, Source
from bridge.runs import Engine, open_engine
from bridge.settings import Settings, load
from tests.fakes.backend import FakeBackend

WORKSHOP = Path(__file__).parent / "fakes" / "servers" / "workshop.py"


def workshop(name: str = "work-shop") -> ServerSpec:
    return ServerSpec(
        name=name,
        transport="stdio",
        source=Source(client="Test", scope="user", path="/test.json", key=f"mcpServers.{name}"),
        command=sys.executable,
        args=(str(WORKSHOP),),
        description="A workshop",
    )


class ListFinder:
    """Finds the given servers."""

    def __init__(self, *specs: ServerSpec) -> None:
        self.specs = specs

    def stamp(self) -> object:
        return self.specs

    def find(self) -> Discovery:
        return Discovery(servers=self.specs, skipped=(), warnings=(), stamp=())


def settings_in(home: Path, **flags: str) -> Settings:
    """Return settings that touch nothing outside a directory."""
    environ = {**os.environ, "HOME": str(home), "MCP_BRIDGE_STATE_DIR": str(home / "state")}
    return load({"warm": "0", **flags}, environ)


def always_choose(backend: object) -> Callable[[object], Awaitable[Any]]:
    """Return a function that chooses a backend, for `open_engine`."""

    async def choose(_: object) -> object:
        return backend

    return choose


def engine_on(
    backend: object, settings: Settings, *, config: Path | None = None, **options: Any
) -> AbstractAsyncContextManager[Engine]:
    """Open an engine on a backend, with the policy of a settings file."""
    if config is not None:
        loaded = load({}, {**os.environ, "MCP_BRIDGE_CONFIG": str(config)})
        settings = replace(settings, policy=loaded.policy)
    return open_engine(settings, choose_backend=always_choose(backend), **options)


@pytest.fixture
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    """Settings that touch nothing outside the test's directory; a parameter has flags."""
    return settings_in(tmp_path, **getattr(request, "param", {}))


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(workshop())


@pytest.fixture
async def engine(
    settings: Settings, backend: FakeBackend, finder: ListFinder
) -> AsyncIterator[Engine]:
    async with engine_on(backend, settings, finder=finder) as opened:
        yield opened
    assert backend.live == set()


Opener = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture
def opened(settings: Settings, backend: FakeBackend, finder: ListFinder) -> Opener:
    """A function that opens an engine with changed settings."""

    def opener(**changes: Any) -> AbstractAsyncContextManager[Engine]:
        return engine_on(backend, replace(settings, **changes), finder=finder)

    return opener


async def run_program(engine: Engine, code: str, **fields: Any) -> RunResult:
    with anyio.fail_after(60):
        return await engine.run(RunRequest(code=code, **fields))
