"""Claude Code, Claude Desktop, the directories of MCP servers, and `MCP_SERVERS_CONFIG`.

`CLAUDE_CONFIG_DIR` moves `~/.claude.json` and `~/.claude`, as it does for Claude Code.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.discovery.clients.shape import (
    KNOWN_TRANSPORTS,
    ApprovalFile,
    Dialect,
    LimitFile,
    Location,
    Platform,
)
from bridge.model import Transport

_CLAUDE_TRANSPORTS: Mapping[str, Transport] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "sse": "sse",
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
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    servers_expected=False,
)

GENERIC = Dialect(
    name="generic",
    server_keys=("mcpServers", "servers", "mcp_servers"),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
)
"""Files that no client owns: lenient, for nobody else decides how they are read."""

GENERIC_OR_BARE = Dialect(
    name="generic, or one server per file",
    server_keys=("mcpServers", "servers", "mcp_servers"),
    transports=KNOWN_TRANSPORTS,
    untyped_url="http",
    scalars_as_text=True,
    bare_server=True,
)

CLAUDE_USER: tuple[Location, ...] = (
    Location(
        id="",
        client="MCP_SERVERS_CONFIG",
        scope="extra",
        template="{extra}",
        dialect=GENERIC_OR_BARE,
        format="by suffix",
        required=True,
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="managed",
        template="{system}/etc/claude-code/managed-mcp.json",
        dialect=CLAUDE_CODE,
        platforms=("linux",),
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="managed",
        template="{system}/Library/Application Support/ClaudeCode/managed-mcp.json",
        dialect=CLAUDE_CODE,
        platforms=("darwin",),
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="managed",
        template="{programs}/ClaudeCode/managed-mcp.json",
        dialect=CLAUDE_CODE,
        platforms=("win32",),
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="local",
        template="{claude_state}/.claude.json",
        dialect=CLAUDE_CODE_LOCAL,
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="user",
        template="{claude_state}/.claude.json",
        dialect=CLAUDE_CODE_STATE,
    ),
    Location(
        id="mcp-directory",
        client="MCP directory",
        scope="user",
        template="{home}/.config/mcp/servers/*.json",
        dialect=GENERIC_OR_BARE,
    ),
    Location(
        id="mcp-directory",
        client="MCP directory",
        scope="user",
        template="{home}/MCPs/*.json",
        dialect=GENERIC_OR_BARE,
    ),
    Location(
        id="claude-desktop",
        client="Claude Desktop",
        scope="user",
        template="{config}/Claude/claude_desktop_config.json",
        dialect=CLAUDE_DESKTOP,
        platforms=("linux",),
    ),
    Location(
        id="claude-desktop",
        client="Claude Desktop",
        scope="user",
        template="{library}/Claude/claude_desktop_config.json",
        dialect=CLAUDE_DESKTOP,
        platforms=("darwin",),
    ),
    Location(
        id="claude-desktop",
        client="Claude Desktop",
        scope="user",
        template="{appdata}/Claude/claude_desktop_config.json",
        dialect=CLAUDE_DESKTOP,
        platforms=("win32",),
    ),
    Location(
        id="mcp-directory",
        client="MCP directory",
        scope="user",
        template="{library}/Claude Code/mcp/servers/*.json",
        dialect=GENERIC_OR_BARE,
        platforms=("darwin",),
    ),
    Location(
        id="mcp-directory",
        client="MCP directory",
        scope="user",
        template="{library}/Claude/mcp/servers/*.json",
        dialect=GENERIC_OR_BARE,
        platforms=("darwin",),
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="user",
        template="{library}/Claude Code/claude_code_config.json",
        dialect=CLAUDE_CODE_STATE,
        platforms=("darwin",),
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="user",
        template="{library}/Claude/claude_code_config.json",
        dialect=CLAUDE_CODE_STATE,
        platforms=("darwin",),
    ),
)

CLAUDE_PROJECT: tuple[Location, ...] = (
    Location(
        id="claude-code",
        client="Claude Code",
        scope="project",
        template="{upwards}/.mcp.json",
        dialect=CLAUDE_CODE,
        in_project=True,
        approvable=True,
    ),
    Location(
        id="mcp-directory",
        client="MCP directory",
        scope="project",
        template="{cwd}/mcp-servers/*.json",
        dialect=GENERIC_OR_BARE,
        in_project=True,
    ),
    Location(
        id="claude-code",
        client="Claude Code",
        scope="project",
        template="{cwd}/claude_code_config.json",
        dialect=CLAUDE_CODE_STATE,
        in_project=True,
    ),
    Location(
        id="claude-desktop",
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

_MANAGED: tuple[tuple[str, Platform], ...] = (
    ("{system}/etc/claude-code", "linux"),
    ("{system}/Library/Application Support/ClaudeCode", "darwin"),
    ("{programs}/ClaudeCode", "win32"),
)

LIMIT_FILES: tuple[LimitFile, ...] = (
    *(
        LimitFile(template=f"{folder}/{name}", platforms=(platform,))
        for folder, platform in _MANAGED
        for name in ("managed-settings.json", "managed-settings.d/*.json")
    ),
    LimitFile(template="{claude_settings}/settings.json", managed=False),
)
