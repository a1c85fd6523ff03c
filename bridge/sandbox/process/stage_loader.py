"""The interpreter's command line in a sandbox, and the payload of its loader.

The command line is short, for people and endpoint scanners. The stage is compiled before, which
saves 8 ms per start. Bytecode fits one kind of interpreter; another kind compiles for itself.
"""

from __future__ import annotations

import base64
import json
import marshal
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import resources

from bridge.errors import LaunchError
from bridge.sandbox.bundle import INTERPRETER, guest_modules, own_tag
from bridge.sandbox.process.interpreter import Interpreter

LIST_VERSION = 2  # The marshal version for lists of str and bytes, which every Python 3 reads.

LOADER = """\
# mcp-code-bridge starts a sandbox: the code is on the descriptor that the next word numbers.
import gc, marshal, sys
gc.disable()
with open(int(sys.argv[1]), "rb") as given:
    step, *words = marshal.loads(given.read())
sys.argv[1:2] = words
exec(step if isinstance(step, str) else marshal.loads(step))
"""
"""Runs a payload of `stage_payload`, whose words replace the descriptor's number. The garbage
collector is off until the stage is done, since it makes loading modules a third slower."""

_COMPILE = """
import json, marshal, sys
name, texts = json.load(sys.stdin)
for text in texts:
    print(marshal.dumps(compile(text, name, "exec", dont_inherit=True)).hex())
"""


@cache
def stage_text() -> str:
    return resources.files(__package__).joinpath("stage.py").read_text(encoding="utf-8")


def loader_command(interpreter: Interpreter, *words: str) -> list[str]:
    """Return the command that runs a descriptor's payload; its number is the first of `words`."""
    return [interpreter.executable, *INTERPRETER[1:], LOADER, *words]


def stage_payload(step: str | bytes, *words: str) -> bytes:
    return marshal.dumps([step, *words], LIST_VERSION)


def compiled_stage(interpreter: Interpreter) -> bytes:
    """Return the stage as code for an interpreter. Blocks if the interpreter must compile it."""
    if interpreter.tag == own_tag():
        # As the interpreter inside compiles, whatever options this one was started with.
        code = compile(stage_text(), "<string>", "exec", dont_inherit=True, optimize=0)
        return marshal.dumps(code)
    [compiled] = compile_with(interpreter.executable, [stage_text()], name="<string>")
    return compiled


@cache
def compiled_examination(executable: str) -> str:
    """Return the stage's examination, compiled by an interpreter, in base64. Blocks.

    Loading it costs a tenth of compiling it in each stage, which takes 8 ms.
    """
    text = guest_modules()["bridge.guest.isolation_facts"]
    [code] = compile_with(executable, [text], name="<examination>")
    return base64.b64encode(code).decode("ascii")


def compile_with(executable: str, texts: Sequence[str], *, name: str) -> list[bytes]:
    """Return texts as marshalled code, compiled by an interpreter. Blocks."""
    try:
        done = subprocess.run(
            [executable, *INTERPRETER[1:], _COMPILE],
            input=json.dumps([name, texts]).encode("ascii"),
            capture_output=True,
            env={},
            cwd="/",
            timeout=60.0,
            check=True,
        )
        # As hexadecimal text: the host never unmarshals it.
        return [bytes.fromhex(line) for line in done.stdout.decode("ascii").splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = f"{executable} cannot compile the sandbox's start-up code: {error}."
        raise LaunchError(message) from error
