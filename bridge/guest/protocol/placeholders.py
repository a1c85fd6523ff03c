"""How the result of a call that a plan holds back, or a part of it, is written inside arguments.

Owns the mark that stands for it. Host and guest both import this; whether a mark is one of a run's
own, is as it was made, and what it stands for, is the host's to say.

    EDGE heldResult PLAN n NUMBER p PATH k CHECK SEAL heldResult EDGE

PLAN is the run's own, 16 hexadecimal digits that nobody can guess; NUMBER the call's; PATH the
names and indexes that lead into its result, as JSON in hexadecimal digits; CHECK a CRC-32 of these.
The seal has whoever splits, strips, quotes, re-cases or otherwise changes a text change each mark
in it, which is seen: what is put in for a mark later would not have been changed.

Owns also the label by which people and models read of one, which stands for nothing.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence, Union

    Step = Union[str, int]

PREFIX = "heldResult"
"""Where a mark begins and ends, within its edges."""

EDGE = "\x1f"
"""A blank that `strip` takes away, and that stands in no text otherwise."""

SEAL = (
    r"""aA!b"B#c'C&d(D)e*E+f,F-g.G/h0H1i2I3j4J5k6K7l8L9m:M;"""
    r"""n<N=o> O?p@P^q_Q`r|R~s[S\]tTuUvVwWxXyYzZ"""
)
"""The printable characters of ASCII, without those that a second `format` or `%` of a text obeys:
none can be replaced in a text, or be split at, without a trace."""

WHOLE = "$heldResult"
"""The one key of an object that stands for a result, or a part of one, with its own type."""

LABEL = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}result of #"
"""How a label begins."""

MAX_PATH = 400
"""Bytes of the way into a result: nobody has deeper ones, a loop that goes on for ever ends, and
all of it can be shown."""


class Unknown:
    """What stands for a value that nobody knows yet; see `held`, which few runs import."""

    __slots__ = ()


def way(path: Sequence[Step]) -> bytes:
    """Return the way into a result as a mark has it, before it is written as digits."""
    return json.dumps(list(path), separators=(",", ":")).encode() if path else b""


def write(plan: str, number: int, path: Sequence[Step] = ()) -> str:
    """Return the mark that stands for a part of a call's result."""
    core = "%sn%dp%s" % (plan, number, way(path).hex())
    return "".join((EDGE, PREFIX, core, "k", checksum(core), SEAL, PREFIX, EDGE))


def checksum(core: str) -> str:
    """Return what a mark says of the rest of itself."""
    import zlib  # a millisecond, which runs without plans are spared

    return "%08x" % zlib.crc32(core.encode())


def label(number: int, call: str, path: Sequence[Step] = ()) -> str:
    """Return how people read of a part of a call's result: `‹result of #3 git.log›[0].id`.

    Args:
        call: Server and tool.
    """
    end = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
    return "%s%d %s%s%s" % (LABEL, number, call, end, shown_path(path))


def shown_path(path: Sequence[Step]) -> str:
    """Return the way to a part as Python would have it."""
    return "".join(
        ".%s" % step
        if isinstance(step, str) and step.isidentifier()
        else "[%s]" % json.dumps(step, ensure_ascii=False)
        for step in path
    )
