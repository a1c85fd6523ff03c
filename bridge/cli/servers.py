"""Commands on servers and tools: `servers`, `tools`, `logs`, `login` and `logout`."""

from __future__ import annotations

import re
import sys
import threading
import webbrowser
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread

from bridge.catalog.entries import server_stub, tool_stub
from bridge.cli.options import (
    AsJson,
    Server,
    arg,
    complete_servers,
    complete_tools,
    count,
    flag,
    opt,
)
from bridge.cli.origin import ORIGIN
from bridge.cli.output import (
    open_engine,
    terminal_width,
    visible,
    waiting,
    write_err,
    write_err_line,
    write_json,
    write_list,
    write_out,
    write_prose,
    write_warning,
)
from bridge.cli.terminal import Person
from bridge.discovery.documents import MalformedError
from bridge.discovery.entries import ONLY_CLIENT
from bridge.discovery.finder import Discovery
from bridge.discovery.precedence import ITSELF, SHADOWED, UNUSED
from bridge.discovery.report import ProposedServer, SkippedServer
from bridge.errors import BridgeError, SettingsError, UnknownError, UsageError
from bridge.gate.audit.log import AuditLog, audit_log
from bridge.gate.pins import Pins
from bridge.gate.policy import REDEFINED, Policy
from bridge.gate.question import because, server_lines
from bridge.gate.server_starts import Starts
from bridge.inventory.configuration import (
    consents_of,
    context_for,
    definition_lines,
    reference_names,
    waiting_line,
)
from bridge.model import ServerSpec, Source
from bridge.settings import Settings, home, parsers, store_of
from bridge.text import clip, counted, first_sentence, one_line
from bridge.upstream.token_store import TokenStore

if TYPE_CHECKING:
    from bridge.runs import Engine
    from bridge.upstream.oauth_login import Callback


async def servers(
    settings: Settings,
    *,
    check: Annotated[
        bool, flag("--check", "start each server, and measure its tools", "--start")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """The list has each server's name, transport, state, and the file that defines it.

    Examples:
        servers --check
        servers approve github
    """
    async with open_engine(settings) as engine:
        discovery = engine.servers.discovery
        # Warnings about the settings' own files have been logged.
        warnings = (each for each in discovery.warnings if not each.own and not each.reported)
        hints = [f"warning: {each}" for each in warnings]
        names = {spec.name for spec in discovery.servers}
        names |= {each.name for each in discovery.proposed}
        names |= {each.name for each in discovery.skipped}
        hints += [
            f"warning: [servers.{name}] in config.toml does nothing: no client has a server of "
            "that name."
            for name in settings.server_settings
            if name not in names
        ]
        if check and engine.servers.names():
            for text in hints:
                write_err_line(text)
            # Imported here: it imports the server, whose tools' tokens it counts.
            from bridge.cli.checks import check_servers

            return await check_servers(engine, as_json=as_json)
        rows = _rows(engine)
    if rows and not as_json:
        _write(rows, str(home(settings.environ)))
    else:
        write_list(rows, {}, none_found(settings), as_json=as_json)
    for text in hints:
        write_err_line(text)
    return 0


def none_found(settings: Settings) -> str:
    text = (
        "No MCP servers found. Add one to a client, for example with `claude mcp add`, or name a "
        "file in MCP_SERVERS_CONFIG."
    )
    if settings.sources:
        sources = visible(",".join(settings.sources))
        text += f"\nMCP_BRIDGE_SOURCES leaves clients out: it is {sources}."
    return text


def _write(rows: Sequence[dict[str, Any]], home_directory: str) -> None:
    """Write the usable servers as a table, and below it why others are left out.

    A terminal shows the home directory as "~"; a script gets whole paths.
    """
    at_terminal = terminal_width() is not None

    def short(text: str) -> str:
        return re.sub(rf"(^| ){re.escape(home_directory)}/", r"\1~/", text) if at_terminal else text

    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "NAME": lambda row: row["name"],
        "ALIAS": lambda row: f"mcp_{row['alias']}" if row.get("alias") else "-",
        "TRANSPORT": lambda row: row.get("transport", "-"),
        "STATE": lambda row: row["state"],
        "TOOLS": lambda row: str(row.get("tools", "-")),
        "CLIENTS": lambda row: ", ".join(
            dict.fromkeys([row["client"], *(place["client"] for place in row.get("also", ()))])
        ),
        "FOUND IN": lambda row: short(row["source"]),
    }
    used = [row for row in rows if row["state"] not in ("skipped", "proposed")]
    if any("processes" in row for row in used):
        columns["PROCESS"] = lambda row: ", ".join(
            f"{each['pid']} ({counted(each['clients'], 'client')})"
            for each in row.get("processes", ())
        )
    if used:
        write_list(used, columns, "", as_json=False, drop=("TRANSPORT", "CLIENTS"))
    differences = [(row["name"], text) for row in used for text in row.get("differences", ())]
    if differences:
        write_out("\nDefined differently elsewhere; the table has the definition that is used:\n")
    for name, text in differences:
        write_prose(f"  {visible(name, keep='')}: {visible(text, keep='')}\n")
    _write_reasons("Not working", [row for row in used if row.get("reason")], str)
    grouped: dict[str, list[dict[str, Any]]] = {}
    waiting_rows: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["state"] == "skipped":
            grouped.setdefault(_common_reason(row["reason"]), []).append(row)
        elif row["state"] == "proposed":
            waiting_rows.setdefault(row["name"], []).append(row)
    _write_reasons("Left out", grouped.pop("", ()), short)
    for title, alike in sorted(grouped.items()):
        # --json has their files.
        clients: dict[str, dict[str, None]] = {}
        for row in alike:
            clients.setdefault(row["name"], {})[row["client"]] = None
        named = "; ".join(f"{name} in {', '.join(of)}" for name, of in clients.items())
        write_prose("\n" + visible(f"{title}: {named}.", keep="") + "\n")
    # One row per name, with the number of its other definitions.
    proposed = []
    for first, *others in waiting_rows.values():
        more = f"; defined in {len(others)} more" if others else ""
        proposed.append({**first, "reason": first["reason"] + more})
    _write_reasons("Not approved, so not used", proposed, short)
    if proposed:
        write_out("`mcp-code-bridge servers approve NAME` shows one, and asks.\n")


def _common_reason(reason: str) -> str:
    """Return the title of the servers left out for a common reason, which take one line; or ""."""
    if reason.startswith(SHADOWED) and UNUSED not in reason:
        return "Left out, as an earlier file has another of this name"
    only_client = "Left out, as only its own client can start it"
    return {ONLY_CLIENT: only_client, ITSELF: "The bridge itself"}.get(reason, "")


def _write_reasons(
    title: str, rows: Collection[dict[str, Any]], short: Callable[[str], str]
) -> None:
    if rows:
        write_out(f"\n{title}:\n")
    for row in rows:
        place, reason = short(row["source"]), short(row["reason"].splitlines()[0])
        line = f"  {row['name']}, {row['client']}, {place}: {clip(reason, 160)}"
        write_prose(visible(line, keep="") + "\n")


def _rows(engine: Engine) -> list[dict[str, Any]]:
    def row_of(entry: SkippedServer | ProposedServer, state: str) -> dict[str, Any]:
        row = {"name": entry.name, "state": state, "used": False, **_place(entry.source)}
        return {**row, "reason": entry.reason}

    discovery, shared = engine.servers.discovery, ORIGIN.get().shared
    rows = [_row(engine, spec) for spec in discovery.servers]
    for process in () if shared is None else shared.connections.report():
        for row in rows:
            if (row["name"], row["definition"]) == (process["server"], process["definition"]):
                its = {name: process[name] for name in ("pid", "clients")}
                row["processes"] = [*row.get("processes", ()), its]
                if row["state"] == "idle":
                    row["state"] = "ready"  # For other clients than this command.
    rows += [row_of(entry, "skipped") for entry in discovery.skipped]
    for entry in discovery.proposed:
        more = {"transport": entry.spec.transport, "digest": entry.definition.digest}
        rows.append({**row_of(entry, "proposed"), **more})
    return rows


def _row(engine: Engine, spec: ServerSpec) -> dict[str, Any]:
    """Describe a server without its command, address and variables, which may hold secrets."""
    state = engine.servers.pool.state(spec.name)
    listing = engine.servers.last_listing(spec.name)
    row: dict[str, Any] = {
        "name": spec.name,
        "alias": engine.servers.aliases[spec.name],
        "transport": spec.transport,
        "state": state.state,
        "used": True,
        **_place(spec.source),
        "also": [_place(source) for source in spec.also],
        "differences": list(spec.differences),
        "description": engine.servers.inventory.entry(spec.name).description,
        "oauth": spec.oauth is not None,
        "definition": spec.definition,
    }
    try:
        start = engine.gate.starts.decide(spec)
    except SettingsError as error:
        row["start"], row["reason"] = "deny", error.message
    else:
        row["start"] = start.action
        if start.action != "allow":
            row["reason"] = f"it does not start without approval: {because(start)}"
    if listing is not None:
        row["tools"] = len(listing.tools)
    if spec.tools.only is not None:
        row["onlyTools"] = sorted(spec.tools.only)
    if spec.tools.without:
        row["withoutTools"] = sorted(spec.tools.without)
    if state.error:
        row["reason"] = state.error
    return row


def _place(source: Source) -> dict[str, Any]:
    place = {"client": source.client, "scope": source.scope, "source": str(source)}
    return {**place, "fields": list(source.fields)}


SERVER_UNREACHABLE = 4  # The exit status if a server could not be asked.

_COMMAND = "servers approve"


async def approve(
    settings: Settings,
    *,
    names: Annotated[
        list[str] | None,
        arg("NAME[@DIGEST]", "shown, and you are asked; or by digest", complete_servers),
    ] = None,
) -> int:
    """Examples: servers approve github"""
    if not names:
        message = "Name a server to approve."
        raise UsageError(message, remedy="`mcp-code-bridge servers` lists those waiting.")
    consents, person = consents_of(settings), Person()
    approved = True
    for wanted in names:
        discovery = await anyio.to_thread.run_sync(consents.discover, context_for(settings))
        for warning in discovery.warnings:
            if warning.unread or not warning.key:
                write_err_line(f"warning: {warning}")
        server, digits = _resolve_name(wanted, discovery)
        if isinstance(server, ServerSpec):
            approved &= await _approve_start(server, digits, settings, person)
            continue
        spec, digest = server.spec, server.definition.digest
        before = _starts(settings).decide(spec)
        if before.rule == REDEFINED:
            person.write(
                f"The policy has rules for a server of this name: {before.reason}. If you approve, "
                f"the policy's rules for {spec.name} apply to this definition.\n"
            )
        head = "".join(f"  {line}\n" for line in definition_lines(server))
        shown = (
            f"{spec.name}, a server that a file in this directory defines. It runs without a "
            f"sandbox.\n{head}  The definition in the file:\n{spec.written}\n"
        )
        lines = counted(spec.written.count("\n") + 1, "line")
        question = f"May {spec.name} be used as shown above ({lines})?"
        if not await person.confirm_digest(
            spec.name, digest, digits, shown=shown, question=question, command=_COMMAND
        ):
            approved = False
            continue
        # The user has approved this definition, so it replaces any earlier one of the name.
        await _record(spec, settings)
        try:
            await anyio.to_thread.run_sync(consents.allow, server.definition)
        except MalformedError as error:
            raise UsageError(f"{spec.name} could not be approved: {error}.") from None
        write_err_line(f"Approved {spec.name} for this directory until its definition changes.")
    return 0 if approved else 1


async def _approve_start(spec: ServerSpec, digits: str, settings: Settings, person: Person) -> bool:
    decision = _starts(settings).decide(spec)
    if decision.action == "deny":
        message = f"{spec.name} cannot be approved: the policy denies it ({because(decision)})."
        raise UsageError(message, remedy="Change the policy in config.toml.")
    if decision.action == "allow":
        project = spec.source.scope == "project"
        write_err_line(f"{spec.name} {'is already approved' if project else 'needs no approval'}.")
        return True
    lines = "".join(f"  {line}\n" for line in (*server_lines(spec), because(decision)))
    shown = f"{spec.name}, which runs without a sandbox.\n{lines}"
    question = f"May {spec.name} be started as shown above?"
    if not await person.confirm_digest(
        spec.name, spec.definition, digits, shown=shown, question=question, command=_COMMAND
    ):
        return False
    await _record(spec, settings)
    # Read back from the store, as another bridge would.
    if _starts(settings).decide(spec).action != "allow":
        store = settings.store or settings.state_dir / "store.db"
        message = f"The approval of {spec.name} could not be saved in {store}."
        raise UsageError(message, remedy="Check the file's permissions and free space.")
    write_err_line(f"Approved {spec.name} until its definition changes.")
    return True


async def _record(spec: ServerSpec, settings: Settings) -> None:
    audit = audit_log(settings)
    try:
        await _starts(settings, audit).approve(spec, "terminal")
    finally:
        audit.close()


def _starts(settings: Settings, audit: AuditLog | None = None) -> Starts:
    return Starts(lambda: Policy(settings.policy), audit or AuditLog(), Pins(store_of(settings)))


def _resolve_name(wanted: str, discovery: Discovery) -> tuple[ProposedServer | ServerSpec, str]:
    """Return the server and the digits that NAME[@DIGEST] means; unapproved servers come first."""
    name, _, digits = wanted.rpartition("@")
    for servers in (discovery.proposed, discovery.servers):
        # A name may contain an "@".
        for word, given in ((wanted, ""), (name, digits)):
            named = [each for each in servers if word and word in reference_names(each.name)]
            for each in named:
                definition = each.definition
                digest = definition if isinstance(definition, str) else definition.digest
                if each is named[-1] or digest.removeprefix("sha256:").startswith(given.lower()):
                    return each, given
    waiting = ", ".join(dict.fromkeys(each.name for each in discovery.proposed)) or "none"
    message = f"No server {wanted!r:.200} of this directory waits for approval. Waiting: {waiting}."
    raise UnknownError(
        message, remedy="`mcp-code-bridge servers` lists all servers.", code="unknown_server"
    )


async def logs(
    settings: Settings,
    server: Annotated[
        str | None, arg("SERVER", "its name; else logs are listed", complete_servers)
    ] = None,
    *,
    number: Annotated[int, count("how many lines")] = 100,
) -> int:
    """The bridge keeps the last 1 to 2 MiB of each server."""
    from bridge.upstream.stdio import log_path  # it imports the SDK

    directory = settings.state_dir / "logs"
    names = sorted(path.stem for path in directory.glob("*.log"))
    if server is None:
        write_out("".join(f"{name}\n" for name in names))
        if not names:
            write_err_line("No server has written to stderr.")
        return 0
    path, last = log_path(directory, server), deque[str](maxlen=number)
    if path.stem not in names:
        near = parsers.nearest(server, names)
        remedy = f"Did you mean {near}?" if near else "`logs` lists the logs."
        raise UnknownError(
            f"There is no log of a server {server!r:.80}.", remedy=remedy, code="unknown_server"
        )
    # The log rotates into the older file `.1`.
    for part in (path.with_name(f"{path.name}.1"), path):
        with suppress(FileNotFoundError), part.open(encoding="utf-8", errors="replace") as file:
            last.extend(file)
    write_out("".join(last))
    return 0


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
    """The tools come from each server's last listing.

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


async def login(
    settings: Settings,
    *,
    server: Server,
    no_browser: Annotated[bool, flag("--no-browser", "only print the address")] = False,
    timeout: Annotated[float, opt("SECONDS", "how long to wait for you")] = 300.0,
) -> int:
    """Examples: login linear"""
    from bridge.upstream.oauth_login import log_in

    spec = await _spec(server, settings, connecting=True)
    # Without these, `webbrowser` would open a browser in the terminal itself.
    windows = map(settings.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    opens = not no_browser and (sys.platform == "darwin" or any(windows))

    async def show(url: str, callback: Callback) -> None:
        if callback.notice:
            write_err(f"{visible(callback.notice)}\n\n")
        what = "Open this address in a browser"
        what = "A browser opens this address. If none does, open it yourself" if opens else what
        write_err(
            f"{what}:\n\n{visible(url)}\n\n"
            f"Waiting for {timeout:g} s. The browser comes back to port {callback.port} of this "
            "machine; if it runs elsewhere, forward that port first.\n"
        )
        if opens:
            # Not awaited: some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    done = await log_in(spec, TokenStore(settings.state_dir / "logins"), show, seconds=timeout)
    granted = f" ({visible(done.scope)})" if done.scope else ""
    write_out(f"Logged in to {visible(repr(spec.name))}{granted}.\n")
    if done.end:
        write_err(f"{visible(done.end)}\n")
    file = f"a file under {settings.state_dir / 'logins'} that only you can read: {done.notice}"
    place = "the system's keyring" if done.place == "keyring" else file
    write_err(f"The tokens are in {place}.\n")
    return 0


async def logout(settings: Settings, *, server: Server) -> int:
    from bridge.upstream.oauth_login import log_out

    spec = await _spec(server, settings)
    removed, revoked = await log_out(spec, TokenStore(settings.state_dir / "logins"))
    name = visible(repr(spec.name))
    if not removed:
        write_err(f"There is no login to {name}.\n")
        return 0
    write_out(f"Logged out of {name}.\n")
    if not revoked:
        write_err("The authorization server did not confirm that it revoked the tokens.\n")
    return 0


async def _spec(server: str, settings: Settings, *, connecting: bool = False) -> ServerSpec:
    async with open_engine(settings) as engine:
        spec = engine.servers.pool.spec(engine.servers.resolve(server))
        if connecting:
            # By this command the user agrees to the server's present definition.
            await engine.gate.starts.start(spec, asked_for=True)
        return spec
