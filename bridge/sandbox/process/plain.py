"""Sandboxes without namespaces: what Landlock's and Seatbelt's have in common.

Pure: values in, values out. A keeper (see `keeper`) stands outside where bubblewrap does
otherwise; the stage inside has nothing to mount. What a program writes goes to a directory of its
run on the host's disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from bridge.model import Json
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.process.command import PYTHON, TMP, WORKSPACE, Descriptors
from bridge.sandbox.process.compiling import loaded, loader_command
from bridge.sandbox.process.interpreter import Interpreter
from bridge.sandbox.process.rundir import RunDirectory

NO_ROOM = (
    "disk: best effort; each file a program writes is bounded, all of them together are not, and "
    "they lie on the host's disk until the run ends"
)

_UNASKED = ("LC_CTYPE", "PWD", "__CF_USER_TEXT_ENCODING")
"""What Python, shells and macOS put into an environment by themselves."""


@cache
def keeper() -> bytes:
    """Return what the keeper's command reads: its source."""
    return loaded(resources.files(__package__).joinpath("keeper.py").read_text(encoding="utf-8"))


def environment(env: Mapping[str, str], place: RunDirectory) -> dict[str, str]:
    """Return what is given, with the run's own directories for the two it would find elsewhere."""
    here = {WORKSPACE: str(place.workspace), TMP: str(place.tmp)}
    return {name: here.get(value, value) for name, value in env.items()}


def order(
    spec: LaunchSpec, place: RunDirectory, descriptors: Descriptors, *, adopts: bool
) -> bytes:
    """Make what the keeper is told.

    Args:
        adopts: Whether the kernel lets it adopt orphans.
    """
    document = {
        "info": descriptors.info,
        "status": descriptors.status,
        "env": environment(spec.env, place),
        "mark": place.path.name,
        "adopts": adopts,
    }
    return json.dumps(document).encode("ascii") + b"\n"


def stage_command(
    interpreter: Interpreter, place: RunDirectory, descriptors: Descriptors
) -> list[str]:
    """Make the command that the keeper starts; its last word is what the keeper knows it by."""
    return loader_command(interpreter, str(descriptors.stage), place.path.name)


def stage_input(
    spec: LaunchSpec,
    interpreter: Interpreter,
    place: RunDirectory,
    descriptors: Descriptors,
    steps: Mapping[str, Json],
    stage: str | bytes,
) -> bytes:
    """Make what that command reads: the stage, and what it is to do.

    Args:
        steps: What this backend adds: limits, and what else shuts the program in.
    """
    in_process = spec.argv[:4] == PYTHON and len(spec.argv) == len(PYTHON) + 1
    argv = list(spec.argv)
    if argv[0] == PYTHON[0]:
        argv[0] = interpreter.executable
    plan = {
        "argv": argv,
        "text": argv[len(PYTHON)] if in_process else None,
        "packages": list(interpreter.packages),
        "cwd": str(place.workspace),
        "unset": [name for name in _UNASKED if name not in spec.env],
        "mounts": [],
        "rlimits": [],
        "landlock": None,
        "filters": [],
        "status": descriptors.status,
        **steps,
    }
    return loaded(stage, json.dumps(plan))


def lacking_processes(*, adopts: bool) -> str:
    """Say what the end of a sandbox rests on where there is no process namespace."""
    if adopts:
        return (
            "processes: no namespace of their own; they are ended by a process of the bridge that "
            "adopts what the program leaves, and not by the kernel"
        )
    return (
        "processes: no namespace of their own; what detaches itself twice can outlive the run, "
        "confined, until its CPU time is used up"
    )


def described(groups: Sequence[str]) -> str:
    """Name the control groups found, for `doctor`."""
    return ", ".join(sorted(groups)) or "none"
