"""Claude Code, by Anthropic."""

from __future__ import annotations

from tests.clients.client import BRIDGE, PEERS, Client, Setting, Start


def start(setting: Setting) -> Start:
    servers = setting.write("servers.json", setting.servers())
    options = ["--mcp-config", str(servers), "--strict-mcp-config"]
    environ = {
        "ANTHROPIC_BASE_URL": setting.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return Start(["-p", "go", *options, "--allowedTools", f"mcp__{BRIDGE}"], environ)


CLIENT = Client("Claude Code", "@anthropic-ai/claude-code", "claude", PEERS, start)
