"""Sandboxes on real SSH servers and podman: where they go, and what a lost host does to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.errors import (
    CapacityError,
    ChannelClosedError,
    HostDownError,
    HostKeyError,
    SandboxLostError,
    SettingsError,
)
from bridge.sandbox.backend import Bind, CommandSpec, Sandbox
from bridge.sandbox.ssh import backend as module
from bridge.sandbox.ssh.backend import SshBackend
from tests.contract.programs import BUSY, ECHO, FOREVER, read_exactly, spec
from tests.ssh_rig import Fleet, TestHost
from tests.waiting import until

pytestmark = [
    pytest.mark.podman,
    pytest.mark.ssh,
    # The SDK forgets sockets that could not connect, until they are collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PATIENCE = 90


async def started(backend: SshBackend, stack: AsyncExitStack, program: str = FOREVER) -> Sandbox:
    sandbox = await stack.enter_async_context(backend.launch(spec(program)))
    assert await read_exactly(sandbox, 6) == b"ready\n"
    return sandbox


async def end_of(sandbox: Sandbox) -> None:
    while await sandbox.receive():
        pass
    await sandbox.kill()


def taken(backend: SshBackend) -> dict[str, int]:
    return {host.spec.name: host.used for host in backend.hosts}


async def holds(host: TestHost, count: int) -> bool:
    return len(await anyio.to_thread.run_sync(host.containers)) == count


async def test_each_sandbox_goes_where_most_slots_are_free(
    backend: SshBackend, hosts: Fleet
) -> None:
    """And both hosts run some at once."""
    with anyio.fail_after(PATIENCE):
        probe = await backend.probe()
        assert probe.ok
        assert probe.summary == "2 of 2 SSH hosts, 4 slots"
        assert probe.isolation is not None
        assert probe.isolation.weaker == ()
        assert "own-seccomp" in probe.isolation.verified
        async with AsyncExitStack() as stack:
            for number in range(1, 5):
                await started(backend, stack)
                assert max(taken(backend).values()) == (number + 1) // 2
            assert [len(host.containers()) for host in hosts.hosts] == [2, 2]
        assert taken(backend) == {"a": 0, "b": 0}


async def test_a_sandbox_waits_for_a_slot_and_gets_the_one_that_is_freed(
    backend: SshBackend,
) -> None:
    """The wait ends with the other's end."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as others, anyio.create_task_group() as tasks:
            first = AsyncExitStack()
            await started(backend, first)
            for _ in range(3):
                await started(backend, others)
            got = anyio.Event()

            async def wait() -> None:
                async with AsyncExitStack() as own:
                    await started(backend, own)
                    got.set()

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not got.is_set()
            await first.aclose()
            await got.wait()


async def test_waiting_for_a_slot_is_bounded(
    backend: SshBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it says what is full."""
    with anyio.fail_after(PATIENCE):
        await backend.probe()
        monkeypatch.setattr(module, "WAIT_SECONDS", 0.1)
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await started(backend, stack)
            with pytest.raises(CapacityError, match="All 4 slots"):
                await started(backend, stack)


async def test_a_host_that_is_down_is_left_out_and_comes_back(
    backend: SshBackend, hosts: Fleet
) -> None:
    """Nobody who asks for a sandbox notices."""
    hosts.hosts[0].go_down()
    with anyio.fail_after(PATIENCE):
        assert (await backend.probe()).summary == "1 of 2 SSH hosts, 2 slots"
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            await started(backend, stack)
            assert taken(backend) == {"a": 0, "b": 1}
            hosts.hosts[0].start()

            async def drain() -> None:
                raise AssertionError("nothing is stopped as idle")

            tasks.start_soon(backend.tend, drain)
            await until(lambda: backend.hosts[0].usable)
            tasks.cancel_scope.cancel()
            await started(backend, stack)
            assert taken(backend) == {"a": 1, "b": 1}


async def test_a_host_lost_before_the_program_began_costs_nothing_but_time(
    backend: SshBackend, hosts: Fleet
) -> None:
    """Another host takes the sandbox, as soon as the bridge notices."""
    with anyio.fail_after(PATIENCE):
        await backend.probe()
        hosts.hosts[0].go_down()
        for _ in range(2):
            async with AsyncExitStack() as stack:
                await started(backend, stack)
                assert taken(backend) == {"a": 0, "b": 1}


async def test_without_any_host_the_error_says_why_and_what_to_do(
    backend: SshBackend, hosts: Fleet
) -> None:
    """And a host that comes back is used."""
    for host in hosts.hosts:
        host.go_down()
    with anyio.fail_after(PATIENCE):
        probe = await backend.probe()
        assert (probe.ok, probe.error_code) == (False, "host_down")
        with pytest.raises(HostDownError, match="Connection refused") as caught:
            await started(backend, AsyncExitStack())
        assert f"ssh -p {hosts.hosts[0].port}" in caught.value.remedy
        hosts.hosts[1].start()
        async with AsyncExitStack() as stack:
            with anyio.fail_after(PATIENCE):
                await until(lambda: anyio.current_time() >= backend.hosts[1].retry_at)
            await started(backend, stack)


async def test_a_cut_connection_ends_a_busy_program_and_its_sandbox_is_lost(
    backend: SshBackend, hosts: Fleet
) -> None:
    """The program does nothing but compute: neither it nor its guest reads anything."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            sandbox = await started(backend, stack, BUSY)
            host = next(one for one in hosts.hosts if one.containers())
            host.signal_connections(signal.SIGKILL)
            with pytest.raises(SandboxLostError):
                await end_of(sandbox)
            while not await holds(host, 0):
                await anyio.wait_all_tasks_blocked()


async def test_a_connection_that_falls_silent_ends_a_busy_program_too(
    backend: SshBackend, hosts: Fleet
) -> None:
    """No packet says so: the host counts the beats that it misses, the bridge its questions."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            sandbox = await started(backend, stack, BUSY)
            host = next(one for one in hosts.hosts if one.containers())
            host.signal_connections(signal.SIGSTOP)
            try:
                with pytest.raises(ChannelClosedError):
                    await end_of(sandbox)
                while not await holds(host, 0):
                    await anyio.wait_all_tasks_blocked()
            finally:
                host.signal_connections(signal.SIGCONT)


async def test_a_host_whose_key_has_changed_is_refused_with_the_fix(
    backend: SshBackend, hosts: Fleet
) -> None:
    """It gets nothing to run."""
    for host in hosts.hosts:
        host.go_down()
        host.new_key()
        host.start()
    with anyio.fail_after(PATIENCE):
        with pytest.raises(HostKeyError, match="its key has changed") as caught:
            await started(backend, AsyncExitStack())
    assert f'ssh-keygen -f "{hosts.known_hosts}" -R' in caught.value.remedy
    for host in hosts.hosts:
        assert "Accepted" not in (host.directory / "sshd.log").read_text()


async def test_a_host_that_nobody_vouched_for_is_refused(hosts: Fleet, tmp_path: Path) -> None:
    """Whatever the user's own configuration says of it."""
    hosts.known_hosts.unlink()
    with hosts.client.open("a") as file:
        file.write("StrictHostKeyChecking no\n")
    async with SshBackend(hosts.settings(tmp_path)) as backend:
        with anyio.fail_after(PATIENCE), pytest.raises(HostKeyError, match="is not known"):
            await started(backend, AsyncExitStack())
    assert not hosts.known_hosts.exists()


async def test_a_login_that_is_refused_says_where_keys_belong(hosts: Fleet, tmp_path: Path) -> None:
    """And is not asked for in another way."""
    for host in hosts.hosts:
        (host.directory / "authorized_keys").write_text("")
    async with SshBackend(hosts.settings(tmp_path)) as backend:
        with anyio.fail_after(PATIENCE):
            probe = await backend.probe()
    assert not probe.ok
    assert "authorized_keys" in probe.remedy


async def test_nothing_of_this_machine_is_given_to_a_host(backend: SshBackend) -> None:
    """It would be another machine's directory of that name."""
    given = replace(spec(ECHO), binds=(Bind(source="/etc", inside="/mnt"),))
    command = replace(spec(ECHO), command=CommandSpec(cwd="/", cpu_seconds=1, file_bytes=1))
    for wanted in (given, command):
        with pytest.raises(SettingsError, match="cannot have"):
            async with backend.launch(wanted):
                pass


KILLED = """
import os, sys
from pathlib import Path
import anyio
from bridge.sandbox.ssh.backend import SshBackend
from bridge.settings import load
from tests.contract.programs import BUSY, read_exactly, spec

async def main() -> None:
    async with SshBackend(load()) as backend, backend.launch(spec(BUSY)) as sandbox:
        await read_exactly(sandbox, 6)
        print("running", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_a_killed_bridge_leaves_nothing(
    backend: SshBackend, hosts: Fleet, tmp_path: Path
) -> None:
    """Not even a busy program; what is left of its directory, the next bridge removes."""
    config = hosts.config(tmp_path)
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MCP_BRIDGE_CONFIG": str(config)}
    environ |= {"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(Path.cwd())}
    with anyio.fail_after(PATIENCE):
        process = await anyio.open_process(
            [sys.executable, "-c", KILLED], env=environ, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        assert await process.stdout.receive() == b"running\n"
        assert sum([len(host.containers()) for host in hosts.hosts]) == 1
        process.kill()
        await process.wait()
        await process.stdout.aclose()
        while not all([await holds(host, 0) for host in hosts.hosts]):
            await anyio.wait_all_tasks_blocked()
        await backend.reap()
