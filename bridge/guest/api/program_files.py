"""The file names that programs and saved skills have in tracebacks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Set

FILENAME = "<run_python>"  # A program's file name in tracebacks; a session's programs are numbered.

PROGRAM_FILE = "run_python.py"  # What `__file__` names in the working directory.

_NUMBERED = "<run_python %d>"
_NUMBERED_HEAD = _NUMBERED.partition("%")[0]

SKILL_HEAD = "<skill "  # How a skill's file name begins.
_program_files: Set[str] = set()  # File names of programs that came from files.


def file_name(number: int) -> str:
    """Return the file name of a session's program; number 0 is a run outside a session."""
    return _NUMBERED % number if number else FILENAME


def is_program(name: str) -> bool:
    return (
        name in _program_files or name == FILENAME or name.startswith((_NUMBERED_HEAD, SKILL_HEAD))
    )


def add_program_file(name: str) -> None:
    _program_files.add(name)
