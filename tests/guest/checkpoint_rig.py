"""Sessions in separate processes, without a sandbox."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.guest.state.checkpoint import restore
from bridge.guest.state.checkpoint_saving import save
from bridge.sandbox.bundle import write_guest_tree

CHILD = r"""
import base64, io, json, linecache, os, sys, traceback, types
told = json.load(sys.stdin)
sys.path.insert(0, told["root"])
module = types.ModuleType("__main__")
names = module.__dict__
names["__builtins__"] = sys.modules["builtins"]
workspace = told["workspace"]
os.chdir(workspace)
sys.path.append(workspace)
from bridge.guest.state.checkpoint import restore
from bridge.guest.state.checkpoint_saving import save
answer = {"restored": [], "parts": [], "lost": []}
if told["state"]:
    answer["restored"] = restore(names, workspace, base64.b64decode(told["state"]))
sys.modules["__main__"] = module
out, sys.stdout = sys.stdout, sys.stderr
for number, text in enumerate(told["programs"], told["first"]):
    name = "<run_python %d>" % number
    lines = io.StringIO(text, newline=None).readlines()
    linecache.cache[name] = (len(text), None, lines, name)
    exec(compile(text, name, "exec", dont_inherit=True), names)
frames = list(save(names, workspace, told["limit"]))
answer["parts"] = [base64.b64encode(frame.data).decode() for frame in frames]
answer["lost"] = frames[-1].lost
assert not any(frame.lost for frame in frames[:-1])
json.dump(answer, out)
"""

LIMIT = 32 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The names that could not be restored and saved, with reasons, and the checkpoint."""

    restored: dict[str, str]
    lost: dict[str, str]
    data: bytes


def session(
    workspace: Path,
    *programs: str,
    state: bytes = b"",
    python: str = sys.executable,
    first: int = 1,
) -> Answer:
    workspace.mkdir(exist_ok=True)
    told = {
        "root": str(write_guest_tree(workspace.parent / "guest")),
        "workspace": str(workspace),
        "state": base64.b64encode(state).decode(),
        "programs": list(programs),
        "limit": LIMIT,
        "first": first,
    }
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", CHILD],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    data = b"".join(base64.b64decode(part, validate=True) for part in answer["parts"])
    return Answer(restored=pairs(answer["restored"]), lost=pairs(answer["lost"]), data=data)


def pairs(told: Sequence[Sequence[str]]) -> dict[str, str]:
    found = {str(name): str(why) for name, why in told}
    assert len(found) == len(told)
    return found


def _here() -> str:
    here = Path.cwd()
    assert not Path(__file__).is_relative_to(here), "a test has to leave the repository first"
    return str(here)


def save_names(
    names: dict[str, Any], limit: int = LIMIT, workspace: str = ""
) -> tuple[bytes, dict[str, str]]:
    frames = list(save(names, workspace or _here(), limit))
    data = b"".join(frame.data for frame in frames)
    return data, pairs(frames[-1].lost)


def restore_names(data: bytes, workspace: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    names: dict[str, Any] = {}
    return names, pairs(restore(names, workspace or _here(), data))


class Calls:
    def __init__(self, what: Any, *args: Any) -> None:
        self.made = (what, args)

    def __reduce__(self) -> Any:
        return self.made
