"""The interpreter's command line in a sandbox, and what its loader reads from a descriptor.

Owns the short command line, which people and endpoint scanners read, and the payload behind it: the
stage as code, and its plan. Compiling the stage in every start would cost 8 ms there; loading it
costs a tenth of a millisecond.

Bytecode is for one kind of interpreter. This one compiles for its own kind; another one is run to
compile for itself.
"""

from __future__ import annotations

import json
import marshal
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import resources
from types import CodeType

from bridge.errors import LaunchError
from bridge.sandbox.bundle import INTERPRETER, own_tag
from bridge.sandbox.process.interpreter import Interpreter

COMPILE_SECONDS = 60.0
"""For an interpreter to compile two modules: 0.05 s, more from a cold disk."""

LIST_VERSION = 2
"""Of what `marshal` writes, for a list of texts and bytes: every Python 3 reads it."""

LOADER = """\
# mcp-code-bridge starts a sandbox: what does it lies on the descriptor that the next word names.
import gc, marshal, sys
gc.disable()
with open(int(sys.argv[1]), "rb") as given:
    step, *words = marshal.loads(given.read())
sys.argv[1:2] = words
exec(step if isinstance(step, str) else marshal.loads(step))
"""
"""Runs what a descriptor holds, as `loaded` made it, with its words in place of the number. No
garbage is looked for before the stage is done: that would make loading modules a third longer."""

_COMPILE = """
import json, marshal, sys
name, texts = json.load(sys.stdin)
for text in texts:
    print(marshal.dumps(compile(text, name, "exec", dont_inherit=True)).hex())
"""


@cache
def stage_text() -> str:
    """Return the stage's source."""
    return resources.files(__package__).joinpath("stage.py").read_text(encoding="utf-8")


def loader_command(interpreter: Interpreter, *words: str) -> list[str]:
    """Make the command that does what a descriptor holds, the number of which comes first."""
    return [interpreter.executable, *INTERPRETER[1:], LOADER, *words]


def loaded(step: str | bytes, *words: str) -> bytes:
    """Return what the descriptor is to hold.

    Args:
        step: A program, as text or as `marshal` writes its code.
        words: What it finds in `sys.argv`.
    """
    return marshal.dumps([step, *words], LIST_VERSION)


def compiled_stage(interpreter: Interpreter) -> bytes:
    """Return the stage as code for an interpreter. Blocks where another one is asked.

    Raises:
        LaunchError: That one cannot compile it.
    """
    if interpreter.tag == own_tag():
        return marshal.dumps(_compile(stage_text()))
    [code] = compile_with(interpreter.executable, [stage_text()], name="<string>")
    return code


def compile_with(executable: str, texts: Sequence[str], *, name: str) -> list[bytes]:
    """Have an interpreter compile texts; return each as it marshals it. Blocks.

    Raises:
        LaunchError: It cannot.
    """
    try:
        done = subprocess.run(
            [executable, *INTERPRETER[1:], _COMPILE],
            input=json.dumps([name, texts]).encode("ascii"),
            capture_output=True,
            env={},
            cwd="/",
            timeout=COMPILE_SECONDS,
            check=True,
        )
        # As text: nothing outside a sandbox ever reads what `marshal` wrote.
        return [bytes.fromhex(line) for line in done.stdout.decode("ascii").splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = f"{executable} does not compile what sandboxes start with: {error}."
        raise LaunchError(message) from error


def _compile(text: str) -> CodeType:
    # As the interpreter inside does it, whatever options this one was started with.
    return compile(text, "<string>", "exec", dont_inherit=True, optimize=0)
