"""Errors of settings files and variables.

`UPDATE_FROZEN=1` writes the errors of mistakes.txt.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import load
from tests.golden_texts import assert_outcomes

GOLDEN = Path(__file__).with_name("mistakes.txt")


def said_of(text: str, config: Path) -> str:
    environ = {"HOME": "/nowhere", "MCP_BRIDGE_CONFIG": str(config)}
    config.write_text("" if text.startswith("MCP_BRIDGE_") else text)
    if text.startswith("MCP_BRIDGE_"):
        environ |= tomllib.loads(text)
    with pytest.raises(SettingsError) as caught:
        load({}, environ)
    return str(caught.value).replace(str(config), "config.toml")


def test_a_mistake_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    assert_outcomes(GOLDEN, lambda lines: [said_of("\n".join(lines), config)])
