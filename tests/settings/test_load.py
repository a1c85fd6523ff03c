"""Settings: four places, one order, and no silent default."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.model import ServerSettings
from bridge.settings import load, parse_size, runtime_dir, unknown_variables


def test_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    settings = load({}, {"HOME": str(tmp_path)})
    assert (settings.runtime, settings.timeout, settings.max_timeout) == ("auto", 30, 600)
    assert (settings.memory, settings.pids, settings.cpus) == (512 * 1024**2, 128, None)
    assert settings.container_user == "65534:65534"
    assert settings.runtime_idle_timeout == 300
    assert (settings.output_mode, settings.structured) == ("compact", "meta")
    assert settings.state_dir == tmp_path / ".local/state/mcp-code-bridge"


def test_flags_beat_the_environment_and_the_environment_beats_the_file(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('timeout = 5\npids = 64\nmemory = "1g"\nallow_self_server = true\n')
    environ = {
        "HOME": str(tmp_path),
        "MCP_BRIDGE_CONFIG": str(config),
        "MCP_BRIDGE_TIMEOUT": "6",
        "MCP_BRIDGE_PIDS": "65",
    }
    settings = load({"timeout": "7"}, environ)
    assert (settings.timeout, settings.pids, settings.memory) == (7, 65, 1024**3)
    assert settings.allow_self_server is True


def test_the_file_is_found_under_the_configuration_directory(tmp_path: Path) -> None:
    (tmp_path / "mcp-code-bridge").mkdir()
    (tmp_path / "mcp-code-bridge" / "config.toml").write_text("warm = 3\n")
    assert load({}, {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path)}).warm == 3


def test_a_message_names_the_line_of_the_file_that_is_at_fault(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    environ = {"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(config)}
    for text, place in (
        ('warm = 1\nruntime = "lxc"\n', "config.toml:2: runtime: 'lxc' is not auto"),
        ("[profiles.a]\npids = 8\n[profiles.b]\npids = 1\n", "config.toml:4: profiles.b.pids: "),
        ("# none\nmemroy = 1\n", "config.toml:2: memroy is not a setting. Did you mean memory"),
        ('profile = "mine"\n', "config.toml:1: profile: there is no profile 'mine'"),
        ("warm = \n", "at line 1, column 8"),
    ):
        config.write_text(text)
        with pytest.raises(SettingsError) as caught:
            load({}, environ)
        assert place in str(caught.value)


def test_each_setting_knows_where_it_stands(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('warm = 1\nruntime = "docker"\nimage = "a"\n')
    environ = {"HOME": "/", "MCP_BRIDGE_CONFIG": str(config), "MCP_BRIDGE_IMAGE": "b"}
    settings = load({"warm": "2"}, environ)
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
        "MCP_BRIDGE_MEMROY is not a setting, and changes nothing. Did you mean MCP_BRIDGE_MEMORY?",
        "MCP_BRIDGE_QQ is not a setting, and changes nothing.",
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MCP_BRIDGE_MEMORY", "1t"),
        ("MCP_BRIDGE_PIDS", "32768"),
        ("MCP_BRIDGE_WARM", "32"),
        ("MCP_BRIDGE_CONTAINER_USER", "2147483647:2147483647"),
    ],
)
def test_a_maximum_may_be_asked_for(variable: str, value: str) -> None:
    load({}, {"HOME": "/nowhere", variable: value})


def test_sources_are_names_to_read_or_names_to_leave_out() -> None:
    environ = {"HOME": "/nowhere"}
    assert load({"sources": "Cursor, zed"}, environ).sources == ("cursor", "zed")
    assert load({"sources": "-cursor,-zed"}, environ).sources == ("-cursor", "-zed")
    assert load({"sources": "all"}, environ).sources == ()


def test_names_of_secrets_are_globs(tmp_path: Path) -> None:
    """In a list of the file; a "-" in front makes a value public."""
    config = tmp_path / "config.toml"
    config.write_text('secret_names = ["ACME_PIN", "-SONAR_*"]\n')
    environ = {"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(config)}
    assert load({}, environ).secret_names == ("acme_pin", "-sonar_*")
    config.write_text('secret_names = ["-"]\n')
    with pytest.raises(SettingsError, match="secret_names"):
        load({}, environ)


def test_roots_are_directories_that_a_list_or_a_text_names(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('roots = ["/srv/a", "~/b"]')
    environ = {"HOME": "/nowhere", "MCP_BRIDGE_CONFIG": str(config)}
    assert load({}, environ).roots == (Path("/srv/a"), Path("~/b").expanduser())
    assert load({}, {"HOME": "/nowhere"}).roots == ()


def test_a_flag_that_does_not_parse_is_named_as_a_flag() -> None:
    with pytest.raises(SettingsError, match=r"--max-timeout: 'x'"):
        load({"max_timeout": "x"}, {"HOME": "/nowhere"})


def test_a_named_settings_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load({}, {"HOME": "/nowhere", "MCP_BRIDGE_CONFIG": str(tmp_path / "no.toml")})


def test_a_timeout_beyond_the_maximum_raises_it_with_a_warning() -> None:
    assert load({"max_timeout": "10"}, {"HOME": "/nowhere"}).timeout == 10
    assert load({"call_timeout": "900"}, {"HOME": "/nowhere"}).max_timeout == 900
    settings = load({"max_timeout": "10", "timeout": "20"}, {"HOME": "/nowhere"})
    assert (settings.timeout, settings.max_timeout) == (20, 20)
    assert "--timeout: 20 s is beyond the maximum of 10 s (--max-timeout)" in settings.notes[0]


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


def test_an_empty_variable_counts_as_unset() -> None:
    """Client configurations unset a variable by emptying it."""
    assert load({}, {"HOME": "/nowhere", "MCP_BRIDGE_MEMORY": ""}).memory == 512 * 1024**2


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512m", 512 * 1024**2),
        ("1g", 1024**3),
        ("1.5G", 1536 * 1024**2),
        ("100", 100),
        ("2kib", 2048),
    ],
)
def test_sizes_are_read_as_engines_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_sockets_go_where_their_paths_fit(tmp_path: Path) -> None:
    assert runtime_dir(load({}, {"HOME": "/h"})) == Path("/h/.local/state/mcp-code-bridge/run")
    session = load({}, {"HOME": "/h", "XDG_RUNTIME_DIR": "/tmp"})
    assert runtime_dir(session) == Path("/tmp/mcp-code-bridge")
    deep = runtime_dir(load({}, {"HOME": "/" + "x" * 100}))
    assert len(str(deep)) <= 70


def test_a_server_s_protocol_is_read_from_its_table(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[servers.github]\nprotocol = "legacy"\n[servers."my files"]\n')
    environ = {"MCP_BRIDGE_CONFIG": str(path), "HOME": str(tmp_path)}
    assert load(environ=environ).server_settings == {
        "github": ServerSettings(protocol="legacy"),
        "my files": ServerSettings(),
    }
