"""Where each client keeps its servers, and how it spells them: data, no behaviour.

Owns the table of locations and dialects. Reads nothing and decides nothing: `find.py` turns a
template into paths and `parse.py` applies a dialect. Supporting another client is a row here, and
at most a new field of `Dialect` for a spelling that no row has needed before.

Precedence. `LOCATIONS` is in order of strength, and the first file that defines a name wins; a
weaker definition of the same name is reported as shadowed, never merged in.

1. The file that `MCP_SERVERS_CONFIG` names (JSON, or TOML when it ends in `.toml`).
2. Claude Code, managed: `managed-mcp.json` in the system's directory for it.
3. Claude Code, local: `projects.<directory>.mcpServers` in `~/.claude.json`, where the directory is
   the repository's root (a worktree counts as its main repository), else the working directory.
4. Claude Code, project: `.mcp.json` in the working directory, then in each directory above it up
   to home, or up to the repository's root when the working directory is not below home.
5. Claude Code, user: `mcpServers` in `~/.claude.json`.
6. `~/.config/mcp/servers/*.json`, by file name.
7. `~/MCPs/*.json`, by file name.
8. Claude Desktop: `claude_desktop_config.json` in its directory on this platform.
9. macOS only: `mcp/servers/*.json` in `~/Library/Application Support/Claude Code`, then in
   `.../Claude`; then `claude_code_config.json` in the same two.
10. The working directory: `./mcp-servers/*.json`, `./claude_code_config.json`,
    `./claude_desktop_config.json`. Last, so that a directory one happens to be in cannot replace a
    server that the user defined.

What holds a name and what does not: an entry with `"disabled": true` or `"enabled": false` does, so
that a stronger file can turn a server off; an entry skipped for any other reason does not, so that
a broken or rejected one never hides a good one.

`CLAUDE_CONFIG_DIR` moves `~/.claude.json` and `~/.claude`, as it does for Claude Code. Claude's own
`/mcp` switch (`disabledMcpServers`) is deliberately not read: switching a server off there, to keep
its schemas out of the conversation, is what someone who uses this bridge does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bridge.model import Transport

Platform = Literal["linux", "darwin", "win32"]

Format = Literal["json", "by suffix"]
"""`by suffix`: TOML when the file's name ends in `.toml`, else JSON."""

PLATFORMS: tuple[Platform, ...] = ("linux", "darwin", "win32")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one client spells servers.

    Attributes:
        name: For the reader of a test or a log.
        server_keys: Top-level keys that hold name-to-entry objects; all that are present count.
        transports: Values of `type` and the transport each means.
        untyped_url: What a `url` without `type` means; None means that the entry is skipped.
        scalars_as_text: Whether numbers and booleans stand for their text in `args`, `env` and
            `headers`. Claude Code refuses them.
        url_keys, header_keys, env_keys: Spellings of a field; the first present counts.
        per_project: Whether the server keys stand below `projects.<directory>`.
        bare_server: Whether a file may be one entry, named after the file.
        servers_expected: Whether a file without any server key deserves a warning. Not so for
            files that hold other settings too.
    """

    name: str
    server_keys: tuple[str, ...]
    transports: Mapping[str, Transport]
    untyped_url: Transport | None
    scalars_as_text: bool
    url_keys: tuple[str, ...] = ("url",)
    header_keys: tuple[str, ...] = ("headers",)
    env_keys: tuple[str, ...] = ("env",)
    per_project: bool = False
    bare_server: bool = False
    servers_expected: bool = True


@dataclass(frozen=True, kw_only=True)
class Location:
    """One place where a client keeps servers.

    Attributes:
        client, scope: As shown to the user.
        template: A path with `{places}`; see `places.py`. A last part `*.json` means every such
            file of that directory, by name.
        dialect: How to read it.
        platforms: Where the client keeps it there.
        format: How the text is encoded.
        required: Whether its absence is worth a warning, because somebody named it.
        in_project: Whether it belongs to the working directory rather than to the user.
        approvable: Whether Claude Code's approval lists speak about its servers.
    """

    client: str
    scope: str
    template: str
    dialect: Dialect
    platforms: tuple[Platform, ...] = PLATFORMS
    format: Format = "json"
    required: bool = False
    in_project: bool = False
    approvable: bool = False


@dataclass(frozen=True, kw_only=True)
class ApprovalFile:
    """One place where Claude Code keeps which of a project's servers the user accepts.

    Attributes:
        template: As in `Location`.
        per_project: Whether the lists stand below `projects.<directory>`.
        grants: Whether the file may approve. A rejection counts wherever it stands; an approval in
            a file that comes with the repository would be the repository approving itself, so it
            counts "never" for the shared settings and for the local settings only when the user
            has "trusted" the directory in Claude Code.
    """

    template: str
    per_project: bool = False
    grants: Literal["always", "trusted", "never"] = "always"


_CLAUDE_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "sse": "sse",
}

_KNOWN_TRANSPORTS: Mapping[str, Transport] = {
    **_CLAUDE_TRANSPORTS,
    "streamableHttp": "http",
    "streamable_http": "http",
}

CLAUDE_CODE = Dialect(
    name="Claude Code",
    server_keys=("mcpServers",),
    transports=_CLAUDE_TRANSPORTS,
    untyped_url=None,
    scalars_as_text=False,
)
"""As Claude Code 2.1 reads its files: strict, so that both agree on which entries are good."""

CLAUDE_CODE_STATE = Dialect(
    name="Claude Code's state file",
    server_keys=("mcpServers",),
    transports=_CLAUDE_TRANSPORTS,
    untyped_url=None,
    scalars_as_text=False,
    servers_expected=False,
)

CLAUDE_CODE_LOCAL = Dialect(
    name="Claude Code's state file, per project",
    server_keys=("mcpServers",),
    transports=_CLAUDE_TRANSPORTS,
    untyped_url=None,
    scalars_as_text=False,
    per_project=True,
    servers_expected=False,
)

CLAUDE_DESKTOP = Dialect(
    name="Claude Desktop",
    server_keys=("mcpServers",),
    transports=_KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
)

GENERIC = Dialect(
    name="generic",
    server_keys=("mcpServers", "servers", "mcp_servers"),
    transports=_KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
)
"""Files that no client owns: lenient, for nobody else decides how they are read."""

GENERIC_OR_BARE = Dialect(
    name="generic, or one server per file",
    server_keys=("mcpServers", "servers", "mcp_servers"),
    transports=_KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    bare_server=True,
)

LOCATIONS: tuple[Location, ...] = (
    Location(
        client="MCP_SERVERS_CONFIG",
        scope="extra",
        template="{extra}",
        dialect=GENERIC_OR_BARE,
        format="by suffix",
        required=True,
    ),
    Location(
        client="Claude Code",
        scope="managed",
        template="{system}/etc/claude-code/managed-mcp.json",
        dialect=CLAUDE_CODE,
        platforms=("linux",),
    ),
    Location(
        client="Claude Code",
        scope="managed",
        template="{system}/Library/Application Support/ClaudeCode/managed-mcp.json",
        dialect=CLAUDE_CODE,
        platforms=("darwin",),
    ),
    Location(
        client="Claude Code",
        scope="managed",
        template="{programs}/ClaudeCode/managed-mcp.json",
        dialect=CLAUDE_CODE,
        platforms=("win32",),
    ),
    Location(
        client="Claude Code",
        scope="local",
        template="{claude_state}/.claude.json",
        dialect=CLAUDE_CODE_LOCAL,
    ),
    Location(
        client="Claude Code",
        scope="project",
        template="{upwards}/.mcp.json",
        dialect=CLAUDE_CODE,
        in_project=True,
        approvable=True,
    ),
    Location(
        client="Claude Code",
        scope="user",
        template="{claude_state}/.claude.json",
        dialect=CLAUDE_CODE_STATE,
    ),
    Location(
        client="MCP directory",
        scope="user",
        template="{home}/.config/mcp/servers/*.json",
        dialect=GENERIC_OR_BARE,
    ),
    Location(
        client="MCP directory",
        scope="user",
        template="{home}/MCPs/*.json",
        dialect=GENERIC_OR_BARE,
    ),
    Location(
        client="Claude Desktop",
        scope="user",
        template="{config}/Claude/claude_desktop_config.json",
        dialect=CLAUDE_DESKTOP,
        platforms=("linux",),
    ),
    Location(
        client="Claude Desktop",
        scope="user",
        template="{library}/Claude/claude_desktop_config.json",
        dialect=CLAUDE_DESKTOP,
        platforms=("darwin",),
    ),
    Location(
        client="Claude Desktop",
        scope="user",
        template="{appdata}/Claude/claude_desktop_config.json",
        dialect=CLAUDE_DESKTOP,
        platforms=("win32",),
    ),
    Location(
        client="MCP directory",
        scope="user",
        template="{library}/Claude Code/mcp/servers/*.json",
        dialect=GENERIC_OR_BARE,
        platforms=("darwin",),
    ),
    Location(
        client="MCP directory",
        scope="user",
        template="{library}/Claude/mcp/servers/*.json",
        dialect=GENERIC_OR_BARE,
        platforms=("darwin",),
    ),
    Location(
        client="Claude Code",
        scope="user",
        template="{library}/Claude Code/claude_code_config.json",
        dialect=CLAUDE_CODE_STATE,
        platforms=("darwin",),
    ),
    Location(
        client="Claude Code",
        scope="user",
        template="{library}/Claude/claude_code_config.json",
        dialect=CLAUDE_CODE_STATE,
        platforms=("darwin",),
    ),
    Location(
        client="MCP directory",
        scope="project",
        template="{cwd}/mcp-servers/*.json",
        dialect=GENERIC_OR_BARE,
        in_project=True,
    ),
    Location(
        client="Claude Code",
        scope="project",
        template="{cwd}/claude_code_config.json",
        dialect=CLAUDE_CODE_STATE,
        in_project=True,
    ),
    Location(
        client="Claude Desktop",
        scope="project",
        template="{cwd}/claude_desktop_config.json",
        dialect=CLAUDE_DESKTOP,
        in_project=True,
    ),
)

APPROVAL_FILES: tuple[ApprovalFile, ...] = (
    ApprovalFile(template="{claude_state}/.claude.json", per_project=True),
    ApprovalFile(template="{claude_settings}/settings.json"),
    ApprovalFile(template="{project}/.claude/settings.local.json", grants="trusted"),
    ApprovalFile(template="{project}/.claude/settings.json", grants="never"),
)
