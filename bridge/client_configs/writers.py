"""The clients that can use the bridge, and the files that get its entry.

Discovery's table has the formats and the keys of entries. This table adds what writing needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bridge.client_configs.document import Table
from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import Location
from bridge.discovery.files import list_matching
from bridge.discovery.finder import fill_all
from bridge.discovery.locations import Machine
from bridge.errors import UsageError
from bridge.settings import parsers

Scope = Literal["user", "project"]

FILE_NAME = "code-bridge"
"""The stem of the bridge's own file, for clients that read a directory of files."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A client that can use the bridge."""

    id: str
    name: str
    source: str  # The client's id in discovery's table.
    # Templates of discovery's table that can be written, the preferred first.
    files: tuple[str, ...]
    kinds: tuple[str, str] = ("", "")  # The type field's values for a command and for an address.
    stdio_only: bool = False
    named: bool = False  # Whether an entry holds its name.
    ours: Mapping[str, object] = field(default_factory=dict)  # Additional members of every entry.
    # `calls`, `starts`: the fields for the longest call and for the longest start. Discovery's
    # table has their units.
    calls: str = ""
    starts: str = ""
    # `url_key`, `table`: the field for an address and the table of servers, if they differ from the
    # first ones in discovery's table.
    url_key: str = ""
    table: Table = ()
    each: bool = False  # Whether every existing directory (a profile or a build) gets the entry.
    # The client's command, with the arguments that list the servers if it has some.
    command: str = ""
    contended: bool = False  # Whether the running client repeatedly writes the file.
    note: str = ""  # A line for the user after the change.

    @property
    def program(self) -> str:
        return self.command.partition(" ")[0]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A client's file that is, or would be, changed."""

    writer: Writer
    scope: Scope
    path: Path  # The path in discovery's form; it may be a link.
    exists: bool
    table: Table
    location: Location
    place: Path  # The base directory of the path's template, such as the home directory.
    root: Path | None = None  # The project of a project's file; no file outside it is written.


_ROWS_WITH_SERVERS = tuple(row for row in LOCATIONS if row.dialect.server_keys)


def _row(
    id: str,
    name: str = "",
    *,
    source: str = "",
    files: tuple[str, ...] | None = None,
    **others: Any,
) -> Writer:
    """Return a client's row; `files` defaults to the first template of each scope."""
    source = source or id
    rows = [row for row in _ROWS_WITH_SERVERS if row.id == source and not row.dialect.per_project]
    if files is None:
        user = [row.template for row in rows if row.scope == "user" and not row.in_project]
        files = (*user[:1], *[row.template for row in rows if row.in_project][:1])
    return Writer(id=id, name=name or rows[0].client, source=source, files=files, **others)


def _with_jsonc(*paths: str) -> tuple[str, ...]:
    return tuple(f"{path}.{suffix}" for path in paths for suffix in ("json", "jsonc"))


_DESKTOP = "Claude/claude_desktop_config.json"

_ROWS = (
    _row(
        "claude-code",
        kinds=("stdio", "http"),
        calls="timeout",
        command="claude mcp list",
        contended=True,
    ),
    _row(
        "claude-desktop",
        files=(
            f"{{packages}}/Claude_*/LocalCache/Roaming/{_DESKTOP}",
            *(f"{place}/{_DESKTOP}" for place in ("{config}", "{library}", "{appdata}")),
        ),
        stdio_only=True,
        each=True,
        note="Restart it. It gives up on a call after 60 seconds, whatever its configuration says.",
    ),
    _row("cursor"),
    _row(
        "vscode",
        files=("{vscode}/mcp.json", "{vscode}/profiles/*/mcp.json", "{workspace}/.vscode/mcp.json"),
        kinds=("stdio", "http"),
        each=True,
        command="code",
    ),
    _row(
        "devin",
        "Devin Desktop",
        source="windsurf",
        files=("{devin}/mcp_config.json", "{workspace}/.devin/mcp_config.json"),
        url_key="url",
    ),
    _row(
        "windsurf",
        files=("{home}/.codeium/windsurf/mcp_config.json", "{home}/.codeium/mcp_config.json"),
    ),
    _row(
        "codex",
        calls="tool_timeout_sec",
        starts="startup_timeout_sec",
        # Without these, Codex's first turn lacks the tools, and `codex exec` refuses each call.
        ours={"required": True, "default_tools_approval_mode": "approve"},
        command="codex mcp list",
        note="Codex now waits for the bridge when it starts, so that `codex exec` has the tool. It "
        "does not ask before run_python: the bridge's policy decides on each call.",
    ),
    _row("gemini", calls="timeout", command="gemini mcp list"),
    _row("qwen", calls="timeout", command="qwen mcp list"),
    _row("zed", calls="timeout", command="zed"),
    _row(
        "continue",
        files=(
            "{continue}/mcpServers/*.json",
            "{continue}/config.yaml",
            "{workspace}/.continue/mcpServers/*.json",
        ),
        kinds=("stdio", "streamable-http"),
        command="cn",
    ),
    _row(
        "cline",
        files=(
            "{cline_settings}",
            "{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ),
        kinds=("", "streamableHttp"),
        ours={"disabled": False},
        calls="timeout",
        each=True,
        command="cline config mcp",
    ),
    _row(
        "opencode",
        files=_with_jsonc("{opencode}/opencode", "{within}/opencode"),
        kinds=("local", "remote"),
        ours={"enabled": True},
        calls="timeout",
        table=("mcp",),
        command="opencode mcp list",
    ),
    _row(
        "goose",
        kinds=("stdio", "streamable_http"),
        named=True,
        ours={"enabled": True},
        calls="timeout",
        command="goose",
    ),
    _row("lm-studio", command="lms"),
    _row("amazon-q", stdio_only=True, calls="timeout", command="q"),
    _row("kiro", command="kiro"),
    _row("junie", "Junie", source="jetbrains"),
    _row(
        "jetbrains-copilot",
        "Copilot for JetBrains",
        source="jetbrains",
        files=("{intellij}/mcp.json",),
    ),
    _row(
        "antigravity",
        files=(
            "{home}/.gemini/config/mcp_config.json",
            "{home}/.gemini/antigravity/mcp_config.json",
        ),
    ),
    _row(
        "copilot",
        files=("{copilot}/mcp-config.json",),
        kinds=("local", "http"),
        ours={"tools": ["*"]},
        command="copilot mcp list",
    ),
    _row(
        "amp",
        files=_with_jsonc("{config}/amp/settings", "{within}/.amp/settings"),
        command="amp mcp list",
        note="Amp asks before it starts a project's server.",
    ),
    _row("roo", files=()),
    _row(
        "kilo",
        files=_with_jsonc("{config}/kilo/kilo", "{within}/.kilo/kilo", "{within}/kilo"),
        kinds=("local", "remote"),
        ours={"enabled": True},
        calls="timeout",
        command="kilo mcp list",
    ),
    _row("trae", each=True),
    _row(
        "kimi",
        files=("{kimi}/mcp.json", "{kimi_cli}/mcp.json", "{cwd}/.kimi-code/mcp.json"),
        calls="toolTimeoutMs",
        starts="startupTimeoutMs",
        command="kimi",
    ),
    _row("droid", kinds=("stdio", "http"), starts="connectTimeout", command="droid mcp list"),
    _row(
        "crush",
        files=("{crush}/crush.json", "{within}/crush.json", "{within}/.crush.json"),
        kinds=("stdio", "http"),
        starts="timeout",
        command="crush",
    ),
    _row(
        "vibe",
        kinds=("stdio", "streamable-http"),
        calls="tool_timeout_sec",
        starts="startup_timeout_sec",
        command="vibe",
    ),
)

WRITERS: Mapping[str, Writer] = {row.id: row for row in _ROWS}


def writer_for(client: str) -> Writer:
    if client in WRITERS:
        return WRITERS[client]
    near = parsers.nearest(client.lower(), WRITERS)
    guess = f" Did you mean {near}?" if near else ""
    message = f"Unknown client {client!r:.100}.{guess}"
    raise UsageError(message, remedy=f"Supported clients: {', '.join(WRITERS)}.")


def targets(writer: Writer, scope: Scope, machine: Machine) -> tuple[Target, ...]:
    """Return the files that get the bridge: one, or one for each build or profile."""
    if not writer.files:
        message = f"{writer.name} is discontinued, so the bridge is not added to it."
        raise UsageError(message, remedy="`uninstall` removes the bridge from it.")
    candidates = list(_candidates(writer, scope, machine))
    if not candidates:
        message = f"{writer.name} has no configuration file for the {scope} here."
        others = "Leave --scope out." if scope == "project" else "It runs on another system."
        raise UsageError(message, remedy=others)
    if scope == "project" and machine.root == machine.context.home:
        message = "This is your home directory, not a project."
        raise UsageError(message, remedy="Change to the project, or leave --scope out.")
    if writer.each:
        return tuple(each for each in candidates if _exists(each, machine)) or (candidates[0],)

    def rank(target: Target) -> tuple[bool, bool]:
        # Prefer the first existing file, then the project's root or the user's existing directory.
        near = target.place == target.root if target.root else _exists(target, machine)
        return not target.exists, not (target.exists or near)

    return (min(candidates, key=rank),)


def detect_targets(machine: Machine) -> tuple[Target, ...]:
    detected: list[Target] = []
    for writer in WRITERS.values():
        own = list(_candidates(writer, "user", machine))
        present = any(_exists(each, machine) for each in own)
        if present or (own and machine.program(writer.program)):
            detected.extend(targets(writer, "user", machine))
    return tuple(detected)


def readable(machine: Machine, gone: Collection[Path] = ()) -> Iterator[Target]:
    """Yield a target for each table of each file that exists or is one of `gone`."""
    seen: set[tuple[Path, Table]] = set()
    for writer in WRITERS.values():
        locations = _locations(writer, machine)
        own = [row for row in locations if row.template in writer.files]
        for row in (*own, *(locations if writer.id == writer.source else ())):
            for target in _in_location(writer, row, machine, present=True):
                wanted = target.exists or target.path in gone
                tables = [_table(key, row) for key in row.dialect.server_keys]
                if row.dialect.per_project:
                    keys = machine.project.keys
                    tables = [("projects", each, *inner) for inner in tables for each in keys]
                for table in tables if wanted else ():
                    if (target.path, table) not in seen:
                        seen.add((target.path, table))
                        yield replace(target, table=table)


def _table(key: str, row: Location) -> Table:
    return (key,) if row.dialect.flat_keys else tuple(key.split("."))


def _locations(writer: Writer, machine: Machine) -> list[Location]:
    rows = (row for row in _ROWS_WITH_SERVERS if row.id == writer.source)
    return [row for row in rows if machine.context.platform in row.platforms]


def _candidates(writer: Writer, scope: Scope, machine: Machine) -> Iterator[Target]:
    rows = _locations(writer, machine)
    for template in writer.files:
        for row in rows:
            wanted = row.template == template and row.in_project == (scope == "project")
            if wanted and not row.dialect.per_project:
                yield from _in_location(writer, row, machine)


def _in_location(
    writer: Writer, row: Location, machine: Machine, *, present: bool = False
) -> Iterator[Target]:
    """Yield one row's files; for a directory, its existing files or the bridge's own file."""
    table = writer.table or _table(row.dialect.server_keys[0], row)
    for path, place in fill_all(row.template, machine.places):
        if row.in_project and not place.is_relative_to(machine.root):
            continue
        paths: tuple[Path, ...] = (path,)
        if path.name.startswith("*"):
            own = path.with_name(f"{FILE_NAME}{path.suffix}")
            paths = list_matching(path.parent, path.suffix)[0] if present else (own,)
        for each in paths:
            yield Target(
                writer=writer,
                scope="project" if row.in_project else "user",
                path=each,
                exists=each.is_file(),
                table=table,
                location=row,
                place=place,
                root=machine.root if row.in_project else None,
            )


def _exists(target: Target, machine: Machine) -> bool:
    """Return whether the file, or a directory that only this client uses, exists."""
    own = target.path.stem == FILE_NAME
    directory = target.place if own else target.path.parent
    shared = (machine.context.home, *machine.places["config"])
    return target.exists or (directory not in shared and directory.is_dir())
