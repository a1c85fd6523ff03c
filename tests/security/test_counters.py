"""What the kernel counts by user, on every backend, as root and as an ordinary user."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import anyio
import pytest

from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec
from tests.contract.rig import ordinary_user, usable_python
from tests.security.counters import ATTACK, STILL, program
from tests.security.rig import PATIENCE_SECONDS, Arena, control

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these backends are for Linux")

DIFFERENT = ("bubblewrap", "podman", "docker", "gvisor")
"""Over SSH the containers are docker's."""

REFUSED = ("inotify", "namespace", "key", "queue")

BOUND = {"timer": Limits().open_files * 2, "pass_descriptor": 200, "pipe": 260}
"""The most of each that one process gets by its own limits. Only the memory bounds watches: each
epoll may watch each descriptor."""

AS_USER = """
import json, os, pwd, subprocess, sys, anyio
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.process.backend import BubblewrapBackend
async def main():
    attack, still = sys.argv[1:]
    spec = LaunchSpec(run_id="x", argv=("python3", "-I", "-S", "-c", attack), env={},
                      limits=Limits())
    async with BubblewrapBackend(environ=dict(os.environ)) as backend:
        async with backend.launch(spec) as sandbox:
            out = b""
            while b"\\n" not in out:
                data = await sandbox.receive()
                assert data, sandbox.diagnostics()
                out += data
            owner = os.stat("/proc/" + sandbox.id).st_uid
            words = [sys.executable, "-I", "-S", "-c", still]
            said = await anyio.run_process(words)
            print(json.dumps([json.loads(out), json.loads(said.stdout), owner, os.getuid(),
                              list(sandbox.isolation.weaker)]))
anyio.run(main)
"""


@pytest.mark.guarantee("counters")
async def test_the_hosts_user_still_can_while_every_counter_is_attacked(arena: Arena) -> None:
    before = json.loads(control(program(STILL)).stdout)
    # gVisor counts in a kernel of its own, and slowly.
    attack = attack_of(2_000 if arena.kind == "gvisor" else 20_000)
    words = ("python3", "-I", "-S", "-c", attack)
    spec = LaunchSpec(run_id="counters", argv=words, env={}, limits=Limits())
    with anyio.fail_after(PATIENCE_SECONDS):
        async with arena.backend.launch(spec) as sandbox:
            out = b""
            while b"\n" not in out:
                data = await sandbox.receive()
                # gVisor's kernel has the limit of memory for all that it counts, and ends at it.
                assert data or arena.kind == "gvisor", sandbox.diagnostics()
                out += data or b"{}\n"
            control.cache_clear()
            after = json.loads(control(program(STILL)).stdout)
    taken = json.loads(out)
    assert after == before
    if arena.kind != "gvisor":
        assert {taken[name][0] for name in REFUSED} == {0}, taken
        assert all(taken[name][0] <= most for name, most in BOUND.items()), taken


@pytest.mark.rootless
@pytest.mark.guarantee("counters")
@pytest.mark.parametrize("has_ids", [True, False])
def test_an_ordinary_user_still_can(has_ids: bool) -> None:
    with ordinary_user() as (become, environ, directory):
        if not has_ids:
            broken = directory / "unshare"
            broken.write_text("#!/bin/sh\nexit 1\n")
            broken.chmod(0o755)
            environ["PATH"] = f"{directory}:{environ['PATH']}"
        python = usable_python(become, environ)
        before = _run([*become, *python, "-I", "-S", "-c", program(STILL)], environ)
        words = [*become, *python, "-c", AS_USER, attack_of(20_000), program(STILL)]
        taken, after, owner, user, weaker = _run(words, environ)
    assert after == before
    assert {taken[name][0] for name in REFUSED} == {0}, taken
    assert all(taken[name][0] <= most for name, most in BOUND.items()), taken
    assert (owner != user) is has_ids, (owner, user)
    assert any("counters" in text for text in weaker) is not has_ids, weaker


def attack_of(most: int) -> str:
    return f"MOST = {most}\n{program(ATTACK)}"


def _run(words: list[str], environ: dict[str, str]) -> Any:
    done = subprocess.run(
        words, env=environ, cwd="/", capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
