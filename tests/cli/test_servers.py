"""`servers` and `tools`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from bridge.cli import servers as servers_module
from bridge.cli.output import table
from bridge.discovery.entries import ONLY_CLIENT
from bridge.discovery.finder import Discovery
from bridge.discovery.precedence import ITSELF, SHADOWED, UNUSED
from bridge.discovery.report import ConfigWarning, Definition, ProposedServer, SkippedServer
from bridge.model import OAuthHints, ServerSettings, Source, ToolFilter
from bridge.runs import Engine
from bridge.settings import Settings, load
from bridge.settings.values import Settings as Values
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend
from tests.raised import raises_code

CURSOR = Source(
    client="Cursor",
    scope="user",
    path="/c.json",
    key="mcpServers.github",
    fields=("command", "env.TOKEN"),
)
DESCRIBED = replace(
    workshop(),
    also=(CURSOR,),
    differences=("/c.json has other arguments",),
    tools=ToolFilter(without=frozenset({"crash"})),
    oauth=OAuthHints(client_id="public", client_secret="s3cret"),
    env={"TOKEN": "s3cret"},
)
GONE = replace(workshop("gone"), command="/no/such/command")
SKIPPED = SkippedServer(name="off", source=CURSOR, reason="it is disabled")


class Finder(ListFinder):
    warnings: tuple[ConfigWarning, ...] = ()
    proposed: tuple[ProposedServer, ...] = ()
    skipped: tuple[SkippedServer, ...] = (SKIPPED,)

    def find(self) -> Discovery:
        found = Discovery(
            servers=self.specs, skipped=self.skipped, warnings=self.warnings, stamp=()
        )
        return replace(found, proposed=self.proposed)


class Commands:
    def __init__(
        self,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.said = capsys.readouterr
        self.finder = Finder(DESCRIBED)
        self.settings = settings

        @asynccontextmanager
        async def opened(settings: Values) -> AsyncIterator[Engine]:
            async with engine_on(FakeBackend(), settings, finder=self.finder) as engine:
                yield engine

        monkeypatch.setattr(servers_module, "open_engine", opened)

    async def servers(self, **flags: Any) -> int:
        return await servers_module.servers(self.settings, **flags)

    async def tools(self, query: str | None = None, **flags: Any) -> int:
        return await servers_module.tools(self.settings, words=[query] if query else [], **flags)


@pytest.fixture
def commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    environ = {"HOME": str(tmp_path), "PATH": "", "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    return Commands(load({"warm": "0"}, environ), monkeypatch, capsys)


async def test_servers_shows_where_each_was_found_and_differences(commands: Commands) -> None:
    assert await commands.servers() == 0
    assert commands.said().out == (
        "NAME       ALIAS          TRANSPORT  STATE  TOOLS  CLIENTS       FOUND IN\n"
        "work-shop  mcp_work_shop  stdio      idle   -      Test, Cursor  "
        "/test.json (mcpServers.work-shop)\n"
        "\nDefined differently elsewhere; the table has the definition that is used:\n"
        "  work-shop: /c.json has other arguments\n"
        "\nLeft out:\n"
        "  off, Cursor, /c.json (mcpServers.github): it is disabled\n"
    )
    assert await commands.servers(as_json=True) == 0
    printed = commands.said().out
    assert "s3cret" not in printed
    row, skipped = json.loads(printed)
    place = {"client": "Cursor", "scope": "user", "source": "/c.json (mcpServers.github)"}
    assert row["also"] == [{**place, "fields": ["command", "env.TOKEN"]}]
    assert row["differences"] == ["/c.json has other arguments"]
    assert (row["withoutTools"], row["oauth"], row["state"]) == (["crash"], True, "idle")
    assert (skipped["reason"], skipped["used"], row["used"]) == ("it is disabled", False, True)
    assert skipped["fields"] == ["command", "env.TOKEN"]


async def test_a_table_of_an_unknown_server_is_named(commands: Commands) -> None:
    tables = {name: ServerSettings() for name in ("work-shop", "off", "work_shop")}
    commands.settings = replace(commands.settings, server_settings=tables)
    assert await commands.servers() == 0
    assert commands.said().err == (
        "warning: [servers.work_shop] in config.toml does nothing: no client has a server of that "
        "name.\n"
    )


async def test_only_servers_prints_warnings_and_the_log_has_those_about_settings(
    commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    unset = ConfigWarning(path="/c.json", key="mcpServers.a.env", reason="TOKEN is not set")
    skipped = ConfigWarning(
        path="/c.json", key="mcpServers.b", reason="skipped: no url", reported=True
    )
    broken = ConfigWarning(path="/d.json", key="", reason="it is no JSON", unread=True)
    commands.finder.warnings = (unset, skipped, broken)
    assert await commands.servers() == 0
    assert commands.said().err == (
        "warning: /c.json (mcpServers.a.env): TOKEN is not set\nwarning: /d.json: it is no JSON\n"
    )
    await commands.tools()
    said = commands.said().err
    assert ("TOKEN" in said, "/d.json" in said, caplog.text) == (False, False, "")
    own = ConfigWarning(path="/mine.json", key="", reason="it is no JSON", own=True)
    commands.finder.warnings = (own,)
    assert await commands.servers() == 0
    assert "/mine.json" not in commands.said().err
    assert caplog.text.count("/mine.json: it is no JSON") == 1


async def test_check_starts_each_server_and_measures_its_tools(commands: Commands) -> None:
    commands.finder.specs = (workshop(), GONE)
    assert await commands.servers(check=True, as_json=True) == 4
    document = json.loads(commands.said().out)
    ready, gone = document["servers"]
    assert (gone["name"], gone["state"]) == ("gone", "failed")
    assert "/no/such/command" in gone["reason"]
    assert (ready["state"], ready["tools"], ready["protocol"]) == ("ready", 14, "2025-11-25")
    assert ready["startSeconds"] > 0
    assert document["totals"] == {key: ready[key] for key in ("tools", "schemaBytes", "tokens")}
    assert await commands.tools(server="work-shop", as_json=True) == 0
    found = json.loads(commands.said().out)
    assert len(found) == ready["tools"]
    assert 0 < document["bridge"]["tokens"] < 2_000
    assert await commands.servers(check=True) == 4
    printed = commands.said().out
    assert f"about {ready['tokens']:,} tokens" in printed
    assert "gone: Server 'gone' did not start" in printed
    assert await commands.tools() == 0
    assert "warning: gone: Server 'gone' did not start" in commands.said().err
    assert await commands.tools(server="gone") == 4


async def test_tools_are_listed_below_their_servers(commands: Commands) -> None:
    assert await commands.tools() == 0
    lines = commands.said().out.splitlines()
    assert lines[0].startswith("work-shop: A workshop (")
    assert "  mcp_work_shop.add(a: float, b: float)" in lines
    commands.finder.specs = (replace(DESCRIBED, call_timeout=3.0),)
    assert await commands.servers() == 0
    assert "  stdio      idle   1" in commands.said().out


@pytest.mark.parametrize("name", ["work-shop.add", "mcp_work_shop.add", "work_shop.add"])
async def test_a_named_tool_is_shown_as_typed_python(commands: Commands, name: str) -> None:
    assert await commands.tools(name) == 0
    printed = commands.said().out
    assert ("async def add(a: float, b: float)" in printed, "say" in printed) == (True, False)


async def test_a_search_shows_signatures_or_typed_python(commands: Commands) -> None:
    assert await commands.tools("add") == 0
    assert commands.said().out.startswith("mcp_work_shop.add(a: float, b: float)\n")
    assert await commands.tools("add", stub=True) == 0
    assert "async def add(" in commands.said().out
    assert await commands.tools(stub=True) == 0
    assert "class WorkShop" in commands.said().out


def test_a_table_fits_its_terminal_and_is_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("short", "a" * 60, "b" * 300, "数据" * 9)]
    headings = ("A", "B", "C", "WIDE")
    whole = table(headings, rows, ("B", "C"))
    assert whole.splitlines()[1] == f"short  {'a' * 60}  {'b' * 300}  {'数据' * 9}"
    for width, shown in ((410, "ABCW"), (350, "ACW"), (60, "AW"), (20, "AW")):
        monkeypatch.setattr("bridge.cli.output.terminal_width", lambda width=width: width)
        head, row = table(headings, rows, ("B", "C")).splitlines()
        assert [word[0] for word in head.split()] == list(shown)
        assert cell_len(row) <= width
        assert ("…" in row) is (width == 20)


async def test_home_is_short_there(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    place = replace(CURSOR, path=f"{commands.settings.environ['HOME']}/c.json")
    commands.finder.specs = (replace(DESCRIBED, source=place),)
    monkeypatch.setattr(servers_module, "terminal_width", lambda: 80)
    assert await commands.servers() == 0
    printed = commands.said().out
    assert "~/c.json (mcpServers.github)\n" in printed
    assert "  off, Cursor, /c.json (mcpServers.github): it is disabled\n" in printed


async def test_no_servers_were_found(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands.finder, "find", ListFinder().find)
    commands.settings = replace(commands.settings, sources=("windsurf",))
    for command in (commands.servers, commands.tools):
        assert await command() == 0
        said = commands.said().err
        assert "No MCP servers found." in said
        assert "MCP_BRIDGE_SOURCES leaves clients out: it is windsurf." in said


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("work_shp.add", "There is no server 'work_shp'. Did you mean 'work-shop'?"),
        ("off.add", "The server 'off' is configured, but skipped. In /c.json"),
    ],
)
async def test_an_unknown_server_is_no_search(commands: Commands, query: str, said: str) -> None:
    with raises_code("unknown_server", match=re.escape(said)) as caught:
        await commands.tools(query)
    assert f"`mcp-code-bridge tools '{query.replace('.', ' ')}'`" in str(caught.value)


async def test_a_server_that_waits_for_approval_takes_one_line(commands: Commands) -> None:
    for path in ("/p/.mcp.json", "/p/.cursor/mcp.json"):
        definition = Definition(directory="/p", path=path, name="wiki", digest="sha256:1")
        spec = replace(workshop("wiki"), source=replace(CURSOR, path=path))
        waits = ProposedServer(spec=spec, definition=definition, reason="it is new")
        commands.finder.proposed += (waits,)
    assert await commands.tools() == 0
    assert "Not approved, so not started (servers of this project): wiki." in commands.said().err
    assert await commands.servers() == 0
    assert commands.said().out.endswith(
        "\nNot approved, so not used:\n  wiki, Cursor, /p/.mcp.json (mcpServers.github): it is "
        "new; defined in 1 more\n`mcp-code-bridge servers approve NAME` shows one, and asks.\n"
    )


async def test_servers_left_out_for_one_reason_take_one_line(commands: Commands) -> None:
    def left_out(name: str, client: str, reason: str) -> SkippedServer:
        source = replace(CURSOR, client=client, path=f"/{client}.json")
        return SkippedServer(name=name, source=source, reason=reason)

    commands.finder.skipped = (
        SKIPPED,
        left_out("code-bridge", "Codex", ITSELF),
        left_out("code-bridge", "Cursor", ITSELF),
        left_out("github", "Codex", f"{SHADOWED}/a.json (mcpServers.github)"),
        left_out("github", "Zed", f"{SHADOWED}/a.json (mcpServers.github)"),
        left_out("linear", "Zed", f"{SHADOWED}/a.json (mcpServers.linear)"),
        left_out("memory", "Goose", ONLY_CLIENT),
        left_out("wiki", "Zed", f"{SHADOWED}/a.json (x){UNUSED}switched off in Codex"),
    )
    assert await commands.servers() == 0
    assert commands.said().out.endswith(
        "\nLeft out:\n  off, Cursor, /c.json (mcpServers.github): it is disabled\n"
        "  wiki, Zed, /Zed.json (mcpServers.github): shadowed by /a.json (x), which is not used "
        "either: switched off in Codex\n"
        "\nLeft out, as an earlier file has another of this name: github in Codex, Zed; linear in "
        "Zed.\n\nLeft out, as only its own client can start it: memory in Goose.\n"
        "\nThe bridge itself: code-bridge in Codex, Cursor.\n"
    )
    assert await commands.servers(as_json=True) == 0
    rows = json.loads(commands.said().out)
    assert "/Zed.json (mcpServers.github)" in [row["source"] for row in rows]
