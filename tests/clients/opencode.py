"""opencode."""

from __future__ import annotations

import json

from tests.clients.client import BRIDGE, MORE, Client, Setting, Start


def start(setting: Setting) -> Start:
    entry = setting.entry()
    model = {
        "name": "m",
        "attachment": True,
        "modalities": {"input": ["text", "image"], "output": ["text"]},
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "permission": {"*": "allow"},
        "provider": {
            "stand-in": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{setting.url}/v1", "apiKey": "none"},
                "models": {"m": model},
            }
        },
        "mcp": {
            BRIDGE: {
                "type": "local",
                "command": [entry["command"], *entry["args"]],
                "environment": entry["env"],
            }
        },
    }
    setting.write("project/opencode.json", json.dumps(settings))
    return Start(["run", "--model", "stand-in/m", "go"], {})


CLIENT = Client("opencode", "opencode-ai", "opencode", MORE, start)
