"""Callers over HTTP, where none is authenticated, have no server started by an answer."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from mcp import Client

from bridge.settings import Settings
from tests.asker_rig import call, text_of
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorder
from tests.server.test_approving import ERAS, Person
from tests.server.web_rig import web

MARKING = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('started')"


@pytest.mark.guarantee("identified-approvers")
@pytest.mark.parametrize("era", ERAS)
async def test_without_authentication_no_answer_starts_a_server(
    settings: Settings, backend: FakeBackend, tmp_path: Path, era: str
) -> None:
    config, mark, person = tmp_path / "config.toml", tmp_path / "mark", Person("once", "always")
    config.write_text('[policy]\nstart = "ask"\n')
    server = replace(recorder("desk", tmp_path), args=("-c", MARKING, str(mark)))
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            engine_on(backend, settings, config=config, finder=ListFinder(server))
        )
        url = await stack.enter_async_context(web(engine))
        client = await stack.enter_async_context(Client(url, mode=era, elicitation_callback=person))
        refused = text_of(await call(client, "await mcp_desk.list_notes()"))
    assert "The server desk is not started: that needs a person's approval" in refused
    assert "`serve --http` does not authenticate its callers" in refused
    assert person.asked == []
    assert not mark.exists()


@pytest.mark.guarantee("identified-approvers")
@pytest.mark.parametrize("era", ERAS)
async def test_without_authentication_no_answer_approves_a_projects_server(
    settings: Settings, backend: FakeBackend, tmp_path: Path, era: str
) -> None:
    project, mark, person = tmp_path / "project", tmp_path / "mark", Person("session", "always")
    (project / ".git").mkdir(parents=True)
    entry = {"command": sys.executable, "args": ["-c", MARKING, str(mark)]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"desk": entry}}))
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_on(backend, settings, cwd=str(project)))
        url = await stack.enter_async_context(web(engine))
        client = await stack.enter_async_context(Client(url, mode=era, elicitation_callback=person))
        refused = text_of(await call(client, "await mcp_desk.list_notes()"))
    assert "No user can be asked: the owner of this run is unknown" in refused
    assert person.asked == []
    assert not mark.exists()
