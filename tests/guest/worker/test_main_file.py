"""The file of a program: `__file__`, and what the processes of pools import."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.protocol.wire import File
from bridge.guest.worker.program import importable

POOL = """
import multiprocessing
from mcp import runtime
FACTOR = 3
table = dict(a=1)
@(lambda f: f)
def times(x): return x * FACTOR
{guard}with multiprocessing.get_context({method!r}).Pool(2) as pool:
    {indent}print(pool.map(times, range(4)))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_pools_of_every_kind_run_the_programs_functions(
    guest_on: Any, method: str, guard: str
) -> None:
    """With a guard as Python's documentation asks for, and without one."""
    code = POOL.format(method=method, guard=guard, indent="    " if guard else "")
    finished = guest_on.run(code if guard == "" else code.replace("from mcp import runtime", ""))
    assert (finished.stdout, finished.stderr) == ("[0, 3, 6, 9]\n", "")


def test_a_program_has_a_file_beside_its_data(guest_on: Any) -> None:
    """It holds the program, is no file that the program wrote, and replaces none of the user's."""
    code = """
import os
from pathlib import Path
(Path(__file__).parent / "out" / "a.txt").write_text(Path(__file__).name)
if __name__ == "__main__":
    print(len(open(__file__).read()) > 100, sorted(os.listdir()))
"""
    finished = guest_on.run(code)
    assert finished.stdout == "True ['out', 'run_python.py']\n"
    assert [frame.name for frame in finished.frames if isinstance(frame, File)] == ["a.txt"]


def test_the_importable_text_has_definitions_on_their_lines() -> None:
    text = "import a\nx = 1\nrows = f(x)\n\ndef g():\n    return rows\nawait g()\nfor r in x: ...\n"
    assert importable(text) == "import a\nx = 1\n\n\ndef g():\n    return rows\n\n\n"
    guarded = 'rows = f(1)\nif __name__ == "__main__":\n    print(rows)\n'
    assert importable(guarded) == guarded
    awaiting = 'def g(): ...\nif __name__ == "__main__":\n    await g()\n'
    assert importable(awaiting) == "def g(): ...\n\n\n"


def test_started_pythons_are_ordinary(guest_on: Any) -> None:
    """They read PYTHONPATH and `site`; the guest's own flags are for the guest."""
    finished = guest_on.run(
        "import subprocess\nprint(subprocess._args_from_interpreter_flags())\n"
        "import multiprocessing.util as u\nprint(u._args_from_interpreter_flags())"
    )
    assert finished.stdout == "[]\n[]\n"
