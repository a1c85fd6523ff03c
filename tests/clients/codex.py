"""Codex, by OpenAI."""

from __future__ import annotations

import json
import re

from bridge.client_configs.writers import WRITERS
from tests.clients.client import BRIDGE, PEERS, Client, Setting, Start


def start(setting: Setting) -> Start:
    entry = setting.entry()
    # JSON's texts and lists are TOML's.
    environ = (f"{name} = {json.dumps(value)}" for name, value in entry["env"].items())
    lines = [
        # One that it knows: for others it neither holds tools back nor takes as much of a result.
        'model = "gpt-5.5"',
        'model_provider = "stand-in"',
        "check_for_update_on_startup = false",
        "[analytics]",
        "enabled = false",
        "[model_providers.stand-in]",
        'name = "stand-in"',
        f"base_url = {json.dumps(setting.url + '/v1')}",
        'wire_api = "responses"',
        f"[mcp_servers.{BRIDGE}]",
        f"command = {json.dumps(entry['command'])}",
        f"args = {json.dumps(entry['args'])}",
        # What `install codex` writes: `codex exec` would have no tools otherwise, and refuse them.
        *(f"{key} = {json.dumps(value)}" for key, value in WRITERS["codex"].ours.items()),
        f"[mcp_servers.{BRIDGE}.env]",
        *environ,
    ]
    setting.write(".codex/config.toml", "\n".join(lines) + "\n")
    return Start(["exec", "--skip-git-repo-check", "go"], {})


WRAPPING = re.compile(r"Wall time: [\d.]+ seconds\nOutput:\n(.*)", re.DOTALL)

CLIENT = Client("Codex", "@openai/codex", "codex", PEERS, start, wrapping=WRAPPING)
