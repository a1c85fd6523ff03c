"""Logins that are offered to the person at the client, against a real authorization server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from bridge.errors import LoginRequiredError
from bridge.model import RunRequest
from bridge.runs import Engine
from bridge.settings import Settings
from tests.fakes.client import FakeClient, decline
from tests.fakes.servers.guarded import Guarded, guarded
from tests.plans.plan_rig import opened
from tests.upstream.rig import Rig

RUN = RunRequest(code="await mcp_server.echo(a=1)", principal="me")


@pytest.fixture
def fake() -> Iterator[Guarded]:
    with guarded() as made:
        yield made


@pytest.fixture
async def engine(settings: Settings, tmp_path: Path, fake: Guarded) -> AsyncIterator[Engine]:
    spec = Rig(tmp_path).remote(fake.url)
    async with opened(settings, [spec], tmp_path=tmp_path) as engine:
        yield engine


async def browse(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Do what a person does who agrees: open the address, and log in."""
    async with httpx2.AsyncClient() as browser:
        await browser.get(params["url"], follow_redirects=True)
    return {"action": "accept"}


async def test_a_login_is_offered_and_the_run_continues(engine: Engine) -> None:
    client = FakeClient(answer=browse, visits=True)
    for _ in range(2):
        result = await engine.run(RUN, client)
        assert (result.status, result.result) == ("success", {"a": 1})
    (asked,) = client.asked
    assert asked["mode"] == "url"
    host = urlsplit(asked["url"]).hostname
    assert f"the server server wants you to log in at {host}. " in asked["message"]


@pytest.mark.parametrize(
    ("client", "principal", "times"),
    [
        (FakeClient(answer=decline, visits=True), "me", 1),
        (FakeClient(answer=browse, visits=False), "me", 0),
        # No one knows who answers over HTTP.
        (FakeClient(answer=browse, visits=True), "", 0),
    ],
)
async def test_without_the_person_s_consent_the_command_is_named(
    engine: Engine, fake: Guarded, client: FakeClient, principal: str, times: int
) -> None:
    with pytest.raises(LoginRequiredError, match="mcp-code-bridge login server"):
        await engine.run(RunRequest(code=RUN.code, principal=principal), client)
    assert len(client.asked) == times
    assert fake.authority.counts["registered"] == times
