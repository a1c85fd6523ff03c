"""How runs end, and that nothing outlives them: attacks 9 to 17."""

from __future__ import annotations

import gc
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import docker.errors
import pytest

from bridge.model import RunRequest, RunResult
from bridge.runs import admission
from bridge.sandbox.backend import limits_for
from tests.contract.rig import EngineSet
from tests.processes import processes
from tests.security.rig import (
    PIDS,
    Arena,
    containers,
    control,
    family,
    groups,
    remains,
    settings_for,
)
from tests.waiting import until, until_exists

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these backends are for Linux")

RARE = ("gvisor", "ssh")
"""For `make test-all`: podman ends gVisor's sandboxes, and docker those over SSH."""

ROOT = Path(__file__).parents[2]

STUBBORN = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
os.kill(os.getpid(), signal.SIGTERM)
os.write(1, b"ESCAPED\\n")
"""

STOP = """
if not os.fork():
    os.setsid()
    for pid in (1, os.getppid()):
        try: os.kill(pid, signal.SIGSTOP)
        except OSError: pass
    os.kill(os.getpid(), signal.SIGSTOP)
while True: time.sleep(3600)
"""

DAEMON = """
import os, sys
if not os.fork():
    os.setsid()
    if not os.fork():
        os.closerange(0, 1100)
        sleep = "import time; time.sleep(600)"
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", sleep, {mark!r}])
    os._exit(0)
os.wait()
print("left")
"""

ORPHANS = """
import os
for n in range({count}):
    pid = os.fork()
    if not pid:
        if n % 2: os.fork()
        os._exit(0)
    os.waitpid(pid, 0)
print("through")
"""

HOLD_ON = """
import threading
def spin():
    while True: pass
threading.Thread(target=spin).start()
await mcp_work_shop.slow(started={started!r}, cancelled="/dev/null")
"""


@pytest.mark.guarantee("ending")
async def test_a_daemon_dies_with_its_run(arena: Arena) -> None:
    outside = f"daemon-beside-{arena.name}-{os.getpid()}-"
    assert control(DAEMON.format(mark=outside)).stdout == "left\n"
    # "left" may be there before it is what its argument says. The attack is void if it dies here.
    await until(lambda: bool(processes(outside)))
    for pid in processes(outside):
        os.kill(pid, signal.SIGKILL)
    mark = f"daemon-of-{arena.name}-{os.getpid()}-"
    found = (await arena.attack(DAEMON.format(mark=mark))).result
    assert found.stdout == "left\n", found
    assert not processes(mark)


@pytest.mark.guarantee("ending")
async def test_what_ignores_every_signal_ends_at_its_deadline(arena: Arena) -> None:
    assert control(STUBBORN).stdout == "ESCAPED\n"
    found = (await arena.attack(STUBBORN + STOP, timeout=1)).result
    # In gVisor the first process can be stopped: then the host ends all, and receives no report.
    said = ("ESCAPED\n", "") if arena.kind == "gvisor" else ("ESCAPED\n",)
    assert found.reason == "timeout", found
    assert found.stdout in said, found


async def test_children_and_orphans_are_collected(arena: Arena) -> None:
    count = PIDS + 20 if arena.kind == "gvisor" else 3 * PIDS
    found = (await arena.attack(ORPHANS.format(count=count), timeout=60)).result
    assert found.stdout == "through\n", found


@pytest.mark.guarantee("honest-end")
async def test_killing_the_first_process_is_a_crash(arena: Arena) -> None:
    code = "import os, time\nos.kill(1, 9)\nos.kill(os.getppid(), 15)\ntime.sleep(600)"
    found = (await arena.attack(code)).result
    assert (found.status, found.reason) == ("error", "crash"), found
    own = await arena.engine.run(RunRequest(code="import os; os.kill(os.getpid(), 9)"))
    assert (own.status, own.reason) == ("error", "crash"), own


@pytest.mark.guarantee("calls-end")
async def test_a_cancelled_run_ends_its_processes_and_calls(arena: Arena, tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    code = f"await mcp_work_shop.slow(started={str(started)!r}, cancelled={str(cancelled)!r})"
    await arena.with_server()
    async with arena.unharmed() as victims, anyio.create_task_group() as tasks:
        tasks.start_soon(arena.engine.run, RunRequest(code=code, timeout=100))
        await until_exists(started)
        tasks.cancel_scope.cancel()
    assert victims
    await until_exists(cancelled)


@pytest.mark.guarantee("calls-end")
async def test_a_call_under_way_at_the_deadline_is_called_off(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = replace(limits_for(arena.engine.settings, 2), longest_timeout=3)
    monkeypatch.setattr(admission, "limits_for", lambda *_: shorter)
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    code = f"await mcp_work_shop.slow(started={str(started)!r}, cancelled={str(cancelled)!r})"
    await arena.with_server()
    found = (await arena.attack(code, timeout=2)).result
    assert (found.reason, started.exists()) == ("timeout", True), found
    await until_exists(cancelled)
    code = "[await mcp_work_shop.add(a=n, b=0) for n in (1, 2)]"
    answers = await arena.engine.run(RunRequest(code=code))
    assert answers.result == [{"sum": 1}, {"sum": 2}], answers


@pytest.mark.guarantee("bridge-killed")
async def test_a_bridge_that_is_killed_takes_its_sandboxes_with_it(
    arena: Arena, engine_set: EngineSet, tmp_path: Path
) -> None:
    async with arena.unharmed() as mine:
        settings = settings_for(arena.name, engine_set, tmp_path)
        environ = {**settings.environ, "MCP_BRIDGE_IMAGE": settings.image, "MCP_BRIDGE_WARM": "1"}
        environ["MCP_BRIDGE_RUNTIME"] = settings.runtime
        if settings.oci_runtime:
            environ["MCP_BRIDGE_OCI_RUNTIME"] = settings.oci_runtime
        started = tmp_path / "started"
        code = HOLD_ON.format(started=str(started))
        argv = [sys.executable, "-m", "tests.security.victim", code]
        async with await anyio.open_process(
            argv, env=environ, cwd=ROOT, stdout=None, stderr=None
        ) as bridge:
            await until_exists(started)
            theirs = _sandboxes_of(bridge.pid, arena)
            assert theirs
            bridge.kill()
            await bridge.wait()
        for sandbox in theirs:
            await until(partial(_has_ended, sandbox, arena))
        # Another bridge on the same engine may do it first.
        await arena.backend.reap()
        await until(lambda: _sandboxes_of(bridge.pid, arena) == [])
        for sandbox in theirs:
            await until(lambda name=Path(sandbox).name: remains(name) == [])  # type: ignore[misc]
        assert list(arena.backend.live) == mine


def _sandboxes_of(bridge: int, arena: Arena) -> list[str]:
    if arena.outside is not None:
        return containers(arena.outside, owner=bridge)
    return groups(f"mcp-code-bridge_{bridge}_")


def _has_ended(sandbox: str, arena: Arena) -> bool:
    if arena.outside is None:
        return not Path(sandbox, "cgroup.procs").read_text().split()
    with arena.outside.outside() as client:
        try:
            return not client.inspect_container(sandbox)["State"]["Running"]
        except docker.errors.APIError as error:
            # podman says so with another status while the container goes.
            return "no such container" in str(error).lower()


# The SDK forgets to close a socket that could not connect, and Python says so when it is collected.
@pytest.mark.guarantee("engine-lost")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_engine_that_goes_away_takes_the_program_along_but_not_its_output(
    arena: Arena, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    code = (
        f"print('said')\nawait mcp_work_shop.slow(started={str(started)!r}, cancelled='/dev/null')"
    )
    await arena.with_server()
    outcomes: list[RunResult] = []

    async def attack() -> None:
        outcomes.append(await arena.engine.run(RunRequest(code=code, timeout=60)))

    async with arena.unharmed(counted=False) as victims, anyio.create_task_group() as tasks:
        tasks.start_soon(attack)
        await until_exists(started)
        await anyio.to_thread.run_sync(_take_away, arena, victims[0])
    gc.collect()
    [outcome] = outcomes
    assert (outcome.status, outcome.stdout) == ("error", "said\n"), outcome
    assert outcome.reason in ("crash", "engine"), outcome
    assert "killed" in outcome.error or "lost" in outcome.error or "removed" in outcome.error


def _take_away(arena: Arena, sandbox: str) -> None:
    if arena.outside is None:
        stat = Path(f"/proc/{sandbox}/stat").read_text(encoding="utf-8")
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    elif arena.kind == "docker":
        arena.outside.remove_container(sandbox)
    else:
        for pid in processes(f"unix://{arena.home}"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.guarantee("engine-lost")
async def test_a_sandbox_that_stands_still_is_not_mistaken_for_a_slow_program(arena: Arena) -> None:
    async with arena.unharmed(counted=False) as victims:
        await anyio.to_thread.run_sync(_pause, arena, victims[0])
        found = await arena.engine.run(RunRequest(code="print(1)", timeout=1))
    assert found.reason == "timeout"
    assert "paused" in found.error


def _pause(arena: Arena, sandbox: str) -> None:
    if arena.outside is None:
        for pid in family(int(sandbox)):
            os.kill(pid, signal.SIGSTOP)
        return
    with arena.outside.outside() as client:
        if arena.outside.applies_limits:
            client.pause(sandbox)
            return
        # Without a control group of its own nothing can be frozen.
        first = client.inspect_container(sandbox)["State"]["Pid"]
    for pid in family(first):
        os.kill(pid, signal.SIGSTOP)


ENDINGS = {
    "at once": "print('x', flush=True)\nimport os; os._exit(0)",
    "interrupted": "import os, time\nos.kill(os.getpid(), 2)\ntime.sleep(9)",
    "with everything closed": "import os; os.closerange(0, 1100)\n1",
    "with a status": "import sys; sys.exit(7)",
}


@pytest.mark.guarantee("honest-end")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_end_that_is_none_is_no_success(arena: Arena, ending: str) -> None:
    found = await arena.engine.run(RunRequest(code=ENDINGS[ending], timeout=5))
    assert found.status == "error", found
    assert not found.has_result
