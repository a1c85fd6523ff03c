"""The hosts that programs may run on over SSH, from `[[ssh.hosts]]` of `config.toml`. Pure.

Owns the keys, their bounds and their defaults. What else OpenSSH can be told (jump hosts, known
hosts, ciphers) stands in its own configuration, which `destination` may name an entry of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from bridge.model import Json
from bridge.settings import fields

HostEngine = Literal["podman", "docker"]

MAX_HOSTS = 50
"""Each has a connection, a thread and a few processes; more hosts are a cluster's work."""

MAX_SLOTS = 512
"""Sandboxes at once on one host; each has its memory there."""

DEFAULT_SLOTS = 4

_DESTINATION = re.compile(r"(?!-)[^\s\0-\x1f\x7f]{1,255}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """One of `[[ssh.hosts]]`.

    Attributes:
        destination: As `ssh` takes it: `user@address`, or a `Host` of its configuration.
        name: In messages and in `hosts`; the destination, without a user, if not set.
        slots: Sandboxes at once on it.
        engine: The container engine there.
        socket: Where the engine listens there; by default docker's usual place, and a service of
            the bridge's own for podman.
        port: Of its SSH server; OpenSSH's configuration says if not set.
        identity_file: The private key to log in with; OpenSSH's configuration says if not set.
        config_file: A configuration of OpenSSH to read in place of the user's.
    """

    destination: str
    name: str = ""
    slots: int = DEFAULT_SLOTS
    engine: HostEngine = "podman"
    socket: str = ""
    port: int | None = None
    identity_file: Path | None = None
    config_file: Path | None = None


def parse_ssh(table: Json, place: str) -> tuple[SshHost, ...]:
    """Return the hosts of the `ssh` table at `place`; none where there is no such table.

    Raises:
        SettingsError: It has a key or a value that cannot be, or two hosts of one name.
    """
    if table is None:
        return ()
    hosts = fields.record(table, place, {"hosts": _hosts}, "[ssh]").get("hosts", ())
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            fields.fail(f"{place}.hosts", f"has two hosts called {name!r}: give each a `name`")
    return tuple(hosts)


def _hosts(value: Json, place: str) -> tuple[SshHost, ...]:
    found = []
    for item, where in fields.tables(value, place, MAX_HOSTS):
        given = fields.record(item, where, KEYS, "a host")
        if "destination" not in given:
            fields.fail(where, "needs `destination`, such as user@address")
        bare = given["destination"].rpartition("@")[2]
        given.setdefault("name", bare if _NAME.fullmatch(bare) else where.rpartition(".")[2])
        found.append(SshHost(**given))
    return tuple(found)


def _destination(value: Json, place: str) -> str:
    """Return user@address, or a `Host` of OpenSSH's configuration."""
    found = fields.text(value, place)
    if not _DESTINATION.fullmatch(found):
        fields.fail(place, "must be user@address or a Host of OpenSSH's configuration")
    return found


def _name(value: Json, place: str) -> str:
    """Return a name: letters, digits, "-", "_" and "."."""
    found = fields.text(value, place)
    if not _NAME.fullmatch(found):
        fields.fail(place, "must be a name of letters, digits, -, _ and .")
    return found


def _socket(value: Json, place: str) -> str:
    """Return the absolute path of a socket on the host."""
    found = fields.text(value, place)
    if not found.startswith("/") or ":" in found or not found.isprintable():
        fields.fail(place, "must be the absolute path of a socket on the host, without a colon")
    return found


KEYS: Mapping[str, fields.Parse] = {
    "destination": _destination,
    "name": _name,
    "slots": fields.whole(MAX_SLOTS),
    "engine": fields.choice(get_args(HostEngine)),
    "socket": _socket,
    "port": fields.whole(65535),
    "identity_file": fields.path,
    "config_file": fields.path,
}
