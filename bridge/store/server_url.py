"""The address of a PostgreSQL server's database, which may hold a password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec

SCHEMES = ("postgresql", "postgres")

_ADDRESS = re.compile(
    r"""
    \w+://
    ((?P<user> LETTER*) (: (LETTER | :)*)? (?P<at> @))?
    (?P<hosts> HOST (, HOST)*)
    (?P<path> /[^@?]*)?
    (\?[^@]*)?
    """.replace("LETTER", r"([^]%/?\#@:[\x80-\U0010FFFF] | %[0-9A-Fa-f]{2})").replace(
        "HOST", r"(\[[0-9A-Fa-f:.]*\] | [^][%/?\#@:,]*) (:\d*)?"
    ),
    re.VERBOSE,
)
"""What cannot be taken for another address, in which a part of the password is shown."""


@dataclass(frozen=True)
class ServerUrl:
    """An address as libpq reads it; as text it is without password and parameters."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        found = _ADDRESS.fullmatch(self.text)
        shown = found.group("user", "at", "hosts", "path") if found else ()
        return f"postgresql://{''.join(part or '' for part in shown)}"


def server_url(text: str) -> ServerUrl:
    """Return an address; raise ValueError if libpq cannot read it, or the driver is missing."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError(
            "has characters in its login that must be escaped, such as / as %2F, or no number as "
            "its port"
        )
    if find_spec("psycopg") is None:
        raise ValueError("needs psycopg: install mcp-code-bridge[postgresql]")
    return ServerUrl(text)
