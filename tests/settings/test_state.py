"""The state directory and the settings file: no one else's, and not forgotten."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import Settings, load, prepare_state, private_places, store_of

pytestmark = pytest.mark.guarantee("other-users", "policy-lost", "working-directory")

POLICY = '[policy.defaults]\nread = "allow"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / ".config" / "mcp-code-bridge" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def start(home: Path, **environ: str) -> Settings:
    settings = load({}, {"HOME": str(home), **environ})
    prepare_state(settings)
    return settings


def with_store(home: Path, store: object) -> Settings:
    return load({}, {"HOME": str(home), "MCP_BRIDGE_STORE": str(store)})


def test_a_home_that_cannot_be_reached_is_named_and_not_needed(tmp_path: Path) -> None:
    """As with systemd's `ProtectHome=`. Here the name is too long."""
    home = tmp_path / ("x" * 300)
    with pytest.raises(SettingsError, match=r"config\.toml could not be read") as refusal:
        start(home)
    assert "MCP_BRIDGE_CONFIG" in refusal.value.remedy
    (tmp_path / "own.toml").touch()
    assert start(home, MCP_BRIDGE_CONFIG=str(tmp_path / "own.toml")).policy.present is False


def test_a_state_directory_that_others_could_change_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    said = "The state directory .*: every user can write to it. Run: chmod go-w"
    with pytest.raises(SettingsError, match=said):
        start(tmp_path, MCP_BRIDGE_STATE_DIR=str(state))


def test_what_others_could_change_is_used_where_there_are_none(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelets make a pod's volumes writable for all, and the pod has one user."""
    config.write_text("timeout = 5\n")
    config.parent.chmod(0o777)
    with pytest.raises(SettingsError, match="every user can write"):
        start(tmp_path)
    monkeypatch.setenv("MCP_BRIDGE_SOLE_USER", "1")
    assert start(tmp_path, MCP_BRIDGE_SOLE_USER="1").timeout == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_settings_of_another_user_are_refused(tmp_path: Path, config: Path, what: str) -> None:
    config.write_text("timeout = 5\n")
    assert start(tmp_path).timeout == 5
    os.chown(config if what == "file" else config.parent, 65534, 65534)
    with pytest.raises(SettingsError, match="belongs to another user") as caught:
        start(tmp_path)
    assert "chown" in caught.value.remedy


def test_settings_that_others_could_write_are_refused(tmp_path: Path, config: Path) -> None:
    config.write_text("timeout = 5\n")
    config.chmod(0o666)
    said = "The settings file .*: every user can write to it. Run: chmod go-w"
    with pytest.raises(SettingsError, match=said):
        start(tmp_path)


@pytest.mark.parametrize("link", ["config.toml", "directory"])
def test_a_settings_file_behind_a_link_to_nowhere_is_an_error(
    tmp_path: Path, config: Path, link: str
) -> None:
    """Dotfiles may be on a disk that is not mounted; their policy must not be skipped."""
    at = config
    if link == "directory":
        config.parent.rmdir()
        at = config.parent
    at.symlink_to(tmp_path / "not mounted")
    with pytest.raises(SettingsError, match="which does not exist") as caught:
        start(tmp_path)
    (tmp_path / "not mounted").write_text("timeout = 5\n")
    assert link == "directory" or start(tmp_path).timeout == 5
    said = f"{at} is a link to {tmp_path / 'not mounted'}, which does not exist."
    ahead = f"{config} cannot be read: " if link == "directory" else ""
    assert caught.value.message == f"{ahead}{said}"


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_text("")])
def test_a_policy_that_was_in_force_and_is_lost_stops_the_next_bridge(
    tmp_path: Path, config: Path, lose: Callable[[Path], object]
) -> None:
    config.write_text(POLICY)
    start(tmp_path)
    lose(config)
    for _ in range(2):
        with pytest.raises(SettingsError, match="had a policy, and now is empty or missing"):
            start(tmp_path)
    config.write_text(POLICY)
    assert start(tmp_path).policy.present


def test_a_policy_can_be_given_up_by_taking_it_out_of_its_file(
    tmp_path: Path, config: Path
) -> None:
    config.write_text(POLICY)
    start(tmp_path)
    config.write_text("# no policy\n")
    assert not start(tmp_path).policy.present
    config.unlink()
    assert not start(tmp_path).policy.present


def test_another_settings_file_does_not_inherit_a_policy(tmp_path: Path, config: Path) -> None:
    config.write_text(POLICY)
    start(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text("timeout = 5\n")
    assert start(tmp_path, MCP_BRIDGE_CONFIG=str(other)).timeout == 5
    other.write_text(POLICY)
    start(tmp_path, MCP_BRIDGE_CONFIG=str(other))
    config.unlink()
    with pytest.raises(SettingsError, match="had a policy"):
        start(tmp_path)


@pytest.mark.parametrize(
    "variable",
    ["MCP_BRIDGE_STATE_DIR", "MCP_BRIDGE_CONFIG", "MCP_BRIDGE_SKILLS_DIR", "MCP_SERVERS_CONFIG"],
)
def test_a_relative_path_counts_from_the_working_directory_with_a_warning(
    tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository there could contain approvals, a policy or servers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("") if variable.endswith("CONFIG") else None
    settings = start(tmp_path, **{variable: "here"})
    assert f"{variable}: 'here' is relative, so it means {tmp_path}/here." in "".join(
        settings.notes
    )


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_the_store_may_be_elsewhere(tmp_path: Path, form: str) -> None:
    tmp_path.chmod(0o755)
    file = tmp_path / "kept.db"
    settings = with_store(tmp_path, form.format(file))
    store = store_of(settings)
    with store.writing() as kept:
        kept.put("any", "me", "x", b"kept")
    store.blobs.discard(store.blobs.begin())
    assert {path.name for path in tmp_path.iterdir()} >= {"kept.db", "kept.db-blobs"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert store.documents("any", ["x", "y"], "me") == {"x": b"kept"}
    assert file in private_places(settings)
    store.close()
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match="every user can write"):
        with_store(Path("/h"), file)


@pytest.mark.parametrize(
    "text", ["mysql://me:s3cret@host/db", "sqlite://", "sqlite:///relative.db", "kept.db"]
)
def test_a_store_that_is_no_known_database_is_refused_with_what_would_do(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(SettingsError, match="MCP_BRIDGE_STORE") as refused:
        with_store(tmp_path, text)
    assert "sqlite:///PATH" in str(refused.value) or "whole path" in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:s3cret/x@host/db",
        "postgresql://me:s3cret@x@host/db",
        "postgresql://me:s3cret%@host/db",
        "postgresql://me:s3cret#x@host/db",
        "postgresql://me:s3cret?x@host/db",
        "postgresql://me:s3cret%zz@host/db?sslmode=require",
        # Python refuses these itself, in words that have the password.
        "postgresql://me:s3cret\u2100@host/db",
        "postgresql://me:[s3cret]@host/db",
        # Without a host it would be the port.
        "postgresql://me:s3cret/db",
    ],
)
def test_a_login_that_would_be_read_wrongly_is_refused_and_not_shown(
    tmp_path: Path, text: str
) -> None:
    """libpq would take a part of the password for the host, and report it."""
    with pytest.raises(SettingsError, match="MCP_BRIDGE_STORE.*%2F") as refused:
        with_store(tmp_path, text)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret%2F@host:5433/db", "postgresql://me@host:5433/db"),
        ("postgres://a,b:1/db?password=s3cret&user=me", "postgresql://a,b:1/db"),
        ("postgresql://me:s3cret@[::1]:5432,b:/db", "postgresql://me@[::1]:5432,b:/db"),
        ("postgresql://?service=bridge", "postgresql://"),
    ],
)
def test_a_store_on_a_server_is_shown_without_its_password(
    tmp_path: Path, text: str, shown: str
) -> None:
    settings = with_store(tmp_path, text)
    assert str(settings.store) == str(store_of(settings).place) == shown
    assert "s3cret" not in repr(settings.store)
