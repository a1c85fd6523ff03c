"""Whole runs on hosts: calls, files, sessions, and what a lost host does to a run."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.errors import SettingsError
from bridge.model import InputFile, RunRequest, RunResult
from bridge.runs import Engine, open_engine
from bridge.sandbox.selection import select_backend
from bridge.sandbox.ssh.backend import Host, SshBackend
from bridge.settings import Settings
from tests.engine_rig import ListFinder, workshop
from tests.ssh_rig import Fleet
from tests.waiting import until, until_exists

pytestmark = [
    pytest.mark.podman,
    pytest.mark.ssh,
    # The SDK forgets sockets that could not connect, until they are collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
async def engine(backend: SshBackend, hosts: Fleet, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine on the hosts, with one sandbox waiting."""

    async def choose(_: Settings) -> SshBackend:
        await backend.probe()
        return backend

    settings = replace(hosts.settings(tmp_path), warm=1)
    finder = ListFinder(workshop())
    async with open_engine(settings, finder=finder, choose_backend=choose) as opened:
        yield opened


async def run(engine: Engine, code: str, **fields: object) -> RunResult:
    with anyio.fail_after(90):
        return await engine.run(RunRequest(code=code, **fields))  # type: ignore[arg-type]


async def test_calls_files_and_sessions_work_as_on_this_machine(engine: Engine) -> None:
    """Nothing of them needs a directory of this machine."""
    code = (
        "open('out/b.txt', 'w').write(open('a.txt').read() * 2)\n"
        "(await mcp_work_shop.add(a=1, b=2))['sum']"
    )
    result = await run(engine, code, files=(InputFile(name="a.txt", data=b"x"),))
    assert (result.status, result.result) == ("success", 3), result
    assert [(one.name, one.size) for one in result.artifacts] == [("b.txt", 2)]
    assert result.isolation is not None
    assert (result.isolation.backend, result.isolation.weaker) == ("podman", ())
    assert (await run(engine, "kept = 41", session="s")).status == "success"
    assert (await run(engine, "kept + 1", session="s")).result == 42


async def test_a_host_lost_before_the_program_began_is_not_noticed(
    engine: Engine, backend: SshBackend, hosts: Fleet
) -> None:
    """The sandbox that waited there is not used."""
    assert (await run(engine, "1")).result == 1
    for _ in range(2):
        lost = next((one for one in hosts.hosts if one.server and one.containers()), None)
        if lost is None:
            break
        lost.go_down()
        assert (await run(engine, "2")).result == 2
        lost.start()
        # It may have been tried in vain more than once meanwhile.
        await until(lambda: all(map(may_be_tried, backend.hosts)))


def may_be_tried(host: Host) -> bool:
    return host.connected or host.retry_at <= anyio.current_time()


async def test_a_host_lost_after_a_call_is_an_error_and_nothing_is_repeated(
    engine: Engine, hosts: Fleet, tmp_path: Path
) -> None:
    """Neither the program nor its call; what it had printed is kept."""
    started = tmp_path / "started"
    code = (
        "print('so far', flush=True)\n"
        f"await mcp_work_shop.slow(started={str(started)!r}, cancelled={str(tmp_path / 'c')!r})"
    )
    results: list[RunResult] = []

    async def keep() -> None:
        results.append(await run(engine, code, timeout=60))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep)
        await until_exists(started)
        started.unlink()
        for host in hosts.hosts:
            host.signal_connections(signal.SIGKILL)
    [result] = results
    assert (result.status, result.reason, result.code) == ("error", "engine", "sandbox_lost")
    assert "does not answer any more" in result.summary
    assert (result.stdout, result.usage.tool_calls) == ("so far\n", 1)
    assert not started.exists()


async def test_what_hosts_cannot_have_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """A runtime without hosts, too."""
    with pytest.raises(SettingsError, match="ssh needs hosts"):
        await select_backend(Settings(runtime="ssh", state_dir=tmp_path))
