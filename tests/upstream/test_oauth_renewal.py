"""Logins in use: renewed silently, once for all who need it, and given up when refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product

import anyio
import httpx2
import pytest
from starlette.responses import Response

from bridge.errors import LoginRequiredError
from bridge.upstream.token_store import TokenRecord
from tests.fakes.ring import Ring
from tests.upstream.login_rig import Desk
from tests.waiting import PATIENCE_SECONDS

RENEW = """
import sys, anyio
from pathlib import Path
from bridge.upstream.oauth import Logins
from tests.upstream.rig import Rig
url, directory, stale = sys.argv[1:]
login = Logins(Path(directory)).of(Rig(Path(directory)).remote(url))
print("ready", flush=True)
sys.stdin.readline()
print(anyio.run(login.other_token, stale))
"""


@pytest.mark.usefixtures("record")
async def test_calls_that_find_the_token_ended_share_one_renewal(desk: Desk) -> None:
    async with desk.pool() as pool:
        await pool.server("server").start()
        desk.authority.expire()
        results: list[object] = []

        async def call(number: int) -> None:
            result = await pool.call_tool("server", "echo", {"n": number})
            results.append(result["structuredContent"]["n"])

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(call, number)
    assert sorted(results, key=str) == list(range(8))
    assert desk.authority.counts["renewed"] == 1


async def test_a_login_in_a_keyring_is_renewed_there(ring: Ring, desk: Desk) -> None:
    await desk.log_in()
    desk.authority.expire()
    async with desk.pool() as pool:
        assert (await pool.call_tool("server", "echo", {}))["content"]
    (text,) = ring.kept.values()
    assert (await desk.record()).access_token in text
    path = desk.logins.store.path(desk.key)
    assert [s for s in desk.authority.secrets if s in path.read_text()] == []
    ring.mood = "raises"
    async with desk.pool() as pool:
        with pytest.raises(LoginRequiredError) as caught:
            await pool.server("server").start()
    assert "it is in the system's keyring, and it failed" in caught.value.host_detail


async def test_a_token_is_renewed_before_it_ends(desk: Desk, record: TokenRecord) -> None:
    assert await desk.login().current_token(desk.url) == record.access_token
    late = desk.login(lambda: time.time() + desk.authority.lifetime - 29)
    assert await late.current_token(desk.url) != record.access_token
    assert desk.authority.counts["renewed"] == 1
    assert (await desk.record()).access_token == await desk.login().current_token(desk.url)


@pytest.mark.usefixtures("record")
async def test_a_login_that_is_not_renewed_any_more_is_said_and_left_alone(desk: Desk) -> None:
    async with desk.pool() as pool:
        await pool.server("server").start()
        desk.authority.expire()
        desk.authority.renews = False
        with pytest.raises(LoginRequiredError, match="mcp-code-bridge login server") as caught:
            await pool.call_tool("server", "echo", {})
        assert "does not renew it any more" in caught.value.host_detail
        with pytest.raises(LoginRequiredError):
            await pool.call_tool("server", "echo", {})
        assert desk.authority.counts["renewals tried"] == 1
        assert (await desk.record()).refresh_token == ""
        desk.authority.renews = True
        await desk.log_in()
        assert (await pool.call_tool("server", "echo", {}))["content"]


async def test_a_broken_login_server_costs_no_login(desk: Desk, record: TokenRecord) -> None:
    now = [time.time()]
    desk.authority.expire()
    desk.fake.replaced["/token"] = Response(status_code=503)
    login = desk.login(lambda: now[0])
    assert await login.current_token(desk.url) == record.access_token
    assert await login.other_token(record.access_token) == ""
    assert "HTTP status 503" in login.problem
    assert login.exists
    assert await desk.record() == record
    del desk.fake.replaced["/token"]
    assert await login.other_token(record.access_token) == ""
    now[0] += 6
    assert await login.other_token(record.access_token) != ""
    assert login.problem == ""


HTML = b"<html>Forbidden by proxy</html>"
PROOFS = ("invalid_grant", "invalid_client", "unauthorized_client")


def error_body(error: object) -> bytes:
    return json.dumps({"error": error}).encode()


KEEPING = (
    *map(error_body, ("invalid_request", "temporarily_unavailable", {"status": "invalid_grant"})),
    *(b'{"message": "invalid_grant"}', b"error=invalid_grant", b"<p>invalid_grant</p>", HTML, b""),
)
STATUSES = (200, 302, 400, 401, 403, 404, 429, 500, 503)


@pytest.mark.slow
async def test_only_the_authority_ends_a_login(desk: Desk, record: TokenRecord) -> None:
    for status, body in product(STATUSES, (*map(error_body, PROOFS), *KEEPING)):
        await desk.logins.store.save(desk.key, record)
        desk.fake.replaced["/token"] = Response(body, status)
        login = desk.login()
        assert await login.current_token(desk.url) == record.access_token
        assert await login.other_token(record.access_token) == ""
        after = await desk.record()
        ends = body not in KEEPING
        assert login.exists is not ends, (status, body)
        if ends:
            assert (after.access_token, after.refresh_token) == ("", "")
            assert "does not renew it any more (" in login.problem
            assert (after.redirect_uri == "") is (b"client" in body)
        else:
            assert after == record, (status, body)
            assert f"{desk.fake.origin}/token answered with HTTP status {status}" in login.problem
            assert body != HTML or HTML.decode() in login.problem
            assert record.refresh_token not in login.problem
    del desk.fake.replaced["/token"]
    assert await desk.login().other_token(record.access_token)


async def test_a_login_without_refresh_token_is_explained(desk: Desk, record: TokenRecord) -> None:
    await desk.logins.store.save(desk.key, replace(record, refresh_token=""))
    login = desk.login()
    await login.current_token(desk.url)
    assert await login.other_token(record.access_token) == ""
    assert "gave no `refresh_token`: `offline_access` is not in its scopes (read)" in login.problem
    assert "as `scopes` of the login in /tmp/servers.json, and log in again" in login.problem
    assert not login.exists


@pytest.mark.usefixtures("record")
async def test_a_server_that_refuses_every_token_does_not_use_them_up(desk: Desk) -> None:
    now = [time.time()]
    login = desk.login(lambda: now[0])
    token = await login.current_token(desk.url)
    for _ in range(5):
        token = await login.other_token(token) or token
    assert desk.authority.counts["renewed"] == 1
    now[0] += 2
    assert await login.other_token(token) not in ("", token)


async def test_two_processes_renew_a_login_once(desk: Desk, record: TokenRecord) -> None:
    stale = record.access_token
    desk.authority.expire()
    arguments = [desk.fake.url, str(desk.rig.directory / "logins"), stale]
    command = [sys.executable, "-c", RENEW, *arguments]

    def renew() -> list[str]:
        both = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for process in both:
            assert process.stdout is not None
            process.stdout.readline()
        for process in both:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [process.communicate()[0].strip() for process in both]

    with anyio.fail_after(PATIENCE_SECONDS):
        found = await anyio.to_thread.run_sync(renew)
    assert found[0] == found[1] == (await desk.record()).access_token != stale
    assert desk.authority.counts["renewed"] == 1


async def test_a_renewal_outlives_its_caller(desk: Desk, record: TokenRecord) -> None:
    """The old refresh token may be used up by the time that it goes."""
    stale = record.access_token
    login = desk.login()
    await login.current_token(desk.url)
    async with anyio.create_task_group() as tasks:

        async def renew() -> None:
            await login.other_token(stale)

        tasks.start_soon(renew)
        while not desk.authority.counts["renewals tried"]:  # noqa: ASYNC110 - in another thread
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert (await desk.record()).access_token not in (stale, "")


@pytest.mark.usefixtures("record")
async def test_tokens_go_to_their_origin_and_into_no_representation(desk: Desk) -> None:
    login = desk.login()
    await login.current_token(desk.url)
    assert (
        await login.current_token(httpx2.URL(f"{desk.fake.origin}/other")) in desk.authority.secrets
    )
    assert await login.current_token(httpx2.URL("http://127.0.0.1:1/mcp")) == ""
    text = f"{login!r} {await desk.record()!r}"
    assert [secret for secret in desk.authority.secrets if secret in text] == []
