"""The address of a database server, and the error of a database."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from importlib.util import find_spec

BUSY_SECONDS = 30.0  # The most to wait for another bridge's transaction; most take a millisecond.

SCHEMES = ("postgresql", "postgres")

# Strict, so that no part of a password can be taken for a host and shown.
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


@dataclass(frozen=True)
class ServerUrl:
    """An address as libpq reads it. Its text has neither password nor parameters."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        match = _ADDRESS.fullmatch(self.text)
        shown = match.group("user", "at", "hosts", "path") if match else ()
        return f"postgresql://{''.join(part or '' for part in shown)}"


def server_url(text: str) -> ServerUrl:
    """Return an address; raise ValueError if libpq cannot read it or the driver is missing."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError(
            "has unescaped characters in its login (write / as %2F), or a port that is no number"
        )
    if find_spec("psycopg") is None:
        raise ValueError("needs psycopg: install mcp-code-bridge[postgresql]")
    return ServerUrl(text)


class StoreError(OSError):
    """The database is full, damaged, locked, unreachable or too new."""

    is_too_new = False
    is_unconfirmed = False  # Whether the change may have been made.

    def __init__(self, number: int, message: str, remedy: str = "") -> None:
        super().__init__(number, message)
        self.remedy = remedy


def too_new(*, shared: bool) -> StoreError:
    """Return the error of a bridge whose database a later version has changed."""
    remedy = "Use that version, or remove the file."
    if shared:
        remedy = "Replace this bridge by one of that version."
    message = "a later version of the bridge has changed its tables"
    error = StoreError(errno.ESTALE, message, remedy)
    error.is_too_new = True
    return error
