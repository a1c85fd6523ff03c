"""Callers over HTTP, where none is authenticated, have no server started by an answer."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from bridge.settings import Settings
from tests.asker_rig import call, text_of
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.recorder_rig import recorder
from tests.server.test_approving import Person
from tests.server.web_rig import web

MARKING = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('started')"


@pytest.mark.guarantee("identified-approvers")
@pytest.mark.parametrize("of_project", [False, True])
async def test_without_authentication_no_answer_starts_or_approves_a_server(
    settings: Settings, backend: FakeBackend, tmp_path: Path, era: str, of_project: bool
) -> None:
    mark, person = tmp_path / "mark", Person("once", "always")
    entry = {"command": sys.executable, "args": ["-c", MARKING, str(mark)]}
    options: dict[str, Any]
    if of_project:
        (tmp_path / "project" / ".git").mkdir(parents=True)
        (tmp_path / "project" / ".mcp.json").write_text(json.dumps({"mcpServers": {"desk": entry}}))
        options = {"cwd": str(tmp_path / "project")}
    else:
        (tmp_path / "config.toml").write_text('[policy]\nstart = "ask"\n')
        server = replace(recorder("desk", tmp_path), args=("-c", MARKING, str(mark)))
        options = {"config": tmp_path / "config.toml", "finder": ListFinder(server)}
    async with (
        engine_on(backend, settings, **options) as engine,
        web(engine) as url,
        Client(url, mode=era, elicitation_callback=person) as client,
    ):
        refused = text_of(await call(client, "await mcp_desk.list_notes()"))
    if of_project:
        assert "No user can be asked: the owner of this run is unknown" in refused
    else:
        assert "The server desk is not started: that needs a person's approval" in refused
        assert "`serve --http` does not authenticate its callers" in refused
    assert person.asked == []
    assert not mark.exists()
