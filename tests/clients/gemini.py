"""Gemini CLI, by Google."""

from __future__ import annotations

import json
import re

from tests.clients.client import BRIDGE, MORE, Client, Setting, Start


def start(setting: Setting) -> Start:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
        "mcpServers": {BRIDGE: setting.entry(trust=True)},
    }
    setting.write(".gemini/settings.json", json.dumps(settings))
    trusted = {str(setting.project): "TRUST_FOLDER"}
    setting.write(".gemini/trustedFolders.json", json.dumps(trusted))
    environ = {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": setting.url}
    return Start(["-p", "go", "--model", "gemini-2.5-pro", "--approval-mode", "yolo"], environ)


WRAPPING = re.compile(r"<untrusted_context>\n(.*)\n</untrusted_context>.*", re.DOTALL)

CLIENT = Client("Gemini CLI", "@google/gemini-cli", "gemini", MORE, start, wrapping=WRAPPING)
