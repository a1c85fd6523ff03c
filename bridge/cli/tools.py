"""`tools`: lists or searches the servers' tools, also as typed Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from bridge.catalog.entries import server_stub, tool_stub
from bridge.cli.options import AsJson, arg, complete_servers, complete_tools, flag, opt
from bridge.cli.output import (
    terminal_width,
    visible,
    write_err,
    write_json,
    write_out,
    write_warning,
)
from bridge.cli.servers import SERVER_UNREACHABLE, none_found
from bridge.cli.status import open_engine, waiting
from bridge.errors import BridgeError, UnknownError
from bridge.inventory.configuration import waiting_line
from bridge.settings import Settings
from bridge.text import clip, counted, first_sentence, one_line

if TYPE_CHECKING:
    from bridge.runs import Engine


async def tools(
    settings: Settings,
    *,
    words: Annotated[list[str] | None, arg("QUERY", "or SERVER.TOOL", complete_tools)] = None,
    server: Annotated[
        str | None, opt("NAME", "only this server's tools", completes=complete_servers)
    ] = None,
    stub: Annotated[bool, flag("--stub", "as typed Python")] = False,
    fresh: Annotated[bool, flag("--fresh", "ask the servers again")] = False,
    as_json: AsJson = False,
) -> int:
    """List or search tools across servers.

    The tools come from each server's last listing.

    Examples:
        tools 'create issue'
    """
    query = " ".join(words or ())
    async with open_engine(settings) as engine:
        named = _named_tool(engine, query)
        wanted = named[0] if named else engine.servers.resolve(server) if server else ""
        names = (wanted,) if wanted else engine.servers.names()
        with waiting(f"asking {', '.join(names)} for their tools"):
            errors = await engine.servers.load_unknown(names, fresh=fresh, patient=True)
        if named is not None and not errors:
            docs = await engine.guide.tool_docs(*named, "full")
            if as_json:
                write_json(docs, indent=2)
            else:
                write_out(visible(_stub(engine, named[0], docs["tool"])))
            return 0
        if stub and not query:
            stubs = [server_stub(engine.servers.inventory.entry(name)) for name in names]
            write_out(visible("\n".join(stubs)))
            return _warn(errors)
        matches = await engine.guide.tools(names, query=query)
        if as_json:
            write_json(matches, indent=2)
        elif stub:
            stubs = [_stub(engine, docs["server"], docs["tool"]) for docs in matches]
            write_out(visible("\n\n".join(stubs)))
        elif query:
            _write_tools(matches, indent="")
        else:
            _write_servers(engine, names, matches)
    _warn(errors)
    if not server and not query and not as_json:
        line = waiting_line(engine.servers.discovery.proposed)
        write_err(visible(f"{line}\n" if line else ""))
    if not names:
        write_err("" if engine.servers.discovery.proposed else f"{none_found(settings)}\n")
    elif not matches and not as_json:
        hint = "No tool matches; `mcp-code-bridge tools` lists all.\n"
        write_err(hint if query else "No tools found.\n")
    elif not as_json and matches[0].get("poor"):
        write_err("Perhaps one of these. `mcp-code-bridge tools` lists all.\n")
    return SERVER_UNREACHABLE if errors and not matches else 0


def _named_tool(engine: Engine, query: str) -> tuple[str, str] | None:
    server, dot, tool = query.rpartition(".")
    if not dot or not tool or any(map(str.isspace, tool)):
        return None
    try:
        return engine.servers.resolve(server), tool
    except UnknownError as error:
        if any(map(str.isspace, server)):
            return None
        remedy = f"To search for it: `mcp-code-bridge tools {f'{server} {tool}'!r}`."
        raise UnknownError(
            error.message, remedy=remedy, host_detail=error.host_detail, code="unknown_server"
        ) from error


def _stub(engine: Engine, server: str, tool: str) -> str:
    entry = engine.servers.inventory.entry(server)
    return next(tool_stub(each, entry.alias) for each in entry.tools if each.tool.name == tool)


def _write_servers(engine: Engine, names: Iterable[str], tools: Sequence[dict[str, Any]]) -> None:
    gap = ""
    for name in names:
        if own := [docs for docs in tools if docs["server"] == name]:
            entry = engine.servers.inventory.entry(name)
            summary = first_sentence(entry.description, 100)
            head = f"{one_line(entry.name, 60)}{f': {summary}' if summary else ''}"
            write_out(gap + visible(f"{head} ({counted(len(entry.tools), 'tool')})\n"))
            _write_tools(own, indent="  ")
            gap = "\n"


def _write_tools(tools: Iterable[dict[str, Any]], *, indent: str) -> None:
    width = terminal_width()
    for docs in tools:
        write_out(f"{indent}{visible(docs['signature'])}\n")
        if docs.get("description"):
            line = f"{indent}    {visible(docs['description'])}"
            write_out(f"{line if width is None else clip(line, width)}\n")


def _warn(errors: dict[str, BridgeError]) -> int:
    for name, error in errors.items():
        write_warning(f"{name}: {error}")
    return SERVER_UNREACHABLE if errors else 0
