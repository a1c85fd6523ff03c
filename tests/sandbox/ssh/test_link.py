"""What a host, or the way to it, may not do to the bridge. Needs no host."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from bridge.errors import HostDownError
from bridge.sandbox.backend import Probe
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.ssh import backend as placing
from bridge.sandbox.ssh import link as module
from bridge.sandbox.ssh.backend import Host, SshBackend
from bridge.sandbox.ssh.link import Link, failure, ssh_argv
from bridge.settings import Settings
from bridge.settings.ssh import SshHost
from tests.contract.programs import ECHO, spec

PATIENCE = 30


class Connection:
    """A connection without a host."""

    alive = well = True

    def close(self) -> None:
        self.alive = False

    async def aclose(self) -> None:
        """End nothing."""


def settings(directory: Path) -> Settings:
    hosts = tuple(SshHost(destination=name, name=name) for name in ("a", "b"))
    return Settings(runtime="ssh", ssh_hosts=hosts, state_dir=directory, environ={})


@pytest.mark.parametrize("where", ['-f "$(touch x)" -R "h"', '-f "k" -R "`touch x`"'])
def test_a_host_puts_no_command_of_its_own_into_what_a_person_is_to_run(where: str) -> None:
    """What it writes to stderr looks like OpenSSH's own words."""
    host = SshHost(destination="me@h", name="h")
    error = failure(host, 255, f"IDENTIFICATION HAS CHANGED! ssh-keygen {where}")
    assert "touch" not in error.remedy
    assert "`ssh-keygen -R h`" in error.remedy


def test_a_changed_keys_own_file_is_named() -> None:
    command = 'ssh-keygen -f "/home/me/.ssh/known_hosts" -R "[127.0.0.1]:22022"'
    host = SshHost(destination="me@h", name="h")
    assert command in failure(host, 255, f"IDENTIFICATION HAS CHANGED! {command}").remedy


def test_a_host_gets_no_tickets_of_the_users(tmp_path: Path) -> None:
    assert "-k" in ssh_argv(SshHost(destination="h", name="h"), tmp_path, "0")


def test_a_host_that_takes_a_bridge_for_gone_has_missed_a_beat() -> None:
    """An answer that comes as late as it may included."""
    assert module.BEAT_SECONDS + module.ANSWER_SECONDS < module.SILENCE_SECONDS


async def test_a_host_whose_examination_was_cancelled_is_examined_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the run that first wanted it, whose client went away."""
    begun, tries = anyio.Event(), 0

    async def connect(self: Host, *, pull: bool) -> Probe:
        nonlocal tries
        tries += 1
        self.link = cast("Link", Connection())
        self.backend = cast("ContainerBackend", Connection())
        begun.set()
        if tries == 1:
            await anyio.sleep_forever()
        return Probe(backend="ssh", ok=True, summary="")

    monkeypatch.setattr(Host, "_connect", connect)
    host = Host(SshHost(destination="a", name="a"), settings(tmp_path))
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: host.connect(pull=False))
            await begun.wait()
            tasks.cancel_scope.cancel()
        await host.connect(pull=False)
    assert host.usable


async def test_nobody_waits_for_a_host_that_is_not_tried_again_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one that is connected, and whose engine does not answer."""
    backend = SshBackend(settings(tmp_path))
    one, other = backend.hosts
    one.link, one.backend = cast("Any", Connection()), cast("Any", Connection())
    one.probe = Probe(backend="ssh", ok=True, summary="")
    cast("Any", one.link).well = False
    other.probe = Probe(backend="ssh", ok=False, summary="b is down.")
    with anyio.fail_after(PATIENCE):
        other.retry_at = anyio.current_time() + 50
        with anyio.fail_after(5), pytest.raises(HostDownError, match="b is down"):
            async with backend.launch(spec(ECHO)):
                pass


def connected(host: Host) -> Connection:
    """Make a host one that can be used."""
    connection = Connection()
    host.link, host.backend = cast("Any", connection), cast("Any", connection)
    host.probe = Probe(backend="ssh", ok=True, summary="")
    return connection


async def test_each_of_several_that_wait_is_told_of_a_free_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the one that began to wait last."""

    @asynccontextmanager
    async def launch(self: Host, spec: object) -> AsyncIterator[str]:
        yield self.spec.name

    monkeypatch.setattr(Host, "launch", launch)
    monkeypatch.setattr(placing, "LOOK_SECONDS", PATIENCE)
    backend = SshBackend(settings(tmp_path))
    for host in backend.hosts:
        connected(host)
        host.used = host.spec.slots - 1

    async def use() -> None:
        async with backend.launch(spec(ECHO)):
            pass

    with anyio.fail_after(PATIENCE / 3):
        async with (
            anyio.create_task_group() as tasks,
            backend.launch(spec(ECHO)),
            backend.launch(spec(ECHO)),
        ):
            for _ in range(2):
                tasks.start_soon(use)
            await anyio.wait_all_tasks_blocked()


async def test_hosts_are_left_also_when_the_bridge_is_cancelled(tmp_path: Path) -> None:
    """Or their sandboxes would go on until its process has ended."""
    backend = SshBackend(settings(tmp_path))
    connections = [connected(host) for host in backend.hosts]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await backend.aclose()
    assert not any(connection.alive for connection in connections)


def remote(script: str) -> subprocess.Popen[bytes]:
    """Start what runs on a host once it is ready."""
    return subprocess.Popen(
        ["sh", "-c", f"echo {module.READY}; {script}"],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_a_host_is_left_once_it_has_removed_what_ran_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that takes longer than the next beat."""
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.01)
    done = tmp_path / "done"
    removal = f"for each in $(seq 200000); do :; done; touch {done}"
    process = remote(f'while [ -n "$(head -c 1)" ]; do echo; done; {removal}')
    link = Link(SshHost(destination="a", name="a"), "0", tmp_path / "a", process)
    assert link.begin()
    assert link.close() == 0
    assert done.exists()


def test_a_bridge_with_thousands_of_open_files_still_hears_its_hosts(tmp_path: Path) -> None:
    """Whatever number the connection's pipe has got."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        process = remote("exec cat")
        assert process.stdout is not None
        high = fcntl.fcntl(process.stdout, fcntl.F_DUPFD_CLOEXEC, 1024)
        process.stdout.close()
        process.stdout = os.fdopen(high, "rb", buffering=0)
        link = Link(SshHost(destination="a", name="a"), "0", tmp_path / "a", process)
        try:
            assert link.begin()
            assert link.latency > 0
        finally:
            link.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
