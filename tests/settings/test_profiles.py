"""Profiles of the user's own, and what strength they have."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import get_args

import pytest

from bridge.errors import InvalidRequestError
from bridge.sandbox.backend import limits_for
from bridge.settings import GuardMode, Settings, load, narrow

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

WIDE_AND_NARROW = """
[profiles.small]
memory = "64m"
timeout = 2
pids = 16
cpus = 0.25
[profiles.wide]
memory = "4g"
timeout = 60
max_timeout = 900
pids = 1000
guard = "off"
[profiles.guarded]
guard = "enforce"
guard_denies = ["shutil.rmtree"]
allow_packages = false
allow_directories = false
listed_servers_only = true
[profiles.tight]
extends = "strict"
timeout = 4
guard_denies = ["random"]
allow_packages = true
"""
PROFILES = ("standard", "strict", "small", "wide", "guarded", "tight")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(UNTRUSTED)
    return path


def load_profile(config: Path, profile: str = "", **variables: str) -> Settings:
    environ = {"MCP_BRIDGE_CONFIG": str(config), "HOME": "/nonexistent", **variables}
    return load({}, {**environ, "MCP_BRIDGE_PROFILE": profile})


def test_a_profile_goes_before_the_file_and_gives_way_to_variables_and_flags(config: Path) -> None:
    assert load_profile(config).memory == 1024**3
    chosen = load_profile(config, "data")
    assert (chosen.profile, chosen.memory, chosen.timeout) == ("data", 4 * 1024**3, 20)
    assert (chosen.max_timeout, chosen.guard) == (600, "off")
    assert chosen.runtime_order == ("docker", "podman")
    assert load_profile(config, "data", MCP_BRIDGE_MEMORY="2g").memory == 2 * 1024**3
    environ = {"MCP_BRIDGE_CONFIG": str(config), "MCP_BRIDGE_MEMORY": "2g"}
    assert load({"profile": "data", "memory": "3g"}, environ).memory == 3 * 1024**3
    config.write_text('profile = "data"\n' + UNTRUSTED)
    assert load_profile(config).memory == 4 * 1024**3
    assert load_profile(config, "standard").memory == 1024**3


def test_what_is_made_from_strict_is_strict_whatever_else_was_given(config: Path) -> None:
    chosen = load_profile(config, "untrusted", MCP_BRIDGE_GUARD="off", MCP_BRIDGE_MEMORY="8g")
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
    made = Settings(profile="strict", guard="off", listed_servers_only=False)
    assert (made.strict, made.guard, made.listed_servers_only) == (True, "enforce", True)
    assert Settings(profile="strict", project_servers="all").project_servers == "none"
    assert Settings().project_servers == "approved"
    changed = dataclasses.replace(made, guard="off")
    assert changed.guard == "enforce"


def _widths(settings: Settings) -> dict[str, float | frozenset[str]]:
    """Return what a run may do; less is narrower."""
    names = ("timeout", "max_timeout", "memory", "pids", "cpus")
    open_modules = {"random", "shutil.rmtree"} - {*settings.guard_denies}
    return {
        **{name: getattr(settings, name) or 99 for name in names},
        "guard": -get_args(GuardMode).index(settings.guard),
        "guard_denies": frozenset(open_modules),
        "allow_packages": settings.packages_allowed,
        "allow_directories": len(settings.offered_directories),
        "listed_servers_only": not settings.listed_servers_only,
        "strict": not settings.strict,
    }


@pytest.mark.parametrize(("now", "asked"), [*itertools.product(PROFILES, PROFILES)])
def test_a_run_s_profile_narrows_what_the_settings_allow_and_widens_nothing(
    config: Path, now: str, asked: str
) -> None:
    config.write_text(f'[directories.kept]\npath = "{config.parent}/kept"\n{WIDE_AND_NARROW}')
    (config.parent / "kept").mkdir()
    before, alone = load_profile(config, now), _widths(load_profile(config, asked))
    run = narrow(before, asked)
    for name, bound in _widths(before).items():
        assert _widths(run)[name] <= bound, name  # type: ignore[operator]
    kept = before.profiles[asked]
    for name in {*kept, *(alone.keys() - {"pids", "guard_denies"} if kept["strict"] else ())}:
        assert _widths(run)[name] <= alone[name], name  # type: ignore[operator]
    assert narrow(run, asked) == run


def test_a_run_s_profile_that_sets_what_all_runs_share_is_refused(config: Path) -> None:
    settings = load_profile(config)
    with pytest.raises(InvalidRequestError, match="sets `oci_runtime`, which a single run cannot"):
        narrow(settings, "untrusted")
    with pytest.raises(InvalidRequestError, match="no profile 'none'.*standard, strict"):
        narrow(settings, "none")
