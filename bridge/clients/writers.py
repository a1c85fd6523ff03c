"""The clients that the bridge can be put into, and which of their files get it.

Data over discovery's own table: the formats, the keys and the spelling of entries are a
`Location`'s and its `Dialect`'s. A `Writer` adds which file is written and what an entry needs
beside what discovery reads.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import Location
from bridge.discovery.files import list_matching
from bridge.discovery.finder import DiscoveryContext, filled, project_and_places
from bridge.discovery.locations import Places, Project
from bridge.errors import UsageError

Scope = Literal["user", "project"]
Table = tuple[str, ...]

FILE_NAME = "code-bridge"
"""Of a file that is the bridge's alone, where a client reads a directory of files."""


@dataclass(frozen=True)
class Writer:
    """One client that the bridge can be put into.

    Attributes:
        id: What a person calls it.
        name: As shown.
        user, project: Templates of discovery's table, the preferred first; empty for a scope that
            the client does not have, or that is not written.
        source: Under which name discovery reads its files, if it is not the id.
        stdio, http: Members of an entry beside the usual ones; `{name}` stands for its name. None
            for a transport that the client does not have.
        ours: Members of both.
        calls, starts: Its fields for the longest call and the longest start; discovery knows
            their units.
        url_key: The field for an address, if not the first of those that are read.
        table: Where its servers are, if not at the first of the keys that are read.
        each: Whether every one of the directories that exist gets the entry: profiles, builds.
        program: Its command.
        listing: What that command takes to list its servers.
        contended: Whether the running client writes the file again and again.
        note: What a person has to know afterwards.
    """

    id: str
    name: str
    user: tuple[str, ...]
    project: tuple[str, ...] = ()
    source: str = ""
    stdio: Mapping[str, object] | None = field(default_factory=dict)
    http: Mapping[str, object] | None = field(default_factory=dict)
    ours: Mapping[str, object] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    url_key: str = ""
    table: Table = ()
    each: bool = False
    program: str = ""
    listing: tuple[str, ...] = ()
    contended: bool = False
    note: str = ""

    def templates(self, scope: Scope) -> tuple[str, ...]:
        """Return the files of a scope that may be written."""
        return self.user if scope == "user" else self.project


@dataclass(frozen=True, kw_only=True)
class Target:
    """One file that is, or would be, changed for a client.

    Attributes:
        path: As discovery names it; it may be a link.
        exists: Whether the file is there.
        table: Where its servers are.
        place: Where its template starts.
        root: For a project's file, the project; no file outside is written.
    """

    writer: Writer
    scope: Scope
    path: Path
    exists: bool
    table: Table
    location: Location
    place: Path
    root: Path | None = None


_TYPED_HTTP = {"type": "http"}
_DESKTOP = "Claude/claude_desktop_config.json"
_LIST = ("mcp", "list")

_ROWS = (
    Writer(
        "claude-code",
        "Claude Code",
        ("{claude_state}/.claude.json",),
        ("{upwards}/.mcp.json",),
        stdio={"type": "stdio"},
        http=_TYPED_HTTP,
        calls=("timeout",),
        program="claude",
        listing=_LIST,
        contended=True,
    ),
    Writer(
        "claude-desktop",
        "Claude Desktop",
        (
            f"{{packages}}/Claude_*/LocalCache/Roaming/{_DESKTOP}",
            *(f"{place}/{_DESKTOP}" for place in ("{config}", "{library}", "{appdata}")),
        ),
        http=None,
        each=True,
        note="Restart it. It gives up on a call after 60 seconds, whatever its configuration says.",
    ),
    Writer("cursor", "Cursor", ("{home}/.cursor/mcp.json",), ("{workspace}/.cursor/mcp.json",)),
    Writer(
        "vscode",
        "VS Code",
        ("{vscode}/mcp.json", "{vscode}/profiles/*/mcp.json"),
        ("{workspace}/.vscode/mcp.json",),
        stdio={"type": "stdio"},
        http=_TYPED_HTTP,
        each=True,
        program="code",
    ),
    Writer(
        "devin",
        "Devin Desktop",
        ("{devin}/mcp_config.json",),
        ("{workspace}/.devin/mcp_config.json",),
        source="windsurf",
        url_key="url",
    ),
    Writer(
        "windsurf",
        "Windsurf",
        ("{home}/.codeium/windsurf/mcp_config.json", "{home}/.codeium/mcp_config.json"),
    ),
    Writer(
        "codex",
        "Codex",
        ("{codex}/config.toml",),
        ("{within}/.codex/config.toml",),
        calls=("tool_timeout_sec",),
        starts=("startup_timeout_sec",),
        program="codex",
        listing=_LIST,
    ),
    Writer(
        "gemini",
        "Gemini CLI",
        ("{gemini}/settings.json",),
        ("{cwd}/.gemini/settings.json",),
        calls=("timeout",),
        program="gemini",
        listing=_LIST,
    ),
    Writer(
        "qwen",
        "Qwen Code",
        ("{qwen}/settings.json",),
        ("{cwd}/.qwen/settings.json",),
        calls=("timeout",),
        program="qwen",
        listing=_LIST,
    ),
    Writer(
        "zed",
        "Zed",
        ("{zed}/settings.json",),
        ("{workspace}/.zed/settings.json",),
        calls=("timeout",),
        program="zed",
    ),
    Writer(
        "continue",
        "Continue",
        ("{continue}/mcpServers/*.json",),
        ("{workspace}/.continue/mcpServers/*.json",),
        stdio={"type": "stdio"},
        http={"type": "streamable-http"},
        program="cn",
    ),
    Writer(
        "cline",
        "Cline",
        (
            "{cline_settings}",
            "{vscode}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ),
        http={"type": "streamableHttp"},
        ours={"disabled": False},
        calls=("timeout",),
        each=True,
        program="cline",
        listing=("config", "mcp"),
    ),
    Writer(
        "opencode",
        "OpenCode",
        ("{opencode}/opencode.json", "{opencode}/opencode.jsonc"),
        ("{within}/opencode.json", "{within}/opencode.jsonc"),
        stdio={"type": "local"},
        http={"type": "remote"},
        ours={"enabled": True},
        calls=("timeout",),
        table=("mcp",),
        program="opencode",
        listing=_LIST,
    ),
    Writer(
        "goose",
        "Goose",
        ("{goose}/config.yaml",),
        stdio={"name": "{name}", "type": "stdio"},
        http={"name": "{name}", "type": "streamable_http"},
        ours={"enabled": True},
        calls=("timeout",),
        program="goose",
    ),
    Writer("lm-studio", "LM Studio", ("{home}/.lmstudio/mcp.json",), program="lms"),
    Writer(
        "amazon-q",
        "Amazon Q",
        ("{home}/.aws/amazonq/mcp.json",),
        ("{cwd}/.amazonq/mcp.json",),
        http=None,
        calls=("timeout",),
        program="q",
    ),
    Writer(
        "kiro",
        "Kiro",
        ("{home}/.kiro/settings/mcp.json",),
        ("{workspace}/.kiro/settings/mcp.json",),
        program="kiro",
    ),
    Writer(
        "junie",
        "Junie",
        ("{home}/.junie/mcp/mcp.json",),
        ("{workspace}/.junie/mcp/mcp.json",),
        source="jetbrains",
    ),
    Writer(
        "jetbrains-copilot", "Copilot for JetBrains", ("{intellij}/mcp.json",), source="jetbrains"
    ),
    Writer(
        "antigravity",
        "Antigravity",
        ("{home}/.gemini/config/mcp_config.json", "{home}/.gemini/antigravity/mcp_config.json"),
    ),
    Writer(
        "copilot",
        "Copilot CLI",
        ("{copilot}/mcp-config.json",),
        stdio={"type": "local"},
        http=_TYPED_HTTP,
        ours={"tools": ["*"]},
        program="copilot",
        listing=_LIST,
    ),
    Writer(
        "amp",
        "Amp",
        ("{config}/amp/settings.json", "{config}/amp/settings.jsonc"),
        ("{workspace}/.amp/settings.json", "{workspace}/.amp/settings.jsonc"),
        program="amp",
        note="Amp asks before it starts a project's server.",
    ),
    Writer("roo", "Roo Code", ()),
    Writer("trae", "Trae", ("{trae}/mcp.json",), ("{workspace}/.trae/mcp.json",), each=True),
    Writer(
        "kimi",
        "Kimi Code",
        ("{kimi}/mcp.json", "{kimi_cli}/mcp.json"),
        ("{cwd}/.kimi-code/mcp.json",),
        calls=("toolTimeoutMs",),
        starts=("startupTimeoutMs",),
        program="kimi",
    ),
    Writer(
        "droid",
        "Droid",
        ("{home}/.factory/mcp.json",),
        ("{workspace}/.factory/mcp.json",),
        stdio={"type": "stdio"},
        http=_TYPED_HTTP,
        starts=("connectTimeout",),
        program="droid",
    ),
    Writer(
        "crush",
        "Crush",
        ("{crush}/crush.json",),
        ("{within}/crush.json", "{within}/.crush.json"),
        stdio={"type": "stdio"},
        http=_TYPED_HTTP,
        starts=("timeout",),
        program="crush",
    ),
    Writer(
        "vibe",
        "Mistral Vibe",
        ("{vibe}/config.toml",),
        ("{within}/.vibe/config.toml",),
        stdio={"transport": "stdio"},
        http={"transport": "streamable-http"},
        calls=("tool_timeout_sec",),
        starts=("startup_timeout_sec",),
        program="vibe",
    ),
)

WRITERS: Mapping[str, Writer] = {row.id: row for row in _ROWS}


def writer_for(client: str) -> Writer:
    """Return a client's row.

    Raises:
        UsageError: There is none of that name; says which comes nearest.
    """
    if client in WRITERS:
        return WRITERS[client]
    near = difflib.get_close_matches(client.lower(), WRITERS, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    message = f"The bridge knows no client {client!r:.100}.{guess}"
    raise UsageError(message, remedy=f"It knows {', '.join(WRITERS)}.")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where clients are looked for, resolved once."""

    context: DiscoveryContext
    project: Project
    places: Places

    @property
    def root(self) -> Path:
        """The project's directory."""
        return self.project.root or self.project.cwd

    def program(self, name: str) -> str:
        """Return the path of a client's command; empty if there is none.

        A command of the working directory, which may be anyone's, is none.
        """
        found = shutil.which(name, path=self.context.environ.get("PATH", "")) if name else None
        return found if found and Path(found).is_absolute() else ""


def machine_of(context: DiscoveryContext) -> Machine:
    """Return the machine that a discovery looks at."""
    project, places = project_and_places(context)
    return Machine(context=context, project=project, places=places)


def targets(writer: Writer, scope: Scope, machine: Machine) -> tuple[Target, ...]:
    """Return the files that get the bridge: one, or one for each build or profile there is.

    Raises:
        UsageError: The client has no file for this scope.
    """
    if not writer.user:
        message = f"{writer.name} has been given up by its makers: nothing is put into it."
        raise UsageError(message, remedy="`uninstall` takes the bridge out of it.")
    found = list(_candidates(writer, scope, machine))
    if not found:
        message = f"{writer.name} has no file of its servers for the {scope} here."
        others = "Leave --scope out." if scope == "project" else "It runs on another system."
        raise UsageError(message, remedy=others)
    if scope == "project" and machine.root == machine.context.home:
        message = "This is your home directory, not a project."
        raise UsageError(message, remedy="Change to the project, or leave --scope out.")
    if writer.each:
        return tuple(each for each in found if _is_there(each, machine)) or (found[0],)
    return (min(found, key=lambda each: _preference(each, machine)),)


def detected(machine: Machine) -> tuple[Target, ...]:
    """Return the user's files of the clients that are on this machine."""
    found: list[Target] = []
    for writer in WRITERS.values():
        own = list(_candidates(writer, "user", machine))
        there = [each for each in own if _is_there(each, machine)]
        if there or (own and machine.program(writer.program)):
            found.extend(targets(writer, "user", machine))
    return tuple(found)


def readable(machine: Machine, gone: Collection[Path] = ()) -> Iterator[Target]:
    """Yield every file in which a client of the table may have the bridge, in every place there.

    Args:
        gone: Files that count even if they are not there.
    """
    seen: set[tuple[Path, Table]] = set()
    for writer in WRITERS.values():
        source = writer.source or writer.id
        theirs = [row for row in _locations(machine) if row.id == source]
        own = [row for row in theirs if row.template in (*writer.user, *writer.project)]
        for row in (*own, *(theirs if writer.id == source else ())):
            scope: Scope = "project" if row.in_project else "user"
            for target in _in_location(writer, scope, row, machine, present=True):
                for table in _tables(row, machine.project):
                    there = target.exists or target.path in gone
                    if there and (target.path, table) not in seen:
                        seen.add((target.path, table))
                        yield Target(**{**vars(target), "table": table})


def _tables(row: Location, project: Project) -> Iterator[Table]:
    for key in row.dialect.server_keys:
        inner = _table(key, row)
        if row.dialect.per_project:
            yield from (("projects", directory, *inner) for directory in project.keys)
        else:
            yield inner


def _table(key: str, row: Location) -> Table:
    return (key,) if row.dialect.flat_keys else tuple(key.split("."))


def _locations(machine: Machine) -> tuple[Location, ...]:
    return tuple(row for row in LOCATIONS if machine.context.platform in row.platforms)


def _candidates(writer: Writer, scope: Scope, machine: Machine) -> Iterator[Target]:
    source = writer.source or writer.id
    for template in writer.templates(scope):
        for row in _locations(machine):
            if row.id == source and row.template == template and not row.dialect.per_project:
                yield from _in_location(writer, scope, row, machine)


def _in_location(
    writer: Writer, scope: Scope, row: Location, machine: Machine, *, present: bool = False
) -> Iterator[Target]:
    """Yield the files of one row; of a directory of files the present ones, or the bridge's own."""
    table = writer.table or _table(row.dialect.server_keys[0], row)
    for path, place in filled(row.template, machine.places):
        if scope == "project" and not place.is_relative_to(machine.root):
            continue
        paths: tuple[Path, ...] = (path,)
        if path.name.startswith("*"):
            own = path.with_name(f"{FILE_NAME}{path.suffix}")
            paths = list_matching(path.parent, path.suffix)[0] if present else (own,)
        for each in paths:
            yield Target(
                writer=writer,
                scope=scope,
                path=each,
                exists=each.is_file(),
                table=table,
                location=row,
                place=place,
                root=machine.root if scope == "project" else None,
            )


def _is_there(target: Target, machine: Machine) -> bool:
    """Whether the file, or a directory that is the client's alone, exists."""
    return target.exists or (
        target.path.parent not in (machine.context.home, *machine.places["config"])
        and target.path.parent.is_dir()
    )


def _preference(target: Target, machine: Machine) -> int:
    """Rank files: one that is there; one at the project's root, or in a directory of the user's."""
    if target.exists:
        return 0
    near = _is_there(target, machine) if target.root is None else target.place == target.root
    return 1 if near else 2
