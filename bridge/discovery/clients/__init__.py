"""Where each client keeps its servers, and how it spells them: data, no behaviour.

Owns the table of locations, its order and the names of the sources. Reads nothing and decides
nothing: `find.py` turns a template into paths and `parse.py` applies a dialect.

Precedence. `LOCATIONS` is in order of strength, and the first file that defines a name wins; a
weaker definition of the same name is reported as shadowed, never merged in.

1. The file that `MCP_SERVERS_CONFIG` names (JSON, or TOML when it ends in `.toml`).
2. Claude Code, managed: `managed-mcp.json` in the system's directory for it.
3. Claude Code, local: `projects.<directory>.mcpServers` in `~/.claude.json`, where the directory is
   the repository's root (a worktree counts as its main repository), else the working directory.
4. Claude Code, user: `mcpServers` in `~/.claude.json`.
5. `~/.config/mcp/servers/*.json`, by file name.
6. `~/MCPs/*.json`, by file name.
7. Claude Desktop: `claude_desktop_config.json` in its directory on this platform.
8. macOS only: `mcp/servers/*.json` in `~/Library/Application Support/Claude Code`, then in
   `.../Claude`; then `claude_code_config.json` in the same two.
9. The other clients' files of the user and of the system, client by client in the order of
   `_OTHER_USER`.
10. The working directory: `.mcp.json` there, then in each directory above it up to home, or up to
    the repository's root when the working directory is not below home; `./mcp-servers/*.json`,
    `./claude_code_config.json`, `./claude_desktop_config.json`; then the other clients' files of
    the project, in the same order. Last, so that no repository takes the name of a server that the
    user defined.

What holds a name and what does not: an entry with `"disabled": true` or `"enabled": false` does, so
that a stronger file can turn a server off; an entry skipped for any other reason does not, so that
a broken or rejected one never hides a good one.
"""

from __future__ import annotations

from bridge.discovery.clients import editors, terminals
from bridge.discovery.clients.claude import (
    APPROVAL_FILES,
    CLAUDE_CODE,
    CLAUDE_CODE_LOCAL,
    CLAUDE_CODE_STATE,
    CLAUDE_DESKTOP,
    CLAUDE_PROJECT,
    CLAUDE_USER,
    GENERIC,
    GENERIC_OR_BARE,
    LIMIT_FILES,
)
from bridge.discovery.clients.shape import (
    PLATFORMS,
    ApprovalFile,
    Dialect,
    Format,
    Location,
    Platform,
    Syntax,
    TrustFile,
)

__all__ = [
    "APPROVAL_FILES",
    "CLAUDE_CODE",
    "CLAUDE_CODE_LOCAL",
    "CLAUDE_CODE_STATE",
    "CLAUDE_DESKTOP",
    "GENERIC",
    "GENERIC_OR_BARE",
    "LIMIT_FILES",
    "LOCATIONS",
    "PLATFORMS",
    "SOURCE_IDS",
    "TRUST_FILES",
    "ApprovalFile",
    "Dialect",
    "Format",
    "Location",
    "Platform",
    "Syntax",
    "TrustFile",
]

_OTHER_USER: tuple[Location, ...] = (
    *editors.CURSOR_USER,
    *editors.VSCODE_USER,
    *editors.WINDSURF_USER,
    *terminals.CODEX_USER,
    *terminals.GEMINI_USER,
    *editors.ZED_USER,
    *editors.CONTINUE_USER,
    *editors.CLINE_USER,
    *terminals.OPENCODE_USER,
    *terminals.GOOSE_USER,
    *editors.LM_STUDIO_USER,
    *terminals.AMAZON_Q_USER,
    *editors.KIRO_USER,
    *editors.JETBRAINS_USER,
    *editors.ANTIGRAVITY_USER,
    *terminals.COPILOT_USER,
)

_OTHER_PROJECT: tuple[Location, ...] = (
    *editors.CURSOR_PROJECT,
    *editors.VSCODE_PROJECT,
    *terminals.CODEX_PROJECT,
    *terminals.GEMINI_PROJECT,
    *editors.ZED_PROJECT,
    *editors.CONTINUE_PROJECT,
    *terminals.OPENCODE_PROJECT,
    *terminals.AMAZON_Q_PROJECT,
    *editors.KIRO_PROJECT,
    *editors.JETBRAINS_PROJECT,
    *editors.ANTIGRAVITY_PROJECT,
    *terminals.COPILOT_PROJECT,
)

TRUST_FILES: tuple[TrustFile, ...] = terminals.TRUST_FILES

LOCATIONS: tuple[Location, ...] = (*CLAUDE_USER, *_OTHER_USER, *CLAUDE_PROJECT, *_OTHER_PROJECT)

SOURCE_IDS: tuple[str, ...] = tuple(dict.fromkeys(row.id for row in LOCATIONS if row.id))
"""What `MCP_BRIDGE_SOURCES` may name."""
