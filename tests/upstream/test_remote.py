"""Servers behind URLs: streamable HTTP and event streams, over real sockets on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import cache

import anyio
import pytest

from bridge.errors import CallTimeoutError, ServerStartError, UpstreamError
from bridge.model import MEBIBYTE, Transport
from bridge.upstream.client_features import on_behalf_of
from tests.ports import reserved_port
from tests.raised import raises_code
from tests.upstream.rig import Rig, wait_file
from tests.upstream.test_client_features import FakeCaller
from tests.waiting import PATIENCE_SECONDS, until

KINDS = ["http", "older-http", "sse"]

Web = Callable[[str], str]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The URL of a server of each kind, shared by all tests: it takes a second to start."""
    with ExitStack() as stack:
        rig = Rig(tmp_path_factory.mktemp("web"))
        yield cache(lambda kind: stack.enter_context(rig.web(kind)))


def transport_of(kind: str) -> Transport:
    return "sse" if kind == "sse" else "http"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_remote_server_answers_within_the_limit(rig: Rig, web: Web, kind: str) -> None:
    spec = rig.remote(
        web(kind), transport_of(kind), headers={"X-Team": "blue", "Authorization": "Bearer t"}
    )
    async with rig.pool(spec, max_message_bytes=100_000) as pool:
        assert "echo" in [tool.name for tool in await pool.server("server").tools()]
        with raises_code("message_too_large", match="100000 byte limit"):
            await pool.call_tool("server", "big", {"size": MEBIBYTE})
        echoed = await pool.call_tool("server", "echo", {"a": [1, None]})
        headers = await pool.call_tool("server", "headers", {})
        state = pool.states()["server"]
    assert echoed["structuredContent"] == {"a": [1, None]}
    assert headers["structuredContent"]["x-team"] == "blue"
    assert headers["structuredContent"]["authorization"] == "Bearer t"
    assert (state.state, state.pid, state.server_info["name"]) == ("ready", None, "toolbox")


@pytest.mark.parametrize(("kind", "asked"), [("http", True), ("older-http", False), ("sse", False)])
async def test_newer_servers_get_the_log_level(rig: Rig, web: Web, kind: str, asked: bool) -> None:
    # The bridge also finds out that a URL is one of an event stream.
    async with rig.pool(rig.remote(web(kind), "http")) as pool:
        with on_behalf_of(FakeCaller()):
            meta = await pool.call_tool("server", "meta", {})
    assert ("io.modelcontextprotocol/logLevel" in meta["structuredContent"]) is asked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["timeout", "caller"])
async def test_a_remote_server_is_cancelled(rig: Rig, web: Web, kind: str, how: str) -> None:
    arguments = {"started": rig.path("started"), "cancelled": rig.path("cancelled")}
    async with rig.pool(rig.remote(web(kind), transport_of(kind))) as pool:
        await pool.server("server").start()
        if how == "timeout":
            with pytest.raises(CallTimeoutError):
                await pool.call_tool("server", "slow", arguments, timeout=3.0)
        else:
            async with anyio.create_task_group() as tg:
                tg.start_soon(pool.call_tool, "server", "slow", arguments)
                await wait_file(rig.path("started"))
                tg.cancel_scope.cancel()
        await wait_file(rig.path("cancelled"))
        assert (await pool.call_tool("server", "echo", {}))["content"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_start_is_explained(rig: Rig, web: Web, kind: str, port: int) -> None:
    for url, message, remedy in (
        (web("guarded"), "wants authorization.*401", "headers"),
        (f"{web(kind)}/nowhere", "HTTP status 404", ""),
        (f"http://user:secret@127.0.0.1:{port}/mcp?token=secret", "connection refused", ""),
    ):
        async with rig.pool(rig.remote(url, transport_of(kind))) as pool:
            with pytest.raises(ServerStartError, match=message) as caught:
                await pool.server("server").start()
        assert remedy in caught.value.remedy
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_remote_server_that_dies_is_found_again(rig: Rig, kind: str, port: int) -> None:
    started = rig.path("started")
    arguments = {"started": started, "cancelled": rig.path("cancelled")}

    async def expect_loss(call: Awaitable[object]) -> None:
        with raises_code("server_lost"):
            await call

    with rig.web(kind, port=port) as url:
        async with rig.pool(rig.remote(url, transport_of(kind))) as pool:
            await pool.server("server").start()
            with anyio.fail_after(PATIENCE_SECONDS):
                async with anyio.create_task_group() as tg:
                    tg.start_soon(expect_loss, pool.call_tool("server", "slow", arguments))
                    await wait_file(started)
                    rig.kill_web()
            codes = {"server_lost", "server_start_failed"}
            with pytest.raises(UpstreamError, check=lambda error: error.code in codes):
                await pool.call_tool("server", "echo", {})
            with rig.web(kind, port=port):
                await pool.server("server").start()
                assert (await pool.call_tool("server", "echo", {}))["content"]


@pytest.mark.parametrize("kind", ["http", "older-http"])
async def test_changed_tools_are_noticed_in_either_era(rig: Rig, web: Web, kind: str) -> None:
    async with rig.pool(rig.remote(web(kind))) as pool:
        before = await pool.server("server").tools()
        await pool.call_tool("server", "grow", {})
        await until(lambda: pool.states()["server"].tool_count is None)
        after = await pool.server("server").tools()
    assert {t.name for t in after} - {t.name for t in before} == {"grown"}


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved
