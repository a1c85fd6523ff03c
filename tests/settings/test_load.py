"""Settings: four places, one order, and no silent default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.model import ServerSettings
from bridge.settings import load, runtime_dir, unknown_variables
from bridge.settings.parsers import parse_size
from tests.settings.conftest import LoadText

HOME = Path("~").expanduser()


@pytest.mark.parametrize(
    ("text", "variables", "flags", "expected"),
    [
        ("", {}, {}, {"runtime": "auto", "timeout": 30, "max_timeout": 600, "pids": 128}),
        ("", {}, {}, {"memory": 512 * 1024**2, "cpus": None, "container_user": "65534:65534"}),
        ("", {}, {}, {"runtime_idle_timeout": 300, "output_mode": "compact", "roots": ()}),
        ("timeout = 5", {"TIMEOUT": "6"}, {"timeout": "7"}, {"timeout": 7, "structured": "meta"}),
        ("pids = 64", {"PIDS": "65"}, {}, {"pids": 65}),
        ('memory = "1g"\nallow_self_server = true', {}, {}, {"memory": 1024**3}),
        ("allow_self_server = true", {}, {}, {"allow_self_server": True}),
        ("", {"MEMORY": ""}, {}, {"memory": 512 * 1024**2}),
        ("", {"MEMORY": "1t", "PIDS": "32768"}, {}, {"memory": 1024**4, "pids": 32768}),
        ("", {"CONTAINER_USER": f"{2**31 - 1}:1", "WARM": "32"}, {}, {"warm": 32}),
        ("", {}, {"sources": "Cursor, zed"}, {"sources": ("cursor", "zed")}),
        ("", {}, {"sources": "-cursor,-zed"}, {"sources": ("-cursor", "-zed")}),
        ("", {}, {"sources": "all"}, {"sources": ()}),
        ('secret_names = ["A_PIN", "-S_*"]', {}, {}, {"secret_names": ("a_pin", "-s_*")}),
        ('roots = ["/srv/a", "~/b"]', {}, {}, {"roots": (Path("/srv/a"), HOME / "b")}),
    ],
)
def test_a_setting_has_the_value_of_its_strongest_place(
    load_text: LoadText,
    text: str,
    variables: dict[str, str],
    flags: dict[str, str],
    expected: dict[str, object],
) -> None:
    environ = {f"MCP_BRIDGE_{name}": value for name, value in variables.items()}
    settings = load_text(text, flags, HOME="/h", **environ)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert settings.state_dir == Path("/h/.local/state/mcp-code-bridge")


def test_the_file_is_found_under_the_configuration_directory(tmp_path: Path) -> None:
    (tmp_path / "mcp-code-bridge").mkdir()
    (tmp_path / "mcp-code-bridge" / "config.toml").write_text("warm = 3\n")
    assert load({}, {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path)}).warm == 3


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('warm = 1\nruntime = "lxc"\n', "config.toml:2: runtime: 'lxc' is not auto"),
        ("[profiles.a]\npids = 8\n[profiles.b]\npids = 1\n", "config.toml:4: profiles.b.pids: "),
        ("# none\nmemroy = 1\n", "config.toml:2: memroy is not a setting. Did you mean memory"),
        ('profile = "mine"\n', "config.toml:1: profile: there is no profile 'mine'"),
        ("warm = \n", "at line 1, column 8"),
    ],
)
def test_a_message_names_the_line_of_the_file_that_is_at_fault(
    load_text: LoadText, text: str, place: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(place)):
        load_text(text)


def test_each_setting_knows_where_it_stands(load_text: LoadText, config: Path) -> None:
    text = 'warm = 1\nruntime = "docker"\nimage = "a"\n'
    settings = load_text(text, {"warm": "2"}, MCP_BRIDGE_IMAGE="b")
    places = [settings.place(name) for name in ("warm", "image", "runtime", "pids")]
    assert places == ["--warm", "MCP_BRIDGE_IMAGE", f"{config}:2: runtime", "MCP_BRIDGE_PIDS"]


def test_a_variable_that_is_no_setting_is_told_with_the_nearest() -> None:
    environ = {
        "MCP_BRIDGE_MEMROY": "1g",
        "MCP_BRIDGE_QQ": "1",
        "MCP_BRIDGE_CONFIG": "/c",
        "MCP_BRIDGE_INPUT_KEY": "k",
        "MCP_BRIDGE_PIDS": "64",
        "OTHER": "x",
    }
    assert unknown_variables(environ) == [
        "MCP_BRIDGE_MEMROY is not a setting and has no effect. Did you mean MCP_BRIDGE_MEMORY?",
        "MCP_BRIDGE_QQ is not a setting and has no effect.",
    ]


def test_an_error_names_the_flag_or_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--max-timeout: 'x'"):
        load({"max_timeout": "x"}, {"HOME": "/nowhere"})
    with pytest.raises(SettingsError, match="does not exist"):
        load({}, {"HOME": "/nowhere", "MCP_BRIDGE_CONFIG": str(tmp_path / "no.toml")})


def test_a_timeout_beyond_the_maximum_raises_it_with_a_warning() -> None:
    assert load({"max_timeout": "10"}, {"HOME": "/nowhere"}).timeout == 10
    assert load({"call_timeout": "900"}, {"HOME": "/nowhere"}).max_timeout == 900
    settings = load({"max_timeout": "10", "timeout": "20"}, {"HOME": "/nowhere"})
    assert (settings.timeout, settings.max_timeout) == (20, 20)
    assert "--timeout: 20 s exceeds the maximum of 10 s (--max-timeout)" in settings.notes[0]


@pytest.mark.parametrize(
    ("variable", "text", "value", "warned"),
    [
        ("RUNTIME_IDLE_TIMEOUT", "0", 0, False),
        ("LOG_LEVEL", "CRITICAL", "CRITICAL", False),
        ("LOG_LEVEL", "WARN", "WARNING", False),
        ("CONTAINER_USER", "1000", "1000:1000", False),
        ("PIDS", "-1", 32768, True),
        ("PIDS", "0", 32768, True),
        ("PIDS", "40000", 32768, True),
        ("STATE_DIR", "kept", Path("kept").absolute(), True),
        ("SKILLS_DIR", "kept", Path("kept").absolute(), True),
    ],
)
def test_values_of_the_first_bridges_keep_their_meaning(
    variable: str, text: str, value: object, warned: bool
) -> None:
    settings = load({}, {"HOME": "/nowhere", f"MCP_BRIDGE_{variable}": text})
    assert getattr(settings, variable.lower()) == value
    assert [f"MCP_BRIDGE_{variable}: " in note for note in settings.notes] == [True] * warned


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512 * 1024**2), ("1.5G", 1536 * 1024**2), ("100", 100), ("2kib", 2048)],
)
def test_sizes_are_read_as_engines_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_sockets_go_where_their_paths_fit(tmp_path: Path) -> None:
    assert runtime_dir(load({}, {"HOME": "/h"})) == Path("/h/.local/state/mcp-code-bridge/run")
    session = load({}, {"HOME": "/h", "XDG_RUNTIME_DIR": "/tmp"})
    assert runtime_dir(session) == Path("/tmp/mcp-code-bridge")
    deep = runtime_dir(load({}, {"HOME": "/" + "x" * 100}))
    assert len(str(deep)) <= 70


def test_a_server_s_protocol_is_read_from_its_table(load_text: LoadText) -> None:
    text = '[servers.github]\nprotocol = "legacy"\n[servers."my files"]\n'
    assert load_text(text).server_settings == {
        "github": ServerSettings(protocol="legacy"),
        "my files": ServerSettings(),
    }
