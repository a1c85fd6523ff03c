"""A server that tells its own secret on every path: nothing of it reaches a sandbox or a client."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.types import ElicitResult, LoggingMessageNotificationParams
from pydantic import BaseModel

from bridge.model import ServerSpec, Source
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.engine_rig import ListFinder
from tests.fakes.backend import Tap
from tests.record import record_of

LEAKY = Path(__file__).parents[1] / "fakes" / "servers" / "leaky.py"

TOKEN = 'tok"en\\wörd/4+2=?'
"""With all that encoders escape."""

ARGUMENT = "zq81-kk20-pw77"

MARK = "[redacted: LEAKY_TOKEN of leaky]"

PLACES = (
    *("result", "structured", "key", "large", "failure", "refusal"),
    *("question", "offer", "resource", "prompt", "about"),
)
"""Where the server says it, as `leaky.py` names them."""

PROGRAM = """
out = []
for call in ("say", "data", "large", "fail", "refuse", "notify", "ask"):
    try:
        got = await getattr(mcp_leaky, call)(x="a")
    except Exception as error:
        got = [str(error), error.data]
    text = got if isinstance(got, str) else repr(got)
    out.append([call, text[:700], text[-700:]])
out.append(str(await runtime.list_resources("leaky")))
out.append(await runtime.read_resource("leaky", "leak:one"))
out.append(str(await runtime.list_prompts("leaky")))
out.append(str(await runtime.get_prompt("leaky", "one")))
out.append(await runtime.list_tools("leaky"))
out.append(await runtime.search_tool_docs("about"))
out.append(mcp_leaky.say.__doc__)
try:
    await runtime.call_tool("-".join(["broken"]), "x")
except Exception as error:
    out.append(str(error))
print(out)
await runtime.call_tool("leaky", "say", {"x": "%s", "password": "hunter2"})
out
"""


BROKEN = "import os, sys; sys.exit(f'cannot log in with {os.environ[\"LEAKY_TOKEN\"]}')"
"""Tells the secret instead of starting; without the SDK, since the bridge tries again and again."""


def leaky(name: str, *arguments: str) -> ServerSpec:
    return ServerSpec(
        name=name,
        transport="stdio",
        source=Source(client="Test", scope="user", path="/test.json", key=name),
        command=sys.executable,
        args=arguments,
        env={"LEAKY_TOKEN": TOKEN, "OTHER_PASSWORD": ARGUMENT, "LOG_LEVEL": "debug"},
    )


@pytest.fixture
def backend() -> Tap:
    return Tap()


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(leaky("leaky", str(LEAKY)), leaky("broken", "-c", BROKEN))


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def take(self, value: BaseModel | str) -> None:
        self.heard.append(value if isinstance(value, str) else value.model_dump_json())

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.take(params)
        return ElicitResult(action="accept", content={"name": "Ann"})

    async def log(self, params: LoggingMessageNotificationParams) -> None:
        self.take(params)

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.take(message or "")


async def ask_for_everything(client: Client, listener: Listener) -> None:
    listener.take(await client.list_tools())
    program = {"code": PROGRAM.replace("%s", ARGUMENT)}
    result = await client.call_tool("run_python", program, progress_callback=listener.on_progress)
    assert result.is_error is False, record_of(result)["error"]
    listener.take(result)
    for arguments in ({"code": "1", "servers": ["broken"]}, {"code": "await mcp_leaky.refuse()"}):
        listener.take(await client.call_tool("run_python", arguments))
    for arguments in (
        {"query": "about", "detail": "full"},
        {"query": "x", "server": "broken"},
        # The answer repeats a query without a match.
        {"query": ARGUMENT, "server": "leaky"},
    ):
        listener.take(await client.call_tool("search_tools", arguments))
    for name in ("capabilities", "servers", "tools/leaky", "stubs/leaky"):
        listener.take(await client.read_resource(f"bridge://{name}"))
    with pytest.raises(MCPError) as caught:
        await client.read_resource("bridge://tools/broken")
    listener.take(caught.value.error)


@asynccontextmanager
async def _connected(server: Server[Any]) -> AsyncIterator[Any]:
    # A client of the newer era sends no progress token if it is given the server itself.
    async with create_client_server_memory_streams() as (near, far), anyio.create_task_group() as t:
        t.start_soon(server.run, *far, server.create_initialization_options())
        yield near
        t.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_no_path_tells_a_secret(
    era: str, engine: Engine, backend: Tap, settings: Settings
) -> None:
    listener = Listener()
    options: dict[str, Any] = {"log_level": "debug"} if era != "legacy" else {}
    with anyio.fail_after(120):
        async with Client(
            _connected(build_server(engine, principal="test")),
            mode=era,
            elicitation_callback=listener.elicit,
            logging_callback=listener.log,
            **options,
        ) as client:
            await ask_for_everything(client, listener)
    told = "\n".join(listener.heard)
    for place in PLACES:
        assert f"{place} {MARK}" in told, place
    assert f"progress {MARK}" in told
    assert f'"logger":"leaky/{MARK}"' in told
    into = backend.heard.decode("utf-8", "replace")
    assert f"large {MARK}" in into
    audit = "".join(path.read_text() for path in (settings.state_dir / "audit").rglob("*.jsonl"))
    assert "leaky" in audit
    assert "hunter2" not in audit
    assert ARGUMENT not in audit
    assert ARGUMENT not in told
    for text in (*listener.heard, into, audit):
        for form in forms_of(TOKEN):
            assert form not in text, form


def forms_of(secret: str) -> set[str]:
    """Return how a secret may be written, and the most of it that a cut may leave."""
    forms = {secret, quote(secret, safe="")}
    for before in ("", "x", "xy"):
        encoded = base64.b64encode(f"{before}{secret}".encode()).decode().rstrip("=")
        forms.add(encoded[4:-2])
        forms.add(encoded[4:-2].replace("+", "-").replace("/", "_"))
    for _ in range(4):
        forms |= {json.dumps(form)[1:-1] for form in forms}
        forms |= {json.dumps(form, ensure_ascii=False)[1:-1] for form in forms}
    return forms | {form[:8] for form in forms if form[:3] == "tok"}
