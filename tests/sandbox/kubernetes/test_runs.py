"""Whole runs in pods: programs with calls, sessions, and a run whose pod is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bridge.model import Json, RunRequest
from bridge.render.text import compact
from bridge.runs import Engine, open_engine
from bridge.sandbox.kubernetes.pods import SAFE_TO_EVICT
from bridge.sandbox.pool import CLUSTER_STARTS
from bridge.sandbox.selection import select_present
from bridge.settings import load
from tests.engine_rig import ListFinder, workshop
from tests.fakes.api_server import V4, V5, ApiServer, Refusal
from tests.fakes.client import FakeClient
from tests.sandbox.kubernetes.rig import kubeconfig
from tests.waiting import until

both = pytest.mark.parametrize("server", [V5, V4], indirect=True)


@pytest.fixture
async def engine(server: ApiServer, tmp_path: Path) -> AsyncIterator[Engine]:
    async with _engine_on(server, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def _engine_on(server: ApiServer, tmp_path: Path, *more: str) -> AsyncIterator[Engine]:
    config = tmp_path / "config.toml"
    table = (f'kubeconfig = "{kubeconfig(server, tmp_path)}"', *more)
    config.write_text("\n".join(("[kubernetes]", *table)))
    config.chmod(0o600)
    environ = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state"),
        "MCP_BRIDGE_CONFIG": str(config),
        "MCP_BRIDGE_RUNTIME": "kubernetes",
        "MCP_BRIDGE_WARM": "0",
    }
    settings = load({}, environ)
    finder = ListFinder(workshop())
    async with open_engine(settings, finder=finder, choose_backend=select_present) as opened:
        yield opened


@both
async def test_a_program_in_a_pod_calls_tools(engine: Engine) -> None:
    code = "got = await mcp_work_shop.big(size=200_000)\nprint(len(got))"
    result = await engine.run(RunRequest(code=code))
    assert (result.status, result.stdout) == ("success", "200000\n"), result.error
    assert result.isolation is not None
    assert "network-calls-refused" in result.isolation.verified


@both
async def test_a_session_keeps_its_pod(engine: Engine, server: ApiServer) -> None:
    await engine.run(RunRequest(code="kept = 41", session="s"))
    [name] = server.pods
    result = await engine.run(RunRequest(code="kept + 1", session="s"))
    assert result.result == 42
    assert server.pods == [name]


class Evicting(FakeClient):
    """A client in whose time the cluster ends the pod, once the program has printed something."""

    def __init__(self, server: ApiServer, end: Callable[[ApiServer, str], None]) -> None:
        super().__init__(wants_output=True)
        self._server, self._end = server, end

    async def log(self, level: str, source: str, data: Json) -> None:
        for name in self._server.pods:
            self._end(self._server, name)


@both
@pytest.mark.parametrize("end", [ApiServer.evict, ApiServer.drain, ApiServer.remove])
async def test_a_run_whose_pod_the_cluster_ends_is_lost_and_not_repeated_once_it_made_a_call(
    engine: Engine, server: ApiServer, end: Callable[[ApiServer, str], None]
) -> None:
    code = (
        "print((await mcp_work_shop.add(a=1, b=2)), flush=True)\n"
        "import asyncio\nawait asyncio.sleep(3600)"
    )
    result = await engine.run(RunRequest(code=code), Evicting(server, end))
    assert (result.status, result.reason, result.stdout) == ("error", "engine", "{'sum': 3}\n")
    assert result.code == "sandbox_lost"
    assert "The cluster ended the pod (" in result.error
    assert "unchanged, with `retry_of`" in result.error
    assert f'The same code with retry_of="{result.run_id}"' in compact(result)
    assert result.usage.tool_calls == 1
    used = [pod for pod in server.created_pods if "probe" not in pod["metadata"]["name"]]
    assert len(used) == 1


async def _run_at_once(engine: Engine, count: int) -> tuple[set[object], int]:
    """Return the results of runs, and the most that waited."""
    results, waited = [], 0

    async def run(number: int) -> None:
        nonlocal waited
        request = RunRequest(code=str(number), owner=f"owner-{number % 7}")
        results.append((await engine.run(request)).result)
        waited = max(waited, engine.queue.waiting)

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(run, number)
    await until(lambda: (engine.queue.taken, engine.queue.waiting) == (0, 0))
    return set(results), waited


@pytest.mark.parametrize("readable", [True, False])
async def test_runs_wait_for_a_quota_and_all_succeed(
    server: ApiServer, tmp_path: Path, readable: bool
) -> None:
    server.put_quota(3)
    if not readable:
        server.faults.list_quotas = Refusal(403, "Forbidden", "resourcequotas is forbidden")
    async with _engine_on(server, tmp_path, "room_seconds = 1") as engine:
        results, waited = await _run_at_once(engine, 12)
        assert engine.sandboxes.capacity == (3 if readable else None)
    assert results == set(range(12))
    assert waited >= 8
    assert server.refused
    for pod in server.created_pods:
        assert pod["metadata"]["annotations"][SAFE_TO_EVICT] == "false"


@pytest.mark.slow
async def test_a_hundred_runs_on_two_small_nodes_all_succeed(
    server: ApiServer, tmp_path: Path
) -> None:
    server.nodes = {"a": 4, "b": 4}
    # Longer than a pod takes to start, and shorter than all pods.
    async with _engine_on(server, tmp_path, "room_seconds = 5") as engine:
        results, waited = await _run_at_once(engine, 100)
    assert results == set(range(100))
    assert waited > 80
    assert 1 < server.most_pending <= CLUSTER_STARTS
