"""The file names that programs and saved skills have in tracebacks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Set

FILENAME = "<run_python>"
"""What the program's code goes by in tracebacks; a session's programs have a number each."""

_NUMBERED = "<run_python %d>"
_NUMBERED_HEAD = _NUMBERED.partition("%")[0]

SKILL_HEAD = "<skill "
"""How what saved skills go by begins."""

_named: Set[str] = set()
"""What programs go by that came from files."""


def file_name(number: int) -> str:
    """Return what the program of a session's run goes by; number 0 is a run on its own."""
    return _NUMBERED % number if number else FILENAME


def is_program(name: str) -> bool:
    """Whether a file name is that of a program, or of a skill that it imports."""
    return name in _named or name == FILENAME or name.startswith((_NUMBERED_HEAD, SKILL_HEAD))


def add_program_file(name: str) -> None:
    """Count a file as a program's."""
    _named.add(name)
