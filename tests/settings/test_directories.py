"""`[directories.NAME]`: what of the host programs find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.inventory.configuration import context_for
from bridge.settings import load
from bridge.settings.directories import parse_directories, refusal

pytestmark = pytest.mark.guarantee("directories")

PLACE = "config.toml: directories"


def load_path(tmp_path: Path, path: object, **environ: str) -> str:
    """Return where a directory of the settings really is."""
    config = tmp_path / "config.toml"
    config.write_text(f'[directories.data]\npath = "{path}"\nmode = "rw"\n')
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    given = {"HOME": str(home), "MCP_BRIDGE_CONFIG": str(config), **environ}
    (found,) = load({}, given).directories
    assert found.inside == "/mnt/data"
    assert found.writable
    return found.path


def test_a_directory_is_named_with_its_place_and_its_mode() -> None:
    tables = {"data": {"path": "/srv/data"}, "out": {"path": "~/out", "mode": "rw"}}
    data, out = parse_directories(tables, PLACE)
    assert (data.name, data.path, data.inside, data.writable) == (
        *("data", "/srv/data", "/mnt/data"),
        False,
    )
    assert out.path == str(Path("~/out").expanduser())
    assert out.writable
    assert out.labels == frozenset()


def test_a_directory_has_the_labels_of_what_is_in_it(tmp_path: Path) -> None:
    """For the flow rules; they stay with it when its place on the disk is settled."""
    config = tmp_path / "config.toml"
    (tmp_path / "data").mkdir()
    table = f'[directories.data]\npath = "{tmp_path}/data"\nlabels = '
    given = {"HOME": str(tmp_path / "home"), "MCP_BRIDGE_CONFIG": str(config)}
    for written, labels in (
        ('"private-data"', {"private-data"}),
        ('["untrusted-input", "private-data"]', {"untrusted-input", "private-data"}),
        ("[]", set()),
    ):
        config.write_text(table + written)
        (found,) = load({}, given).directories
        assert found.labels == labels
    for written in (
        '"exfiltration"',
        '["privat-data"]',
        "5",
        "[5]",
        "true",
        '{ "private-data" = 1 }',
    ):
        config.write_text(table + written)
        with pytest.raises(SettingsError, match="labels.* one of untrusted-input, private-data"):
            load({}, given)


def test_a_directory_names_the_servers_that_may_run_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = f'[directories.data]\npath = "{tmp_path}/data"\nmode = "rw"\nused_by = ["git"]\n'
    (tmp_path / "config.toml").write_text(table)
    given = {"HOME": f"{tmp_path}/home", "MCP_BRIDGE_CONFIG": f"{tmp_path}/config.toml"}
    context = context_for(load({}, given), str(tmp_path), "linux")
    assert tmp_path / "data" in context.exposed
    assert [each.used_by for each in context.directories] == [frozenset({"git"})]


def test_links_are_followed_when_the_settings_are_read(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert load_path(tmp_path, tmp_path / "link") == str(real)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/", "the whole file system"),
        ("~", "home directory"),
        ("{tmp}", "home directory"),
        ("{tmp}/link-to-home", "(really "),
        ("/proc/self", "above /proc"),
        ("/sys", "above /sys"),
        ("/dev/shm", "above /dev"),
        ("/var/run", "above /run"),
        ("{tmp}/home/.local/state", "the bridge or an engine"),
        ("{tmp}/home/.local/state/mcp-code-bridge/sessions", "the bridge or an engine"),
        ("{tmp}/sockets", "the bridge or an engine"),
        ("/var/lib/docker", "the bridge or an engine"),
        ("{tmp}/absent", "does not exist"),
        ("{tmp}/file", "is not a directory"),
        ("{tmp}/a:b", "a colon or a comma"),
    ],
)
def test_what_no_program_may_have_is_refused(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "home/.local/state/mcp-code-bridge/sessions").mkdir(parents=True)
    (tmp_path / "link-to-home").symlink_to(tmp_path / "home")
    (tmp_path / "file").write_text("")
    (tmp_path / "sockets").mkdir()
    (tmp_path / "a:b").mkdir()
    place = path.format(tmp=tmp_path)
    if place == "/var/lib/docker":
        # It is not on every machine.
        assert why in refusal(Path(place), home=tmp_path, private=[Path(place)])
        return
    if place == "~":
        place = str(tmp_path / "home")
    with pytest.raises(SettingsError) as found:
        load_path(tmp_path, place, DOCKER_HOST=f"unix://{tmp_path}/sockets/docker.sock")
    assert why in str(found.value)


def test_a_directory_below_the_home_directory_may_be_given(tmp_path: Path) -> None:
    below = tmp_path / "home/data"
    below.mkdir(parents=True)
    assert load_path(tmp_path, below) == str(below)


def test_the_file_that_says_so_is_not_among_what_is_given(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    config = project / "config.toml"
    config.write_text(f'[directories.data]\npath = "{project}"\n')
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(SettingsError, match="the bridge or an engine has its own"):
        load({}, {"HOME": str(home), "MCP_BRIDGE_CONFIG": str(config)})


def load_nested(tmp_path: Path, inner: Path, outer: Path, mode: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[directories.outer]\npath = "{outer}"\nmode = "{mode}"\n'
        f'[directories.inner]\npath = "{inner}"\n'
    )
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    load({}, {"HOME": str(home), "MCP_BRIDGE_CONFIG": str(config)})


@pytest.mark.parametrize("by_link", [False, True])
def test_what_programs_could_turn_into_a_link_is_refused(tmp_path: Path, by_link: bool) -> None:
    outer = tmp_path / "outer"
    (outer / "sub").mkdir(parents=True)
    inner = outer / "sub" if not by_link else outer / "link"
    if by_link:
        (tmp_path / "elsewhere").mkdir()
        inner.symlink_to(tmp_path / "elsewhere")
    load_nested(tmp_path, inner, outer, "ro")
    load_nested(tmp_path, outer, outer, "rw")
    with pytest.raises(SettingsError, match="could be turned into a link to anything"):
        load_nested(tmp_path, inner, outer, "rw")


@pytest.mark.parametrize("what", ["prefix", "servers"])
def test_what_the_bridge_relies_on_may_not_be_written_to(tmp_path: Path, what: str) -> None:
    place = tmp_path / "project"
    place.mkdir()
    given = {"MCP_SERVERS_CONFIG": str(place / "servers.json")}
    if what == "prefix":
        place, given = Path(sys.prefix), {}
    with pytest.raises(SettingsError, match="which the bridge relies on"):
        load_path(tmp_path, place, **given)
