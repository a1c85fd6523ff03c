"""The text form of placeholders: what stands in arguments for the result of a held call.

    EDGE heldResult PLAN n NUMBER p PATH k CHECK SEAL heldResult EDGE

PLAN is 16 random hexadecimal digits per run; NUMBER the call's; PATH the names and indexes that
lead into its result, as JSON in hexadecimal digits; CHECK a CRC-32 of these. The seal contains
every printable character, so code that splits, strips, quotes or re-cases a text also changes the
marks in it. That is detected: the same change could not be made to the result later.
"""

from __future__ import annotations

from bridge.guest.protocol import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence, Union

    Step = Union[str, int]

_ascii = json_text.encoder(ascii_only=True)
_text = json_text.encoder()

PREFIX = "heldResult"  # Begins and ends a mark, inside the edges.
EDGE = "\x1f"  # A character that `strip` removes and that ordinary texts do not contain.

SEAL = (
    r"""aA!b"B#c'C&d(D)e*E+f,F-g.G/h0H1i2I3j4J5k6K7l8L9m:M;"""
    r"""n<N=o> O?p@P^q_Q`r|R~s[S\]tTuUvVwWxXyYzZ"""
)
"""The printable ASCII characters except those special to `format` and `%`: replacing one of them in
a text, or splitting at it, changes the mark."""

WHOLE = "$heldResult"
"""The only key of an object that stands for a result or a part of it, keeping its type."""

LABEL = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}result of #"  # How a label begins.
MAX_PATH = 400  # Most bytes of a path: a program's loop can go ever deeper into a result.


class Unknown:
    """Base class of placeholders; see `api.held_results`, which few runs import."""

    __slots__ = ()


def way(path: Sequence[Step]) -> bytes:
    """Return a path into a result as JSON bytes; a mark has them in hexadecimal."""
    return _ascii(list(path)).encode() if path else b""


def write(plan: str, number: int, path: Sequence[Step] = ()) -> str:
    """Return the mark that stands for a part of a call's result."""
    core = "%sn%dp%s" % (plan, number, way(path).hex())
    return "".join((EDGE, PREFIX, core, "k", checksum(core), SEAL, PREFIX, EDGE))


def checksum(core: str) -> str:
    import zlib  # takes a millisecond; only plans need it

    return "%08x" % zlib.crc32(core.encode())


def label(number: int, call: str, path: Sequence[Step] = ()) -> str:
    """Return the label of a part of the result of "server.tool": `‹result of #3 git.log›[0].id`."""
    end = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
    return "%s%d %s%s%s" % (LABEL, number, call, end, shown_path(path))


def shown_path(path: Sequence[Step]) -> str:
    return "".join(
        ".%s" % step if isinstance(step, str) and step.isidentifier() else "[%s]" % _text(step)
        for step in path
    )
