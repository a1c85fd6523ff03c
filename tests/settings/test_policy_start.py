"""A first policy written behind what stands in the settings file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import load
from bridge.settings.policy_edit import append_policy

POLICY = '[policy]\npin = false\n\n[policy.defaults]\nwrite = "deny"\n'


def _loaded(path: Path) -> object:
    return load({}, {"HOME": str(path.parent), "MCP_BRIDGE_CONFIG": str(path)})


def test_a_file_is_made_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "config.toml"
    append_policy(path, POLICY)
    assert path.read_text() == POLICY
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("before", ['memory = "1g"', 'memory = "1g"\n# mine\n\n[profiles.a]\n'])
def test_what_stands_in_the_file_stays_and_so_do_its_rights(tmp_path: Path, before: str) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text(before)
    real.chmod(0o644)
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    append_policy(link, POLICY)
    assert real.read_text().startswith(before)
    assert real.read_text().endswith(POLICY)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644
    assert _loaded(link)


@pytest.mark.parametrize(
    ("before", "policy", "said"),
    [
        ("[policy]\npin = true\n", POLICY, "Cannot declare"),
        ("", "[policy]\npin = 3\n", "pin"),
        ("", "#" * 1_100_000, "larger"),
        ("memory = ", POLICY, "Invalid value"),
    ],
)
def test_nothing_is_written_that_would_not_parse(
    tmp_path: Path, before: str, policy: str, said: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(before)
    with pytest.raises(SettingsError, match=said):
        append_policy(path, policy)
    assert path.read_text() == before


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="--print"):
        append_policy(tmp_path / "file" / "config.toml", POLICY)
