"""The stage and its plan as code and data, instead of texts that every start compiles."""

from __future__ import annotations

import json
import marshal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import pytest

from bridge.errors import LaunchError
from bridge.sandbox.bundle import own_tag
from bridge.sandbox.process.interpreter import Interpreter, find
from bridge.sandbox.process.stage_loader import (
    compile_with,
    compiled_stage,
    loader_command,
    stage_payload,
    stage_text,
)


def interpreter(tag: str) -> Interpreter:
    return Interpreter(executable=sys.executable, version="3", binds=(), links=(), tag=tag)


def said_by(words: Sequence[str], given: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with a descriptor in place of the word `FD`."""
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        number = file.fileno()
        return subprocess.run(
            [str(number) if word == "FD" else word for word in words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
        )


@pytest.mark.parametrize("tag", [own_tag(), "cpython-30-1"])
def test_what_is_compiled_runs_in_the_interpreter_it_is_for(tag: str) -> None:
    """Compiled here when that is of the same kind, else by itself."""
    stage = compiled_stage(interpreter(tag))
    # It has a plan that it cannot carry out: far enough to be the stage.
    done = said_by(loader_command(interpreter(tag), "FD"), stage_payload(stage, "{}"))
    assert "KeyError: 'status'" in done.stderr
    assert 'File "<string>", line' in done.stderr


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_descriptor_holds_finds_its_own_words_and_those_of_the_command(
    compiled: bool,
) -> None:
    text = "import sys; print(__name__, sys.argv)"
    step = marshal.dumps(compile(text, "<string>", "exec")) if compiled else text
    command = loader_command(interpreter(""), "FD", "more")
    assert (
        said_by(command, stage_payload(step, "plan")).stdout == "__main__ ['-c', 'plan', 'more']\n"
    )
    assert said_by(command, stage_payload(step)).stdout == "__main__ ['-c', 'more']\n"


def test_the_command_is_short_and_says_whose_it_is() -> None:
    words = loader_command(interpreter(""), "3")
    assert words[:4] == [sys.executable, "-I", "-S", "-c"]
    assert len(" ".join(words[1:])) < 400
    assert words[4].startswith("# mcp-code-bridge starts a sandbox")


def test_an_interpreter_is_asked_for_its_kind() -> None:
    assert find(only=sys.executable, as_nobody=False).tag == own_tag()


def test_an_interpreter_that_compiles_nothing_is_named() -> None:
    with pytest.raises(LaunchError, match="/bin/false cannot compile"):
        compile_with("/bin/false", ["1"], name="x")


def test_the_stage_imports_nothing_that_is_not_needed_always() -> None:
    stage = marshal.dumps(compile(stage_text(), "<string>", "exec"))
    text = f"""
import marshal, sys
exec(marshal.loads(bytes.fromhex({stage.hex()!r})), {{"__name__": "stage"}})
import json
print(json.dumps(sorted(sys.modules)))
"""
    bare, with_stage = (
        set(json.loads(said_by([sys.executable, "-I", "-S", "-c", code]).stdout))
        for code in (BARE, text)
    )
    added = with_stage - bare
    assert added <= {"__future__", "_ctypes", "binascii", "resource"}


BARE = """
import gc, os, json, sys
print(json.dumps(sorted(sys.modules)))
"""
