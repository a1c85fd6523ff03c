"""Qwen Code, by Alibaba."""

from __future__ import annotations

import json

from tests.clients.client import BRIDGE, MORE, Client, Setting, Start


def start(setting: Setting) -> Start:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "mcpServers": {BRIDGE: setting.entry(trust=True)},
    }
    setting.write(".qwen/settings.json", json.dumps(settings))
    environ = {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{setting.url}/v1",
        # One that sees pictures.
        "OPENAI_MODEL": "qwen3-vl-plus",
    }
    return Start(["-p", "go", "--approval-mode", "yolo"], environ)


CLIENT = Client("Qwen Code", "@qwen-code/qwen-code", "qwen", MORE, start)
