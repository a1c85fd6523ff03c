"""Command profiles grant nothing of the bridge's own, as `[directories]` do not."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.commands.plan import Planner
from bridge.errors import SettingsError
from bridge.model import CommandRequest
from bridge.settings import Settings, load, packages_dir, store_of, writable_places

pytestmark = pytest.mark.guarantee("written-configuration")

PROFILE = """
[commands.tool]
executables = ["true"]
workspace = "{workspace}"
{grant}
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that is not below `/tmp`, of which sandboxes have their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        yield Path(made)


def settings(place: Path, grant: str = "", workspace: str = "ws") -> Settings:
    config = place / "config" / "config.toml"
    for name in ("config", "ws/out", "home", "state", "skills", "servers"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "servers" / "servers.json").write_text("{}")
    filled = PROFILE.format(workspace=place / workspace, grant=grant)
    config.write_text(filled.replace("{tmp}", str(place)))
    environ = {
        "HOME": str(place / "home"),
        "PATH": "/usr/bin:/bin",
        "MCP_BRIDGE_CONFIG": str(config),
        "MCP_BRIDGE_STATE_DIR": str(place / "state"),
        "MCP_BRIDGE_SKILLS_DIR": str(place / "skills"),
        "MCP_SERVERS_CONFIG": str(place / "servers" / "servers.json"),
    }
    return load({}, environ)


def check(settings: Settings) -> None:
    (profile,) = settings.commands.values()
    Planner(settings).plan(CommandRequest(profile="tool", stages=(("true",),)), profile, "r")


@pytest.mark.parametrize(
    "grant",
    [
        *('write = ["{tmp}/config"]', 'read = ["{tmp}/config"]', 'write = ["{tmp}/skills"]'),
        *('write = ["{tmp}/state"]', 'read = ["{tmp}/state/logins"]', 'read = ["{tmp}/skills"]'),
    ],
)
def test_neither_settings_nor_state_nor_skills_are_granted(place: Path, grant: str) -> None:
    with pytest.raises(SettingsError, match="where the bridge or an engine has its own files"):
        check(settings(place, grant))


@pytest.mark.parametrize("trusted", ["servers", "environment"])
def test_what_the_bridge_relies_on_is_granted_to_read_only(
    place: Path, monkeypatch: pytest.MonkeyPatch, trusted: str
) -> None:
    # The tests' own may lie below /tmp, where sandboxes have another directory.
    monkeypatch.setattr(sys, "prefix", str(place / "environment"))
    (place / "environment").mkdir()
    check(settings(place, f'read = ["{{tmp}}/{trusted}"]'))
    with pytest.raises(SettingsError, match="which the bridge relies on"):
        check(settings(place, f'write = ["{{tmp}}/{trusted}"]'))


def test_a_workspace_that_holds_the_bridges_own_files_is_refused(place: Path) -> None:
    with pytest.raises(SettingsError, match=r"workspace .* has its own files"):
        check(settings(place, workspace="state"))


def test_other_places_are_granted_and_known_as_written_by_commands(place: Path) -> None:
    found = settings(place, 'write = ["out", "{tmp}/data"]')
    (place / "data").mkdir()
    check(found)
    assert {place / "ws" / "out", place / "data"} <= set(writable_places(found))
    assert {packages_dir(found), store_of(found).blobs.root} <= set(writable_places(found))
    strict = replace(found, strict=True)
    assert place / "ws" / "out" in writable_places(strict)
