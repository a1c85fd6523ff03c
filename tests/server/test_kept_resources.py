"""What runs left, as resources: listed to its owner, read in ranges, announced when it comes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from bridge.artifacts.store import RunArtifacts
from bridge.event_loop import background_task
from bridge.gate.redaction import Redactor
from bridge.model import Artifact, RunResult
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.content import redact_content, to_result
from bridge.server.resources import MAX_URIS, PAGE, Notices, NotifyingServer
from bridge.store import Store
from tests.engine_rig import ListFinder, workshop
from tests.server.listening_rig import listening
from tests.server.web_rig import connected, web
from tests.waiting import PATIENCE_SECONDS

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def client(engine: Engine, era: str) -> AsyncIterator[Client]:
    async with Client(build_server(engine, principal="stdio"), mode=era) as connected:
        yield connected


def left(engine: Engine, name: str, data: bytes, owner: str = "stdio", **more: Any) -> Artifact:
    return RunArtifacts(engine.artifacts, owner, RUN).add(name, data, **more)


async def kept_by(client: Client) -> list[str]:
    listed = (await client.list_resources()).resources
    prefixes = ("bridge://artifacts/", "bridge://runs/")
    assert {"bridge://capabilities", "bridge://servers"} <= {resource.uri for resource in listed}
    return [resource.name for resource in listed if resource.uri.startswith(prefixes)]


def unknown(client: Client) -> int:
    return types.INVALID_PARAMS if client.protocol_version == "2026-07-28" else -32002


async def text_of(client: Client, uri: str) -> list[str]:
    return [getattr(one, "text", "") for one in (await client.read_resource(uri)).contents]


async def test_what_a_run_left_is_listed_and_read_whole_and_in_parts(
    engine: Engine, client: Client
) -> None:
    lines = "".join(f"line {number}\n" for number in range(1, 1001))
    output = left(engine, "stdout", lines.encode(), kind="stdout")
    picture = left(engine, "plot.png", b"\x89PNG\r\n\x1a\n\x00")
    listed = {resource.uri: resource for resource in (await client.list_resources()).resources}
    assert list(listed)[-2:] == [picture.uri, output.uri]
    shown = listed[picture.uri]
    assert (shown.name, shown.mime_type, shown.size) == ("plot.png", "image/png", 9)
    assert await text_of(client, output.uri) == [lines]
    assert await text_of(client, output.uri + "?lines=2-3") == [
        "line 2\nline 3\n",
        f"These are lines 2-3 of 1,000. Read on with {output.uri}?lines=4-5",
    ]
    assert await text_of(client, output.uri + "?offset=7&length=4") == [
        "line",
        f"These are bytes 7-11 of {len(lines):,}. Read on with {output.uri}?offset=11&length=4",
    ]
    (blob,) = (await client.read_resource(picture.uri)).contents
    assert isinstance(blob, types.BlobResourceContents)
    assert base64.b64decode(blob.blob) == b"\x89PNG\r\n\x1a\n\x00"
    assert blob.mime_type == "image/png"
    with pytest.raises(MCPError, match=r"\?lines=100-200") as refused:
        await client.read_resource(output.uri + "?lines=x")
    assert refused.value.code == types.INVALID_PARAMS


@pytest.mark.guarantee("kept-apart")
async def test_what_is_another_owners_is_as_unknown_as_what_never_was(
    engine: Engine, client: Client
) -> None:
    theirs = left(engine, "secret", b"secret", "somebody")
    output = left(engine, "out", b"out", "somebody", kind="stdout")
    never = theirs.uri[:-4] + "0000"
    assert await kept_by(client) == []
    told = set()
    for uri in (theirs.uri, output.uri, never, "bridge://artifacts/", "bridge://runs/x"):
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
        assert refused.value.code == unknown(client)
        assert refused.value.error.data == {"uri": uri}
        told.add(str(refused.value).replace(uri, "URI"))
    assert len(told) == 1


async def test_a_long_list_comes_in_pages_and_ends(engine: Engine, client: Client) -> None:
    for number in range(PAGE + 5):
        left(engine, str(number), b"")
    first = await client.list_resources()
    assert len(await kept_by(client)) == PAGE
    second = await client.list_resources(cursor=first.next_cursor)
    assert [resource.name for resource in second.resources] == ["4", "3", "2", "1", "0"]
    assert second.next_cursor is None
    outside = "1/.", f"1/{64 * 'f'}", f"1/{16 * 'f'}.{20 * '0'}"
    for cursor in ("x", "", "5/0", "1/../x", *outside):
        with pytest.raises(MCPError, match="cursor") as refused:
            await client.list_resources(cursor=cursor)
        assert refused.value.code == types.INVALID_PARAMS


async def test_a_store_that_cannot_be_read_hides_nothing_else(
    engine: Engine, client: Client
) -> None:
    artifact = left(engine, "x", b"x")
    with Store(engine.settings.state_dir).writing() as kept:
        assert kept.connection is not None
        kept.connection.exec_driver_sql("DROP TABLE artifacts")
    assert await kept_by(client) == []
    with pytest.raises(MCPError, match="cannot be read") as refused:
        await client.read_resource(artifact.uri)
    assert refused.value.code == types.INTERNAL_ERROR


async def test_a_result_links_to_what_was_left(engine: Engine) -> None:
    artifacts = tuple(left(engine, f"{number}.csv", b"a,b") for number in range(50 + 2))
    result = RunResult(run_id=RUN, status="success", summary="", artifacts=artifacts)
    text, *links, more = to_result(result, engine).content
    assert isinstance(text, types.TextContent)
    assert len(links) == 50
    link = links[0]
    assert isinstance(link, types.ResourceLink)
    assert link.uri == artifacts[0].uri
    assert (link.name, link.mime_type, link.size) == ("0.csv", "text/csv", 3)
    # What it is stands in the text, once.
    assert link.description is None
    assert "2 things more" in getattr(more, "text", "")
    # To an older client a link would make the whole result unreadable.
    old = to_result(result, engine, protocol_version="2025-03-26").content
    assert [type(block) for block in old] == [types.TextContent]
    short = to_result(replace(result, artifacts=()), engine).content
    assert [type(block) for block in short] == [types.TextContent]


async def test_a_name_that_holds_a_secret_is_told_without_it(engine: Engine) -> None:
    artifact = left(engine, "hunter2-hunter2.csv", b"a,b")
    result = RunResult(run_id=RUN, status="success", summary="", artifacts=(artifact,))
    told = to_result(result, engine)
    redact_content(told, Redactor({"hunter2-hunter2": "PASSWORD"}))
    assert "hunter2" not in told.model_dump_json()


def told_server() -> tuple[NotifyingServer, Notices]:
    async def tools() -> str:
        return ""

    notices = Notices(tools, lambda: "", owner=lambda _: "me", quiet_seconds=0.05)

    async def list_nothing(context: Any, _: Any) -> types.ListResourcesResult:
        await notices.note_listing(context)
        return types.ListResourcesResult(resources=[])

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, Any]]:
        async with background_task(notices.run):
            yield {}

    server = NotifyingServer(
        "told",
        notices,
        lifespan=lifespan,
        on_list_resources=list_nothing,
        on_subscribe_resource=notices.subscribe,
        on_unsubscribe_resource=notices.unsubscribe,
    )
    return server, notices


async def test_who_subscribes_hears_of_its_own_and_of_nothing_else(era: str) -> None:
    server, notices = told_server()
    sessions = "bridge://sessions"
    async with listening(server, era, sessions, tools=False) as heard:
        notices.note_update("", "you")
        notices.note_update(sessions, "you")
        notices.note_update("bridge://other", "me")
        notices.note_update("", "me")
        notices.note_update(sessions, "me")
        await heard.until("resources", sessions)
        if era == "legacy":
            await heard.client.session.send_request(
                types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=sessions)),
                types.EmptyResult,
            )
            notices.note_update(sessions, "me")
            notices.note_update("", "me")
            await heard.until("resources")


async def test_subscriptions_are_bounded(era: str) -> None:
    server, _ = told_server()
    uris = [f"bridge://artifacts/{number}" for number in range(MAX_URIS)]
    async with listening(server, era, *uris, tools=False):
        pass
    for many in ([*uris, "bridge://artifacts/more"], ["bridge://" + "a" * 5000]):
        with pytest.raises((MCPError, ExceptionGroup)) as refused:
            async with listening(server, era, *many, tools=False):
                pass
        error = refused.value
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        assert f"{MAX_URIS} resources" in str(error)


async def test_over_http_a_credential_says_whose_it_is_and_without_one_only_the_uri(
    engine: Engine, era: str
) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(web(engine))
        mine, theirs, nobody = [
            await stack.enter_async_context(connected(url, token, era))
            for token in ("mine", "theirs", "")
        ]
        artifact = left(engine, "x.txt", b"kept", _owner_of("mine"))
        loose = left(engine, "loose.txt", b"loose", "")
        assert await text_of(mine, artifact.uri) == ["kept"]
        assert await kept_by(mine) == ["x.txt"]
        for other in (theirs, nobody):
            with pytest.raises(MCPError) as refused:
                await other.read_resource(artifact.uri)
            assert refused.value.code == unknown(other)
            assert await kept_by(other) == []
        assert await text_of(nobody, loose.uri) == ["loose"]


def _owner_of(token: str) -> str:
    return "#" + hashlib.sha256(f"Bearer {token}".encode()).hexdigest()[:32]


async def test_no_one_is_told_about_a_change_that_reads_the_same(
    engine: Engine, finder: ListFinder, era: str
) -> None:
    async with listening(build_server(engine), era) as heard:
        finder.specs = (replace(workshop(), call_timeout=7.0),)
        assert await engine.servers.refresh()
        finder.specs = (replace(workshop(), description="Another"),)
        assert await engine.servers.refresh()
        await heard.until("tools")


async def test_a_client_is_promised_in_the_handshake_that_it_will_be_told(engine: Engine) -> None:
    server = build_server(engine)
    async with Client(server, mode="legacy") as client:
        handshake = client.server_capabilities
    for promised in (handshake, server.get_capabilities(protocol_version="2026-07-28")):
        for lists in (promised.tools, promised.resources):
            assert lists is not None
            assert lists.list_changed is True


async def test_over_http_every_client_is_told_and_one_that_is_gone_is_no_hindrance(
    engine: Engine, finder: ListFinder
) -> None:
    async with web(engine) as url, AsyncExitStack() as stack:
        staying = [
            await stack.enter_async_context(listening(url, mode))
            for mode in ("legacy", "2026-07-28") * 2
        ]
        async with listening(url, "legacy"):
            pass
        finder.specs = (workshop(), workshop("second"))
        await engine.servers.refresh()
        for heard in staying:
            await heard.until("tools", "resources")
            assert "mcp_second" in await heard.shown()


async def test_changes_that_come_together_are_told_once() -> None:
    shown: list[Hashable] = ["first"]
    looks: list[Hashable] = []
    looked = anyio.Event()

    async def tools() -> Hashable:
        looks.append(shown[0])
        if len(looks) > 1:
            looked.set()
        return shown[0]

    made = Notices(tools, lambda: (), quiet_seconds=0.05)
    told: list[object] = []
    made._bus.subscribe(told.append)
    modern = SimpleNamespace(protocol_version="2026-07-28")
    await made.note_listing(SimpleNamespace(session=SimpleNamespace(_connection=modern)))  # type: ignore[arg-type]
    async with background_task(made.run):
        for text in ("second", "third", "first"):
            shown[0] = text
            made.note_change()
        with anyio.fail_after(PATIENCE_SECONDS):
            await looked.wait()
        assert (looks, told) == (["first", "first"], [])
