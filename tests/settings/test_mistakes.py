"""Every mistake in a settings file or a variable is an error that says where it is, and what to do.

mistakes.txt has each with its error; `UPDATE_FROZEN=1` writes the errors again.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import load

GOLDEN = Path(__file__).with_name("mistakes.txt")


def said_of(text: str, config: Path) -> str:
    """Return the error of a settings file with this text, or of the variable that it names."""
    environ = {"HOME": "/nowhere", "MCP_BRIDGE_CONFIG": str(config)}
    config.write_text("" if text.startswith("MCP_BRIDGE_") else text)
    if text.startswith("MCP_BRIDGE_"):
        environ |= tomllib.loads(text)
    with pytest.raises(SettingsError) as caught:
        load({}, environ)
    return str(caught.value).replace(str(config), "config.toml")


def test_a_mistake_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    """A typing mistake is no default in disguise: a policy, a limit or a key never is ignored."""
    texts = [block.partition("\n-> ")[0] for block in GOLDEN.read_text().strip().split("\n\n")]
    found = [f"{text}\n-> {said_of(text, tmp_path / 'config.toml')}" for text in texts]
    written = "\n\n".join(found) + "\n"
    if os.environ.get("UPDATE_FROZEN"):
        GOLDEN.write_text(written)
    assert written == GOLDEN.read_text()
