"""Reads a program before it runs, once for all that is asked of its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread

from bridge.catalog.program.findings import NOTHING, Unread, Verdict
from bridge.catalog.program.guard import check
from bridge.catalog.program.names import NameTable
from bridge.catalog.program.repairs import read_program
from bridge.catalog.program.server_references import References, references
from bridge.catalog.program.survey import Survey
from bridge.settings import GuardMode

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a program's text shows.

    Attributes:
        code: The text that runs: as it was given, or repaired.
        read_as: The repairs in words; empty if there are none.
        packages: What its notebook commands install.
        scan: What the guard makes of it; nothing if it is off.
        names: What it uses and does not define, with what that certainly means.
        survey: Of what was parsed, or why it could not be.
    """

    code: str
    read_as: str
    survey: Survey | Unread = field(compare=False, repr=False)
    scan: Verdict = NOTHING
    references: References = References()
    names: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


async def read(
    code: str,
    table: NameTable,
    mode: GuardMode,
    *,
    denied: Sequence[str] = (),
    session: bool = False,
    python: Callable[[], str] = str,
) -> Reading:
    """Read a program before it runs: it is parsed once, for all that is asked of its tree.

    Args:
        table: The names of the servers that it may use.
        session: Whether it runs in one: then it may use names that it does not bind.
        python: Returns the sandbox's Python version, as "3.11"; empty if it is unknown.
    """
    scan = None if mode == "off" else partial(check, denied=denied)
    return await by_size(code, _reading, code, python, table, scan, session)


async def by_size(code: str, work: Callable[..., Found], *args: Any) -> Found:
    """Return what work on a program gives; in a thread if the program is long.

    A long program's tree takes a second to walk, in which other runs continue.
    """
    # What models mostly write. It takes 20 ms at worst; to ask a thread takes 0.2 ms.
    if len(code) <= 2048:
        return work(*args)
    return await anyio.to_thread.run_sync(work, *args, abandon_on_cancel=True)


def _reading(
    code: str,
    python: Callable[[], str],
    table: NameTable,
    scan: Callable[[Survey], Verdict] | None,
    session: bool,
) -> Reading:
    program = read_program(code, python)
    code, read_as, tree = program.code, program.read_as, program.tree
    if isinstance(tree, Unread):
        unread = NOTHING if scan is None else Verdict(findings=(tree.finding,))
        return Reading(code=code, read_as=read_as, survey=tree, scan=unread)
    survey = Survey(tree)
    names = table.resolve(survey)
    if not session:
        # In a session an earlier program may have defined them; the guest finds out.
        survey.given = names
    return Reading(
        code=code,
        read_as=read_as,
        scan=NOTHING if scan is None else scan(survey),
        references=references(survey, table.aliases, more_names=session),
        names=names,
        survey=survey,
        packages=program.packages,
    )
