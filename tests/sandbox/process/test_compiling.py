"""The stage and its plan as code and data, instead of texts that every start compiles."""

from __future__ import annotations

import json
import marshal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from bridge.errors import LaunchError
from bridge.model import Json
from bridge.sandbox.bundle import BOOTSTRAP_ARGV, own_tag
from bridge.sandbox.process.compiling import (
    LOADER,
    Compiled,
    compiled_by,
    compiled_for,
    stage_command,
    stage_text,
)
from bridge.sandbox.process.interpreter import Interpreter, find

PLAN: dict[str, Json] = {"text": "print(1)", "mounts": [["/tmp", "size=1"]], "landlock": None}
COMPILED = Compiled(stage=("python", "-c", LOADER, "00"), programs={"print(1)": b"code"})


def interpreter(tag: str) -> Interpreter:
    """This one, said to be of some kind."""
    return Interpreter(executable=sys.executable, version="3", binds=(), links=(), tag=tag)


def said_by(words: Sequence[str]) -> str:
    """Run a command to its end."""
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
    ).stdout


def test_the_plan_is_the_last_word() -> None:
    """Whether the stage before it is a text or compiled."""
    text = stage_command(interpreter(""), PLAN, None)
    assert text[:-1] == [sys.executable, "-I", "-S", "-c", stage_text()]
    code = stage_command(interpreter(""), PLAN, Compiled(stage=("python", "00")))
    assert code[:-1] == ["python", "00"]
    assert json.loads(text[-1]) == json.loads(code[-1]) == PLAN


def test_a_program_that_is_compiled_already_comes_with_its_code() -> None:
    """Which one that is goes by its whole text."""
    assert json.loads(COMPILED.command(PLAN)[-1]) == {**PLAN, "code": b"code".hex()}
    for text in ("print(2)", None):
        other: dict[str, Json] = {**PLAN, "text": text}
        assert json.loads(COMPILED.command(other)[-1]) == other


@pytest.mark.parametrize("tag", [own_tag(), "cpython-30-1"])
def test_what_is_compiled_runs_in_the_interpreter_it_is_for(tag: str) -> None:
    """Compiled here when that is of the same kind, else by itself."""
    made = compiled_for(interpreter(tag))
    # It has a plan that it cannot carry out: far enough to be the stage.
    done = subprocess.run(
        [*made.stage, "{}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "KeyError: 'status'" in done.stderr
    assert 'File "<string>", line' in done.stderr
    assert list(made.programs) == [BOOTSTRAP_ARGV[-1]]
    assert marshal.loads(made.programs[BOOTSTRAP_ARGV[-1]]).co_name == "<module>"


def test_the_loader_leaves_the_words_that_are_for_the_code() -> None:
    """As if that had been the text itself."""
    code = marshal.dumps(compile("import sys; print(__name__, sys.argv)", "<string>", "exec"))
    words = [sys.executable, "-I", "-S", "-c", LOADER, code.hex(), "plan"]
    assert said_by(words) == "__main__ ['-c', 'plan']\n"


def test_an_interpreter_is_asked_for_its_kind() -> None:
    """In the same words that this one is told by."""
    assert find(only=sys.executable, as_stranger=False).tag == own_tag()


def test_an_interpreter_that_compiles_nothing_is_named() -> None:
    """Nothing can be started with it."""
    with pytest.raises(LaunchError, match="/bin/false does not compile"):
        compiled_by("/bin/false", ["1"], name="x")


def test_the_stage_imports_nothing_that_is_not_needed_always() -> None:
    """Each of these is milliseconds of every start."""
    code = marshal.dumps(compile(stage_text(), "<string>", "exec"))
    text = f"""
import marshal, sys
exec(marshal.loads(bytes.fromhex({code.hex()!r})), {{"__name__": "stage"}})
import json
print(json.dumps(sorted(sys.modules)))
"""
    before = set(json.loads(said_by([sys.executable, "-I", "-S", "-c", BARE])))
    added = set(json.loads(said_by([sys.executable, "-I", "-S", "-c", text]))) - before
    assert added <= {"__future__", "_ctypes", "binascii", "resource"}


BARE = """
import gc, os, json, sys
print(json.dumps(sorted(sys.modules)))
"""
