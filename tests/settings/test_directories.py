"""`[directories.NAME]`: what of the host programs find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.inventory.configuration import context_for
from bridge.model import Directory
from bridge.settings.directories import parse_directories, refusal
from tests.settings.conftest import LoadText

pytestmark = pytest.mark.guarantee("directories")

PLACE = "config.toml: directories"


def load_path(load_text: LoadText, path: object, **environ: str) -> str:
    text = f'[directories.data]\npath = "{path}"\nmode = "rw"\n'
    (found,) = load_text(text, **environ).directories
    assert (found.inside, found.writable) == ("/mnt/data", True)
    return found.path


def test_a_directory_is_named_with_its_place_and_its_mode() -> None:
    tables = {"data": {"path": "/srv/data"}, "out": {"path": "~/out", "mode": "rw"}}
    data, out = parse_directories(tables, PLACE)
    assert data == Directory(name="data", path="/srv/data", inside="/mnt/data")
    assert (out.path, out.writable) == (str(Path("~/out").expanduser()), True)


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ('"private-data"', {"private-data"}),
        ('["untrusted-input", "private-data"]', {"untrusted-input", "private-data"}),
        ("[]", set()),
        *((each, None) for each in ('"exfiltration"', '["privat-data"]', "5", "[5]", "true")),
        ('{ "private-data" = 1 }', None),
    ],
)
def test_a_directory_has_the_labels_of_what_is_in_it(
    tmp_path: Path, load_text: LoadText, written: str, labels: set[str] | None
) -> None:
    text = f'[directories.data]\npath = "{tmp_path}/data"\nlabels = {written}'
    (tmp_path / "data").mkdir()
    if labels is not None:
        assert load_text(text).directories[0].labels == labels
        return
    with pytest.raises(SettingsError, match="labels.* one of untrusted-input, private-data"):
        load_text(text)


def test_a_directory_names_the_servers_that_may_run_what_is_in_it(
    tmp_path: Path, load_text: LoadText
) -> None:
    (tmp_path / "data").mkdir()
    table = f'[directories.data]\npath = "{tmp_path}/data"\nmode = "rw"\nused_by = ["git"]\n'
    context = context_for(load_text(table), str(tmp_path), "linux")
    assert tmp_path / "data" in context.exposed
    assert [each.used_by for each in context.directories] == [frozenset({"git"})]


def test_links_are_followed_when_the_settings_are_read(tmp_path: Path, load_text: LoadText) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert load_path(load_text, tmp_path / "link") == str(real)


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
def test_what_no_program_may_have_is_refused(
    tmp_path: Path, load_text: LoadText, path: str, why: str
) -> None:
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
        load_path(load_text, place, DOCKER_HOST=f"unix://{tmp_path}/sockets/docker.sock")
    assert why in str(found.value)


def test_a_directory_below_the_home_directory_may_be_given(
    tmp_path: Path, load_text: LoadText
) -> None:
    below = tmp_path / "home/data"
    below.mkdir(parents=True)
    assert load_path(load_text, below) == str(below)


def test_the_file_that_says_so_is_not_among_what_is_given(
    tmp_path: Path, load_text: LoadText
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    config = project / "config.toml"
    text = f'[directories.data]\npath = "{project}"\n'
    config.write_text(text)
    with pytest.raises(SettingsError, match="the bridge or an engine has its own"):
        load_text("", MCP_BRIDGE_CONFIG=str(config))


@pytest.mark.parametrize("by_link", [False, True])
def test_what_programs_could_turn_into_a_link_is_refused(
    tmp_path: Path, load_text: LoadText, by_link: bool
) -> None:
    outer = tmp_path / "outer"
    (outer / "sub").mkdir(parents=True)
    inner = outer / "sub" if not by_link else outer / "link"
    if by_link:
        (tmp_path / "elsewhere").mkdir()
        inner.symlink_to(tmp_path / "elsewhere")
    text = '[directories.outer]\npath = "{}"\nmode = "{}"\n[directories.inner]\npath = "{}"\n'
    load_text(text.format(outer, "ro", inner))
    load_text(text.format(outer, "rw", outer))
    with pytest.raises(SettingsError, match="could be turned into a link to anything"):
        load_text(text.format(outer, "rw", inner))


@pytest.mark.parametrize("what", ["prefix", "servers"])
def test_what_the_bridge_relies_on_may_not_be_written_to(
    tmp_path: Path, load_text: LoadText, what: str
) -> None:
    place = tmp_path / "project"
    place.mkdir()
    given = {"MCP_SERVERS_CONFIG": str(place / "servers.json")}
    if what == "prefix":
        place, given = Path(sys.prefix), {}
    with pytest.raises(SettingsError, match="which the bridge relies on"):
        load_path(load_text, place, **given)
