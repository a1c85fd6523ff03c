"""The answer to `initialize` that goes out before the SDK is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import InitializeRequestParams, methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from bridge.inventory.configuration import first_instructions
from bridge.inventory.inventory import Listing, ToolCache
from bridge.model import Tool
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.greeting import VERSIONS, answer, plain_initialize
from bridge.server.stdio import StdinMessages, StdoutMessages
from bridge.settings import Settings, store_of
from tests.engine_rig import engine_on
from tests.fakes.backend import FakeBackend
from tests.server.pipe_rig import PATIENCE, hello, request

SECRET = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"

SERVE = (sys.executable, "-c", "from bridge.cli.main import main; raise SystemExit(main([]))")

PLAIN: list[dict[str, Any]] = [
    *(hello(version) for version in (*VERSIONS, "2026-07-28", "1", "", "\u00e9\n")),
    *(hello("2025-06-18") | {"id": number} for number in (1, -7, 2**70, "", 'a"\\b\n', "\u00e9")),
    hello("2025-11-25", roots={}, sampling={}, elicitation={}, tasks={}, experimental={}),
    hello("2025-11-25", roots={"listChanged": True}, sampling={"tools": {}, "context": {"a": 1}}),
    hello("2025-11-25", elicitation={"form": {"applyDefaults": True}, "url": {}}),
    hello("2025-11-25", tasks={"list": {}, "requests": {"sampling": {"createMessage": {}}}}),
    hello("2025-11-25", experimental={"x": {"y": [1, None]}}, extensions={"a/b": {"c": "d"}}),
]

UNUSUAL: list[Any] = [
    request(0, "ping"),
    request(0, "initialize"),
    request(0, "initialize", {}),
    request(0, "initialize", []),
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    *(hello("2025-06-18") | {"id": number} for number in (None, True, 1.0)),
    *(hello("2025-06-18") | more for more in ({"jsonrpc": "1.0"}, {"more": 1})),
    [hello("2025-03-26")],
    [],
    "initialize",
]


def raw(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode()


async def answers(
    engine: Engine, line: bytes, answered: Any = None, count: int = 1, rest: bytes = b"\n"
) -> list[bytes]:
    there, back = os.pipe(), os.pipe()
    os.write(there[1], rest)
    server = build_server(engine, principal="stdio")
    writer = StdoutMessages(back[1], anyio.CancelScope(), answered)
    reader = StdinMessages(there[0], writer, line)
    found = b""

    async def read() -> None:
        nonlocal found
        while found.count(b"\n") < count:
            await anyio.wait_readable(back[0])
            found += os.read(back[0], 65536)
        os.close(there[1])

    try:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await server.run(reader, writer, server.create_initialization_options())
        return found.splitlines()
    finally:
        for each in (there[0], *back):
            os.close(each)


def configure(home: Path) -> None:
    servers = {
        "git-hub": {"command": "git-hub", "description": 'Holds code \u2026 "quoted"'},
        "chat": {"command": "chat", "args": ["--token", SECRET]},
    }
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))


async def test_it_is_the_same_as_the_sdks_byte_for_byte(settings: Settings, tmp_path: Path) -> None:
    configure(tmp_path)
    text = first_instructions(settings)
    async with engine_on(FakeBackend(), settings) as engine:
        for message in PLAIN:
            found = plain_initialize(raw(message))
            assert found is not None, message
            assert await answers(engine, raw(message)) == [answer(*found, text).encode()]


@pytest.mark.parametrize("configured", [False, True])
async def test_it_says_of_the_servers_what_the_session_says(
    settings: Settings, tmp_path: Path, configured: bool
) -> None:
    if configured:
        configure(tmp_path)
        async with engine_on(FakeBackend(), settings) as engine:
            spec = engine.servers.pool.spec("git-hub")
            schema = {"type": "object", "properties": {"q": {"type": "string"}}}
            tool = Tool(server="git-hub", name="find", description="", input_schema=schema)
            ToolCache(store_of(settings)).save(spec, Listing(server="git-hub", tools=(tool,)))
            chat = engine.servers.pool.spec("chat")
            about = {"about": f"Talks with {SECRET}"}
            ToolCache(store_of(settings)).save(chat, Listing(server="chat", tools=(), info=about))
    text = first_instructions(settings)
    assert ("mcp_git_hub.find(" in text) is ("Talks with [" in text) is configured
    assert "ghp_" not in text
    async with engine_on(FakeBackend(), settings) as engine:
        assert engine.guide.instructions() == text


@pytest.mark.parametrize("message", UNUSUAL, ids=lambda each: json.dumps(each)[:80])
def test_what_is_unusual_is_left_to_the_sdk(message: Any) -> None:
    assert plain_initialize(raw(message)) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"junk",
        b"\xff" + raw(PLAIN[0]),
        raw(PLAIN[0])[:-1],
        *(raw(PLAIN[0]).replace(b"raw", name) for name in (b"\\ud800", b"r\xffw")),
        raw(PLAIN[0]).replace(b'"id"', b'"id": 1, "id"'),
        *(
            raw(hello("1", experimental={"x": {}})).replace(b"{}", value)
            for value in (b'{"y": NaN}', b'{"y": 1e999}', b'{"y":%b}' % (b"9" * 5000))
        ),
        raw(hello("1", experimental={"x": {}})).replace(b"{}", b'{"x":' * 60 + b"1" + b"}" * 60),
    ],
    ids=repr,
)
def test_so_is_what_parsers_may_differ_on(line: bytes) -> None:
    assert plain_initialize(line) is None


WORDS = (
    *("roots", "sampling", "elicitation", "experimental", "extensions", "tasks"),
    *("list", "cancel", "requests", "form", "url", "tools", "context", "create", "createMessage"),
    *("listChanged", "name", "version", "title", "icons", "_meta"),
)
names = st.sampled_from(WORDS)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(names | st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(names, values, max_size=3)
clients = st.fixed_dictionaries(
    {"name": st.text(max_size=3), "version": st.just("1")},
    optional={"title": values, "description": st.text(max_size=3), "icons": values},
)


@given(
    st.fixed_dictionaries(
        {
            "protocolVersion": st.sampled_from(VERSIONS) | values,
            "capabilities": st.dictionaries(names, objects | values, max_size=4) | values,
            "clientInfo": clients | values,
        },
        optional={"_meta": values},
    )
)
def test_what_is_answered_is_what_the_sdk_accepts(params: dict[str, Any]) -> None:
    message = request(1, "initialize", params)
    found = plain_initialize(raw(message))
    if found is None:
        return
    try:
        methods.validate_client_request("initialize", LATEST_HANDSHAKE_VERSION, params)
        InitializeRequestParams.model_validate(params, by_name=False)
    except ValidationError:
        pytest.fail(f"the SDK refuses {params}")


def test_the_versions_are_the_sdks() -> None:
    assert VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert VERSIONS[-1] == LATEST_HANDSHAKE_VERSION


async def test_the_session_begins_with_a_request_that_has_been_answered(settings: Settings) -> None:
    lines = [hello("2025-03-26"), request(1, "tools/list"), request(0, "ping")]
    async with engine_on(FakeBackend(), settings) as engine:
        found = await answers(engine, b"\n".join(map(raw, lines)), answered=0, count=2)
    assert sorted(json.loads(each)["id"] for each in found) == [0, 1]
    assert b'"serverInfo"' not in b"".join(found)


async def test_half_a_request_that_was_read_before_is_completed(settings: Settings) -> None:
    line = raw(PLAIN[0]) + b"\n"
    async with engine_on(FakeBackend(), settings) as engine:
        [found] = await answers(engine, line[:50], rest=line[50:])
    assert json.loads(found)["result"]["protocolVersion"] == VERSIONS[0]


def test_the_sdk_is_not_imported_for_it(tmp_path: Path) -> None:
    code = """
import sys
from functools import partial
from bridge.cli.main import _greet
from bridge.settings import load
assert _greet(load({}, {"HOME": sys.argv[1]})).answered == 0
spared = ("mcp", "mcp_types", "pydantic", "sqlalchemy", "asyncio")
print([name for name in spared if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        input=raw(PLAIN[0]) + b"\n",
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["result"]["protocolVersion"] == VERSIONS[0]
    assert done.stderr == b"[]\n"


@pytest.mark.parametrize(
    ("sent", "ids"),
    [
        ([hello("2025-06-18"), request(1, "tools/list")], [0, 1]),
        ([[request(1, "ping")], hello("2025-06-18")], [None, 0]),
    ],
    ids=["pipelined", "a batch first"],
)
def test_a_client_that_writes_at_once_gets_one_answer_to_each_request(
    tmp_path: Path, sent: list[Any], ids: list[int | None]
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "s")}
    lines = b"".join(raw(each) + b"\n" for each in sent)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        SERVE, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environ
    ) as bridge:
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        bridge.stdin.write(lines)
        bridge.stdin.flush()
        read = [bridge.stdout.readline() for _ in ids]
        bridge.stdin.close()
        read += bridge.stdout.readlines()
    assert bridge.returncode == 0
    found = list(map(json.loads, read))
    assert sorted((each.get("id") for each in found), key=str) == sorted(ids, key=str)
