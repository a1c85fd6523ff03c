"""`[servers.NAME]`: what is set for single servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.model import Json, ServerSettings
from bridge.settings import load
from bridge.settings.file import parse_servers


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ([], "must be a table, not a list"),
        ({"github": "legacy"}, r"servers\.github must be a table"),
        (
            {"github": {"era": "legacy"}},
            r"github\.era is an unknown key of a server. Known: protocol",
        ),
        ({"github": {"protocol": "2025"}}, "protocol is .2025.. Known: auto, legacy, modern"),
        ({"github": {"protocol": ["legacy"]}}, "must be one of auto, modern, legacy"),
    ],
)
def test_a_mistake_is_named_with_its_place(tables: Json, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        parse_servers(tables, "config.toml: servers")


def test_a_server_s_protocol_is_read_from_its_table(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[servers.github]\nprotocol = "legacy"\n[servers."my files"]\n')
    path.chmod(0o600)
    environ = {"MCP_BRIDGE_CONFIG": str(path), "HOME": str(tmp_path)}
    assert load(environ=environ).server_settings == {
        "github": ServerSettings(protocol="legacy"),
        "my files": ServerSettings(),
    }
