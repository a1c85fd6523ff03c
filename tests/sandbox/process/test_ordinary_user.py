"""The same as an ordinary user, also where root runs the tests; and the refusals."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.rig import ordinary_user, usable_python
from tests.sandbox.process.rig import json_by

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux"),
    pytest.mark.rootless,
]

SCRIPT = """
import dataclasses, json, os, sys, anyio
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.process.backend import BubblewrapBackend

INSIDE = '''
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
count = 1
while count < 100:
    try:
        if not os.fork():
            import time
            time.sleep(3600)
    except BlockingIOError:
        break
    count += 1
print(json.dumps({
    "uid": os.getuid(),
    "map": open("/proc/self/uid_map").read().split(),
    "caps": [status[n].strip() for n in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")],
    "filters": status["Seccomp_filters"].strip(),
    "unshare": libc.unshare(0x10000000),
    "processes": count,
    "pids": len([n for n in os.listdir("/proc") if n.isdigit()]),
    "home": os.listdir(%r) if os.path.isdir(%r) else [],
}))
'''

async def main():
    async with BubblewrapBackend(environ=dict(os.environ)) as backend:
        probe = await backend.probe()
        out = b""
        if probe.ok:
            argv = ("python3", "-I", "-S", "-c", INSIDE % ((os.environ["HOME"],) * 2))
            spec = LaunchSpec(run_id="x", argv=argv, env={}, limits=Limits(pids=20))
            async with backend.launch(spec) as sandbox:
                while data := await sandbox.receive():
                    out += data
                said = sandbox.diagnostics()
        print(json.dumps({
            "uid": os.getuid(), "ok": probe.ok, "summary": probe.summary, "remedy": probe.remedy,
            "layers": probe.isolation.layers if probe.isolation else [],
            "weaker": probe.isolation.weaker if probe.isolation else [],
            "inside": json.loads(out) if out else None,
        }))

anyio.run(main)
"""


def ask(*between: str) -> Any:
    with ordinary_user() as (become, environ, _):
        return ask_as([*become, *between], environ, usable_python(become, environ))


def ask_as(become: list[str], environ: dict[str, str], python: list[str]) -> Any:
    return SimpleNamespace(**json_by(become, python, SCRIPT, environ))


def test_an_ordinary_user_gets_the_same_isolation() -> None:
    told = ask()
    assert told.uid != 0
    assert told.ok, (told.summary, told.remedy)
    assert told.inside == {
        "uid": 65534,
        "map": ["65534", "65534", "1"],  # of a namespace of subordinate ids
        "caps": ["0" * 16] * 5,
        "filters": "2",
        "unshare": -1,
        "processes": 20,
        "pids": 20,
        "home": [],
    }
    assert {"own-seccomp", "user-namespace", "no-capabilities", "ulimits"} <= set(told.layers)
    assert ("memory-limit" in told.layers) != any("memory" in text for text in told.weaker)


def test_where_namespaces_are_used_up_nothing_runs() -> None:
    limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    # In a namespace of its own a user may set that, as a container's administrator can.
    told = ask("unshare", "--user", "--map-root-user", "sh", "-c", limit, "sh")
    assert not told.ok
    assert "user.max_user_namespaces" in told.remedy
    assert told.inside is None


def test_root_of_a_namespace_is_an_ordinary_user() -> None:
    told = ask("unshare", "--user", "--map-root-user")
    assert told.ok, (told.summary, told.remedy)
    assert told.uid == 0
    assert told.inside["map"] == ["65534", "0", "1"]


STAND_IN = """#!/bin/sh
while [ "$1" != -- ]; do echo "$1" >>"$0.log"; shift; done
shift
exec "$@"
"""


def test_the_users_systemd_is_asked_where_there_is_one() -> None:
    with ordinary_user() as (become, environ, directory):
        command = directory / "systemd-run"
        command.write_text(STAND_IN)
        command.chmod(0o755)
        python = usable_python(become, environ)
        environ |= {"PATH": f"{directory}:{environ['PATH']}", "XDG_RUNTIME_DIR": str(directory)}
        told = ask_as(become, environ, python)
        log = directory / "systemd-run.log"
        asked = log.read_text().splitlines() if log.exists() else []
    assert told.ok, (told.summary, told.remedy)
    assert told.inside["processes"] == 20
    if asked:  # unless groups can be made directly here
        assert {"--user", "--scope", "--property=TasksMax=21"} <= set(asked)
