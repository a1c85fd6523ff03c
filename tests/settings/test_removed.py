"""Settings that are gone: set, each is an error that names what replaces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.cli import main as cli
from bridge.errors import SettingsError
from bridge.settings import REMOVED_SETTINGS, load

NAMES = [pytest.param(name, id=name) for name in REMOVED_SETTINGS]
FLAGS = [pytest.param(name, id=name) for name in REMOVED_SETTINGS if "." not in name]


def _file(name: str, folder: Path) -> Path:
    table, _, key = name.rpartition(".")
    path = folder / "config.toml"
    path.write_text(f'[{table}]\n{key} = "x"\n' if table else f'{key} = "x"\n')
    return path


@pytest.mark.parametrize("name", FLAGS)
def test_a_variable_that_is_gone_says_what_replaces_it(name: str) -> None:
    """Whatever it is set to; empty, it is not set."""
    variable = f"MCP_BRIDGE_{name.upper()}"
    with pytest.raises(SettingsError) as caught:
        load({}, {"HOME": "/nowhere", variable: "x"})
    assert str(caught.value).startswith(f"{variable}: this setting no longer exists")
    assert REMOVED_SETTINGS[name] in str(caught.value)
    load({}, {"HOME": "/nowhere", variable: ""})


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_gone_says_what_replaces_it(name: str, tmp_path: Path) -> None:
    """At the top of the file or in a table."""
    path = _file(name, tmp_path)
    with pytest.raises(SettingsError, match="this setting no longer exists") as caught:
        load({}, {"HOME": "/nowhere", "MCP_BRIDGE_CONFIG": str(path)})
    assert str(path) in str(caught.value)
    assert REMOVED_SETTINGS[name] in str(caught.value)


@pytest.mark.parametrize("name", FLAGS)
def test_a_key_that_is_gone_is_gone_in_profiles_too(name: str, tmp_path: Path) -> None:
    """Even of a profile that is not used."""
    path = _file(f"profiles.mine.{name}", tmp_path)
    with pytest.raises(SettingsError, match="profiles.mine.*this setting no longer exists"):
        load({}, {"HOME": "/nowhere", "MCP_BRIDGE_CONFIG": str(path)})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [[], ["x"]])
def test_a_flag_that_is_gone_says_what_replaces_it(
    name: str, value: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a mistake in the settings, so a server that has it starts, and answers with this."""
    flag = f"--{name.replace('_', '-')}"
    assert cli.main(["servers", flag, *value]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mcp-code-bridge: {flag}: this setting no longer exists")
    assert REMOVED_SETTINGS[name] in said


def test_what_is_gone_is_no_setting() -> None:
    """Else it would have two meanings."""
    settings = load({}, {"HOME": "/nowhere"})
    assert not [name for name in REMOVED_SETTINGS if hasattr(settings, name)]
