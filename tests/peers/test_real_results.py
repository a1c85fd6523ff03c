"""Servers that people use send the same directly and through the bridge, and programs can use it.

Each server of `real_servers.toml` is called three times, in a new directory of one name: by the
SDK's client, by a program that asks for whole results, and by one that reads the parts of the
values. Then a program like a model's says what it must. A local server answers their
requests to the web.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolRequest, CallToolRequestParams
from pydantic import TypeAdapter

from bridge.model import RunRequest, ServerSpec, Source
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.peers.rig import HERE, NODE, NPM
from tests.png import write_png
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.full

PICTURE = write_png(2, 2, lambda x, y: (x * 255, y * 255, 0))
DATA = '{"n": 1.10, "n": 2}\n'
FILES = {
    "a.txt": b"hello\nworld\n",
    "data.json": DATA.encode(),
    "p.png": PICTURE,
    "page.html": b"<html><body><h1>Hello</h1><p>1.10</p></body></html>",
}

HIT = {"title": "Bridges", "url": "https://a.example", "content": "Arches"}
ANSWERS: Mapping[str, Any] = {
    "/res/v1/news/search": {"type": "news", "results": [HIT]},
    "/res/v1/news/search?many": {"type": "news", "results": [HIT, HIT, HIT]},
    "/res/v1/news/search?none": {"type": "news", "results": []},
    "/api/v2/libs/search": {"results": [{"id": "/a/b", "title": "b", "description": "c"}]},
    "/api/v2/context": "# How to build a bridge\n",
    "/search": {"query": "bridges", "results": [HIT], "images": []},
    "/v1/users/me": {"object": "user", "id": "u1", "name": "Ann"},
    "/v1/search": {"object": "list", "results": [{"id": "p1"}, {"id": "p2"}]},
    "/search/repositories": {"total_count": 0, "incomplete_results": False, "items": []},
    "/v2/map": {"success": True, "links": [HIT]},
    "/v2/search": {"success": True, "data": {"web": [HIT]}},
    "/chart": {"success": True, "resultObj": "https://a.example/chart.png"},
    "/page.html": "<html><body><h1>Hello</h1><p>1.10</p></body></html>",
    "/data.json": DATA,
}
"""What the web answers, by path; `?` stands before what the query holds."""


class _Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        path, _, query = self.path.partition("?")
        named = next((key for key in ANSWERS if "?" in key and key.split("?")[1] in query), path)
        answer = ANSWERS.get(named, {"message": "Not Found"})
        body = answer if isinstance(answer, str) else json.dumps(answer)
        page = "html" if body.startswith("<") else "plain"
        kind = f"text/{page}" if isinstance(answer, str) else "application/json"
        self.send_response(200 if named in ANSWERS else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


SERVERS = tomllib.loads((HERE / "real_servers.toml").read_text("utf-8"))

PLACES = {
    "WEB.CJS": HERE / "web.cjs",
    "LOCKED": HERE.with_name("launchers") / "node_modules",
    "BASIC": HERE.with_name("node") / "node_modules" / "@modelcontextprotocol",
    "NPM": NPM,
    "PEERS": HERE.parents[1] / ".state" / "peers",
}

ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any])

WHOLE = {"structuredContent": None, "_meta": None, "error": None, "isError": False}
"""The parts of a plain result."""

RAW = """
async def seen(tool, arguments):
    return {**WHOLE, **await runtime.call_tool_raw("peer", tool, arguments)}
"""

PARTS = """
async def seen(tool, arguments):
    try:
        value = await runtime.call_tool("peer", tool, arguments)
    except runtime.MCPError as error:
        blocks = error.content or [{"type": "text", "text": error.message}]
        return {"content": blocks, "isError": True, "_meta": error.meta}
    own = value if isinstance(value, dict) else ()
    names = {"content", "structuredContent", "_meta", "isError"}.difference(own)
    return {name: value[name] for name in names}
"""
"""A key that the server sent wins over a part of that name."""

KEEP = """
import json
WHOLE = %r
with open(%r, "w") as file:
    json.dump([await seen(*call) for call in json.loads(%r)], file)
"""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """The address of a server that answers as the web would."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Web) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def _fresh(place: Path) -> Iterator[None]:
    """Lay a directory with files and a repository, for one start of a server."""
    place.mkdir()
    for name, data in FILES.items():
        (place / name).write_bytes(data)
    repository = place / "repo"
    repository.mkdir()
    (repository / "a.txt").write_text("hi\n")
    moment = "2026-01-01T00:00:00Z"
    dates = {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@a.example")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "one")):
        subprocess.run(["git", *command], cwd=repository, env={**os.environ, **dates}, check=True)
    yield
    shutil.rmtree(place)


async def _direct(spec: ServerSpec, calls: Any) -> list[Any]:
    """Return what a server sends to the SDK's client."""
    environ = {**os.environ, **spec.env}
    parameters = StdioServerParameters(
        command=spec.command or "", args=[*spec.args], env=environ, cwd=spec.cwd
    )
    sent = []
    async with Client(stdio_client(parameters), mode="legacy") as client:
        for tool, arguments in calls:
            asked = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
            try:
                result = await client.session.send_request(asked, ANY)
            except MCPError as error:
                told = error.error.model_dump(mode="json")
                block = {"type": "text", "text": told["message"]}
                result = {"content": [block], "isError": True, "error": told}
            sent.append({**WHOLE, **result})
    return sent


def _alike(results: str, line: Mapping[str, Any]) -> Any:
    """Return results without what varies."""
    read = json.loads(re.sub(line.get("varies", "$^"), "~", results))
    return [{**result, "resultType": ""} for result in read]


@pytest.mark.parametrize("name", SERVERS)
async def test_a_server_sends_through_the_bridge_what_it_sends_directly(
    name: str, settings: Settings, backend: FakeBackend, tmp_path: Path, web: str
) -> None:
    line, place, kept = SERVERS[name], tmp_path / "here", tmp_path / "kept.json"
    words = {**PLACES, "HERE": place, "WEB": web}

    def filled(text: str) -> str:
        for word, path in words.items():
            text = text.replace(word, str(path))
        return text

    asked = [each.split(" ", 1) for each in filled(line["calls"]).splitlines() if each]
    calls = [(tool, json.loads(arguments)) for tool, arguments in asked]
    command, *arguments = filled(line["command"]).split()
    spec = ServerSpec(
        name="peer",
        transport="stdio",
        source=Source(client="Test", scope="user", path="/test.json", key="mcpServers.peer"),
        command=shutil.which(command, path=f"{NODE.parent}{os.pathsep}{os.environ['PATH']}") or "",
        args=tuple(arguments),
        env={"TEST_WEB": web, **{key: filled(value) for key, value in line.get("env", {}).items()}},
        cwd=str(place),
    )

    with _fresh(place), anyio.fail_after(PATIENCE_SECONDS):
        sent = _alike(json.dumps(await _direct(spec, calls)), line)
    for read in (RAW, PARTS):
        code = read + KEEP % (WHOLE, str(kept), json.dumps(calls))
        patient = replace(settings, start_timeout=PATIENCE_SECONDS)
        opened = engine_on(backend, patient, finder=ListFinder(spec))
        with _fresh(place), anyio.fail_after(PATIENCE_SECONDS):
            async with opened as engine:
                result = await engine.run(RunRequest(code=code, servers=("peer",), timeout=60))
                assert result.status == "success", result.error
                for one, other in zip(_alike(kept.read_text(), line), sent, strict=True):
                    assert one == {key: other[key] for key in one}
                if read == PARTS:
                    code = "import json\n" + filled(line["program"])
                    result = await engine.run(RunRequest(code=code, timeout=60))
                    assert (result.stdout, result.error) == (line["says"], "")
