"""`[[ssh.hosts]]`: the hosts that programs may run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings import load
from bridge.settings.ssh import DEFAULT_SLOTS, SshHost, parse_ssh

PLACE = "config.toml: ssh"


def test_a_host_needs_a_destination_and_the_rest_is_openssh_s_own() -> None:
    [host] = parse_ssh({"hosts": [{"destination": "me@big.example.org"}]}, PLACE)
    assert host == SshHost(destination="me@big.example.org", name="big.example.org")
    assert (host.slots, host.engine, host.port) == (DEFAULT_SLOTS, "podman", None)
    assert parse_ssh(None, PLACE) == ()


def test_hosts_are_read_from_the_file_in_their_order(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        'runtime = "ssh"\n[[ssh.hosts]]\ndestination = "a"\nslots = 8\n'
        '[[ssh.hosts]]\nname = "second"\ndestination = "a"\nengine = "docker"\n'
        'identity_file = "~/.ssh/bridge"\nsocket = "/run/user/1000/docker.sock"\n'
    )
    config.chmod(0o600)
    settings = load({}, {"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(config)})
    assert settings.runtime == "ssh"
    assert [(host.name, host.slots) for host in settings.ssh_hosts] == [("a", 8), ("second", 4)]
    assert settings.ssh_hosts[1].identity_file == Path("~/.ssh/bridge").expanduser()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"host": []}, "Did you mean hosts"),
        ({"hosts": {"a": {}}}, r"begun with \[\[ssh.hosts\]\]"),
        ({"hosts": [{}]}, "needs `destination`"),
        ({"hosts": [{"destination": "-oProxyCommand=id"}]}, "user@address or a Host"),
        ({"hosts": [{"destination": "a b"}]}, "user@address or a Host"),
        ({"hosts": [{"destination": "a", "slots": 0}]}, "from 1 to 512"),
        ({"hosts": [{"destination": "a", "engine": "lxc"}]}, "engine is 'lxc'"),
        ({"hosts": [{"destination": "a", "socket": "x.sock"}]}, "absolute path of a socket"),
        ({"hosts": [{"destination": "a", "socket": "/a:/b"}]}, "without a colon"),
        ({"hosts": [{"destination": "a", "name": "$(id)"}]}, "a name of letters"),
        ({"hosts": [{"destination": "a"}, {"destination": "b@a"}]}, "two hosts called 'a'"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(table: object, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as caught:
        parse_ssh(table, PLACE)
    assert caught.value.message.startswith(PLACE)


def test_hosts_are_used_only_when_they_are_named() -> None:
    with pytest.raises(SettingsError, match="used only when named as the runtime"):
        load({"runtime_order": "ssh,podman"}, {"HOME": "/nowhere"})
