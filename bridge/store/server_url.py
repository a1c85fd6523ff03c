"""The address of a PostgreSQL server's database, which may hold a password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SCHEMES = ("postgresql", "postgres")

_ESCAPED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*")
_HOSTS = re.compile(r"(?:(?:\[[0-9A-Fa-f:.]*\]|[^][:,]*)(?::\d*)?(?:,|$))*")


@dataclass(frozen=True)
class ServerUrl:
    """An address as libpq reads it; as text it is without password and parameters."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        found = urlsplit(self.text)
        user, at, hosts = found.netloc.rpartition("@")
        return f"postgresql://{user.partition(':')[0]}{at}{hosts}{found.path}"


def server_url(text: str) -> ServerUrl:
    """Return an address that libpq can parse.

    Raises:
        ValueError: It cannot, or the driver is not installed.
    """
    if not _is_told_apart(text):
        # A part of the password would be taken for another part of the address, and shown.
        raise ValueError(
            "has characters in its login that must be escaped, such as / as %2F, or no number as "
            "its port"
        )
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise ValueError("needs psycopg: install mcp-code-bridge[postgresql]")
    return ServerUrl(text)


def _is_told_apart(text: str) -> bool:
    try:
        found = urlsplit(text)
    except ValueError:
        # Its text has a part of the login.
        return False
    login, _, hosts = found.netloc.rpartition("@")
    beyond = login + found.path + found.query + found.fragment
    return "@" not in beyond and all((_ESCAPED.fullmatch(found.netloc), _HOSTS.fullmatch(hosts)))
