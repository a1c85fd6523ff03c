"""Servers behind URLs: streamable HTTP and event streams, over real sockets on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import cache

import anyio
import pytest

from bridge.errors import CallTimeoutError, ServerLostError, ServerStartError
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
    """The URL of a server of each kind, for all tests: it takes a second to start."""
    with ExitStack() as stack:
        rig = Rig(tmp_path_factory.mktemp("web"))
        yield cache(lambda kind: stack.enter_context(rig.web(kind)))


def transport_of(kind: str) -> Transport:
    return "sse" if kind == "sse" else "http"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_remote_server_lists_its_tools_and_answers(rig: Rig, web: Web, kind: str) -> None:
    spec = rig.remote(
        web(kind), transport_of(kind), headers={"X-Team": "blue", "Authorization": "Bearer t"}
    )
    async with rig.pool(spec) as pool:
        assert "echo" in [tool.name for tool in await pool.server("server").tools()]
        echoed = await pool.call_tool("server", "echo", {"a": [1, None]})
        headers = await pool.call_tool("server", "headers", {})
        state = pool.states()["server"]
    assert echoed["structuredContent"] == {"a": [1, None]}
    assert headers["structuredContent"]["x-team"] == "blue"
    assert headers["structuredContent"]["authorization"] == "Bearer t"
    assert (state.state, state.pid, state.server_info["name"]) == ("ready", None, "toolbox")


@pytest.mark.parametrize(("kind", "asked"), [("http", True), ("older-http", False), ("sse", False)])
async def test_newer_servers_get_the_log_level(rig: Rig, web: Web, kind: str, asked: bool) -> None:
    async with rig.pool(rig.remote(web(kind), transport_of(kind))) as pool:
        with on_behalf_of(FakeCaller()):
            meta = await pool.call_tool("server", "meta", {})
    assert ("io.modelcontextprotocol/logLevel" in meta["structuredContent"]) is asked


async def test_an_event_stream_that_is_not_called_one_is_found_out(rig: Rig, web: Web) -> None:
    async with rig.pool(rig.remote(web("sse"), "http")) as pool:
        assert (await pool.call_tool("server", "echo", {}))["content"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_remote_answer_beyond_the_cap_is_an_error(rig: Rig, web: Web, kind: str) -> None:
    async with rig.pool(
        rig.remote(web(kind), transport_of(kind)), max_message_bytes=100_000
    ) as pool:
        with raises_code("message_too_large", match="100000 byte limit"):
            await pool.call_tool("server", "big", {"size": MEBIBYTE})
        result = await pool.call_tool("server", "echo", {"still": "here"})
    assert result["structuredContent"] == {"still": "here"}


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
async def test_a_refused_connection_is_explained(rig: Rig, kind: str, port: int) -> None:
    url = f"http://user:secret@127.0.0.1:{port}/mcp?token=secret"
    async with rig.pool(rig.remote(url, transport_of(kind))) as pool:
        with pytest.raises(ServerStartError, match="connection refused") as caught:
            await pool.server("server").start()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_at_the_start_is_explained(rig: Rig, web: Web, kind: str) -> None:
    nowhere = f"{web(kind)}/nowhere"
    for url, said in ((web("guarded"), "wants authorization.*401"), (nowhere, "HTTP status 404")):
        async with rig.pool(rig.remote(url, transport_of(kind))) as pool:
            with pytest.raises(ServerStartError, match=said) as caught:
                await pool.server("server").start()
        assert url == nowhere or "headers" in caught.value.remedy


@pytest.mark.parametrize("kind", KINDS)
async def test_a_remote_server_that_dies_is_found_again(rig: Rig, kind: str, port: int) -> None:
    started = rig.path("started")
    arguments = {"started": started, "cancelled": rig.path("cancelled")}
    with rig.web(kind, port=port) as url:
        async with rig.pool(rig.remote(url, transport_of(kind))) as pool:
            await pool.server("server").start()
            with anyio.fail_after(PATIENCE_SECONDS):
                async with anyio.create_task_group() as tg:
                    tg.start_soon(_expect_loss, pool.call_tool("server", "slow", arguments))
                    await wait_file(started)
                    rig.kill_web()
            with pytest.raises((ServerLostError, ServerStartError)):
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


async def _expect_loss(call: Awaitable[object]) -> None:
    with pytest.raises(ServerLostError):
        await call


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which no one listens unless the test does."""
    with reserved_port() as reserved:
        yield reserved
