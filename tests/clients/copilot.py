"""Copilot, by GitHub."""

from __future__ import annotations

from tests.clients.client import MORE, Client, Setting, Start


def start(setting: Setting) -> Start:
    setting.write(".copilot/mcp-config.json", setting.servers(tools=["*"]))
    environ = {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_BASE_URL": f"{setting.url}/v1",
        "COPILOT_PROVIDER_API_KEY": "none",
        "COPILOT_MODEL": "gpt-5",
    }
    return Start(["-p", "go", "--allow-all-tools", "--no-auto-update"], environ)


CLIENT = Client("Copilot", "@github/copilot", "copilot", MORE, start, pictures=False)
