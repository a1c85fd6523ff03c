"""Code for the interpreter inside, compiled outside and once.

Owns what stands on a sandbox's command line in place of the stage's text, and beside the program's:
code as `marshal` writes it, in hexadecimal digits, since a command line holds no NUL. Compiling the
stage in every start would cost 8 ms there, the guest's bootstrap another 2; to load them costs a
tenth of a millisecond.

Bytecode is for one kind of interpreter. This one compiles for its own kind; another one is asked to
compile for itself.
"""

from __future__ import annotations

import json
import marshal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import CodeType

from bridge.errors import LaunchError
from bridge.model import Json
from bridge.sandbox.bundle import BOOTSTRAP_ARGV, INTERPRETER, own_tag
from bridge.sandbox.process.interpreter import Interpreter

COMPILE_SECONDS = 60.0
"""For an interpreter to compile two modules: 0.05 s, more from a cold disk."""

LIST_VERSION = 2
"""Of what `marshal` writes, for a list of bytes: every Python 3 reads it."""

LOADER = (
    "import gc, marshal, sys\ngc.disable()\nexec(marshal.loads(bytes.fromhex(sys.argv.pop(1))))\n"
)
"""Runs the code that the first word after it holds, and leaves it the words after that. No garbage
is looked for before the stage is done: that would make loading modules a third longer."""

_COMPILE = """
import json, marshal, sys
name, texts = json.load(sys.stdin)
for text in texts:
    print(marshal.dumps(compile(text, name, "exec", dont_inherit=True)).hex())
"""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What every start of one interpreter is given.

    Attributes:
        stage: The words before the plan: the interpreter, and the stage as code.
        programs: What was compiled of programs, by their text.
    """

    stage: tuple[str, ...] = field(repr=False)
    programs: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def command(self, plan: Mapping[str, Json]) -> list[str]:
        """Make the command that becomes the stage and does what the plan says."""
        code = self.programs.get(str(plan["text"]))
        if code is not None:
            plan = {**plan, "code": code.hex()}
        return [*self.stage, _document(plan)]


@cache
def stage_text() -> str:
    """Return the stage's source."""
    return resources.files(__package__).joinpath("stage.py").read_text(encoding="utf-8")


def stage_command(
    interpreter: Interpreter, plan: Mapping[str, Json], compiled: Compiled | None
) -> list[str]:
    """Make the command that becomes the stage and does what the plan says."""
    if compiled is not None:
        return compiled.command(plan)
    return [interpreter.executable, *INTERPRETER[1:], stage_text(), _document(plan)]


def _document(plan: Mapping[str, Json]) -> str:
    return json.dumps(plan, separators=(",", ":"))


def compiled_for(interpreter: Interpreter) -> Compiled:
    """Compile what every sandbox starts with. Blocks where another interpreter is asked.

    Raises:
        LaunchError: That one cannot.
    """
    texts = (stage_text(), BOOTSTRAP_ARGV[-1])
    if interpreter.tag == own_tag():
        codes = [marshal.dumps(_compile(text)) for text in texts]
    else:
        codes = compiled_by(interpreter.executable, texts, name="<string>")
    return Compiled(
        stage=(interpreter.executable, *INTERPRETER[1:], LOADER, codes[0].hex()),
        programs={texts[1]: codes[1]},
    )


def compiled_by(executable: str, texts: Sequence[str], *, name: str) -> list[bytes]:
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
