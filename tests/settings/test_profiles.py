"""Profiles of the user's own, and what strength they have."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.sandbox.limits import limits_for
from bridge.settings import Settings, load

UNTRUSTED = """
memory = "1g"
timeout = 20

[profiles.untrusted]
extends = "strict"
oci_runtime = "runsc"
timeout = 4
project_servers = "none"

[profiles.data]
memory = "4g"
max_timeout = 600
runtime_order = ["docker", "podman"]
guard = "off"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A settings file with two profiles."""
    path = tmp_path / "config.toml"
    path.write_text(UNTRUSTED)
    return path


def loaded(config: Path, profile: str = "", **variables: str) -> Settings:
    """Load with a profile asked for by its variable."""
    environ = {"MCP_BRIDGE_CONFIG": str(config), "HOME": "/nonexistent", **variables}
    return load({}, {**environ, "MCP_BRIDGE_PROFILE": profile})


def test_a_profile_goes_before_the_file_and_gives_way_to_variables_and_flags(config: Path) -> None:
    """From weak to strong: default, file, profile, variable, flag."""
    assert loaded(config).memory == 1024**3
    chosen = loaded(config, "data")
    assert (chosen.profile, chosen.memory, chosen.timeout) == ("data", 4 * 1024**3, 20)
    assert (chosen.max_timeout, chosen.guard) == (600, "off")
    assert chosen.runtime_order == ("docker", "podman")
    assert loaded(config, "data", MCP_BRIDGE_MEMORY="2g").memory == 2 * 1024**3
    environ = {"MCP_BRIDGE_CONFIG": str(config), "MCP_BRIDGE_MEMORY": "2g"}
    assert load({"profile": "data", "memory": "3g"}, environ).memory == 3 * 1024**3


def test_a_profile_can_be_chosen_in_the_file_itself(config: Path) -> None:
    """And a variable chooses another."""
    config.write_text('profile = "data"\n' + UNTRUSTED)
    assert loaded(config).memory == 4 * 1024**3
    assert loaded(config, "standard").memory == 1024**3


def test_what_is_made_from_strict_is_strict_whatever_else_was_given(config: Path) -> None:
    """Neither a variable nor a flag widens it."""
    chosen = loaded(config, "untrusted", MCP_BRIDGE_GUARD="off", MCP_BRIDGE_MEMORY="8g")
    assert chosen.strict
    assert chosen.listed_servers_only
    assert (chosen.guard, chosen.oci_runtime, chosen.project_servers) == (
        "enforce",
        "runsc",
        "none",
    )
    limits = limits_for(chosen, 60)
    assert (limits.memory_bytes, limits.cpus, limits.timeout) == (128 * 1024**2, 0.5, 5)


def test_strict_settings_cannot_be_made_that_are_strict_in_name_only() -> None:
    """Not by hand either."""
    made = Settings(profile="strict", guard="off", listed_servers_only=False)
    assert (made.strict, made.guard, made.listed_servers_only) == (True, "enforce", True)
    assert Settings(profile="strict", project_servers="all").project_servers == "none"
    assert Settings().project_servers == "approved"
    changed = dataclasses.replace(made, guard="off")
    assert changed.guard == "enforce"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.strict]\nmemory = '1g'", "strict is built in and cannot be changed"),
        ("[profiles.Mine]\nmemory = '1g'", "small letters, digits"),
        ("[profiles.mine]\nmemroy = '1g'", "profiles.mine.memroy is not a setting of a profile"),
        ("[profiles.mine]\nmemory = 'much'", "profiles.mine.memory: 'much' is not a size"),
        ("[profiles.mine]\nstate_dir = '/x'", "state_dir is not a setting of a profile"),
        ("[profiles.mine]\nextends = 'other'", "'other' is neither standard nor strict"),
        ("[profiles.mine]\nruntime_order = [1]", "or a list of texts"),
        ("[profiles]\nmine = 1", "must be a table"),
        ("profiles = 1", "must hold tables"),
        ("commands = 1", "commands must hold tables"),
        ("profile = 'other'\n[profiles.mine]\npids = 9", "no profile 'other'; there are mine,"),
        ("image = ['a', 'b']", "must be a text or a number."),
        ("runtime_order = 'podman,podman'", "names something twice"),
    ],
)
def test_a_profile_with_a_mistake_is_refused_even_when_unused(
    tmp_path: Path, text: str, said: str
) -> None:
    """The error says where."""
    config = tmp_path / "config.toml"
    config.write_text(text)
    with pytest.raises(SettingsError, match=said) as caught:
        loaded(config)
    assert str(config) in str(caught.value)
