"""Pods that wait: each used once, shared by replicas, and gone with the last of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bridge.model import Limits
from bridge.sandbox.kubernetes import warm
from bridge.sandbox.kubernetes.backend import KubernetesBackend
from bridge.sandbox.kubernetes.warm import share
from bridge.settings.kubernetes import Kubernetes
from tests.contract.programs import ECHO, FOREVER, read_exactly, spec
from tests.fakes.api_server import ApiServer, Refusal
from tests.raised import raises_code
from tests.sandbox.kubernetes.rig import PATIENCE, backend_on, echo

WARM = Kubernetes(warm=2, room_seconds=5)


def states(server: ApiServer) -> list[str]:
    return sorted(
        pod["metadata"]["labels"]["mcp-code-bridge.org/state"]
        for path, pod in server.objects.items()
        if "/pods/" in path and pod["status"]["phase"] == "Running"
    )


async def until(server: ApiServer, wanted: list[str]) -> None:
    """Wait until the running pods have these states."""
    while states(server) != wanted:
        await server.changed()


@asynccontextmanager
async def tended(
    server: ApiServer, directory: Path, table: Kubernetes = WARM
) -> AsyncIterator[KubernetesBackend]:
    await anyio.Path(directory).mkdir(exist_ok=True)

    async def drain() -> None:
        return None

    async with backend_on(server, directory, table) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(backend.tend, drain)
        yield backend
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def warmed(
    server: ApiServer, directory: Path
) -> AsyncIterator[tuple[KubernetesBackend, set[str]]]:
    """Yield a backend and the pods that wait, after a first run."""
    async with tended(server, directory) as backend:
        await echo(backend)
        await until(server, ["warm", "warm"])
        yield backend, set(server.pods)


@pytest.mark.slow
async def test_a_run_takes_a_pod_that_waits_and_another_one_is_started(
    server: ApiServer, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        async with tended(server, tmp_path) as backend:
            first = await echo(backend)
            await until(server, ["warm", "warm"])
            waiting = set(server.pods)
            second = await echo(backend)
            assert first not in waiting
            assert second in waiting
            await until(server, ["warm", "warm"])
            assert second not in server.pods
    assert server.pods == []


async def test_runs_with_other_limits_get_a_pod_of_their_own(
    server: ApiServer, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        async with warmed(server, tmp_path) as (backend, waiting):
            other = spec(ECHO, limits=replace(Limits(), memory_bytes=2**28))
            async with backend.launch(other) as sandbox:
                assert sandbox.id not in waiting


@pytest.mark.slow
async def test_two_bridges_share_what_waits_and_may_take_each_others(
    server: ApiServer, tmp_path: Path
) -> None:
    """A pod goes to one of them; together they keep what one would."""
    with anyio.fail_after(PATIENCE):
        async with (
            tended(server, tmp_path / "one") as one,
            tended(server, tmp_path / "two") as two,
        ):
            await one.reap()
            await two.reap()
            await echo(one)
            await echo(two)
            await until(server, ["warm", "warm"])
            async with two.launch(spec(FOREVER)) as a, two.launch(spec(FOREVER)) as b:
                assert a.id != b.id
    assert server.pods == []


async def test_a_pod_taken_by_another_in_between_is_left_to_it(
    server: ApiServer, tmp_path: Path
) -> None:
    """The cluster says so (409), and the next one is tried."""
    with anyio.fail_after(PATIENCE):
        async with warmed(server, tmp_path) as (backend, waiting):
            server.faults.patch_pods = [Refusal(409, "Conflict", "it has been modified")]
            assert await echo(backend) in waiting


async def test_pods_of_a_bridge_that_died_are_deleted_by_the_next(
    server: ApiServer, tmp_path: Path
) -> None:
    server.put_pod("of-a-dead-one", owner="bridge-dead")
    server.put_lease("bridge-dead", "2020-01-01T00:00:00.000000Z")
    with anyio.fail_after(PATIENCE):
        async with (
            backend_on(server, tmp_path) as backend,
            backend.launch(spec(FOREVER)) as sandbox,
        ):
            assert await backend.reap() == 1
            assert server.pods == [sandbox.id]
            assert await backend.reap() == 0
    assert server.leases == []


async def test_what_another_service_has_is_left_alone(server: ApiServer, tmp_path: Path) -> None:
    server.put_pod("of-others", owner="bridge-dead", service="others")
    with anyio.fail_after(PATIENCE):
        async with backend_on(server, tmp_path) as backend:
            assert await backend.reap() == 0
    assert server.pods == ["of-others"]
    server.remove("of-others")


async def test_a_server_that_is_away_is_known_and_its_return_as_well(
    server: ApiServer, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        async with warmed(server, tmp_path) as (backend, _):
            await server.stop()
            with raises_code("cluster_down"):
                await echo(backend)
            while "does not answer" not in await backend.problem():
                await anyio.lowlevel.checkpoint()
            await server.start()
            await echo(backend)
            while await backend.problem():
                await anyio.lowlevel.checkpoint()


def test_every_replica_starts_its_part() -> None:
    """Together as many as one would; a replica whose lease is not seen starts none."""
    bridges: Any = ["a", "b", "c"]
    assert [share(7, bridges, name) for name in bridges] == [3, 2, 2]
    assert share(7, bridges, "d") == 0
    assert share(1, ["a"], "a") == 1


async def test_no_bridge_deletes_the_first_pod_of_another_one(
    server: ApiServer, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        await anyio.Path(tmp_path / name).mkdir()
    with anyio.fail_after(PATIENCE):
        async with (
            backend_on(server, tmp_path / "one") as one,
            backend_on(server, tmp_path / "two") as two,
            one.launch(spec(ECHO)) as sandbox,
        ):
            assert await two.reap() == 0
            await sandbox.send(b"here")
            assert await read_exactly(sandbox, 4) == b"here"


async def test_a_pod_taken_while_it_is_swept_is_left_to_who_took_it(
    server: ApiServer, tmp_path: Path
) -> None:
    server.put_pod("taken", owner="bridge-dead")
    taken = server.objects["/api/v1/namespaces/sandboxes/pods/taken"]
    server.slow_delete = lambda name: server.put(f"/api/v1/namespaces/sandboxes/pods/{name}", taken)
    with anyio.fail_after(PATIENCE):
        async with backend_on(server, tmp_path) as backend:
            await backend.reap()
            assert server.pods == ["taken"]
            server.slow_delete = lambda _: None
            await backend.reap()
    assert server.pods == []


async def test_a_bridge_that_starts_while_another_sweeps_keeps_its_first_pod(
    server: ApiServer, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        async with backend_on(server, tmp_path) as backend:
            await backend.reap()

            def listed(path: str) -> None:
                if path.endswith("/leases") and "new" not in server.pods:
                    now = server.now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                    server.put_lease("bridge-new", now)
                    server.put_pod("new", owner="bridge-new")

            server.on_list = listed
            assert await backend.reap() == 0
            assert server.pods == ["new"]
            server.on_list = lambda _: None
            server.remove("new")


@pytest.mark.parametrize(
    "other",
    [{"runtime_class": "gvisor"}, {"seccomp": "localhost/own.json"}],
)
async def test_a_pod_made_with_other_settings_is_no_pod_for_this_bridge(
    server: ApiServer, tmp_path: Path, other: dict[str, Any]
) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            tended(server, tmp_path / "one") as one,
            tended(server, tmp_path / "two", replace(WARM, **other)) as two,
        ):
            await one.reap()
            await two.reap()
            await echo(one)
            await until(server, ["warm"])
            waiting = set(server.pods)
            assert await echo(two) not in waiting


async def test_a_bridge_whose_clock_goes_ahead_leaves_living_bridges_alone(
    server: ApiServer, tmp_path: Path
) -> None:
    server.behind = timedelta(hours=1)
    server.put_lease("bridge-other", server.now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    server.put_pod("of-another", owner="bridge-other")
    with anyio.fail_after(PATIENCE):
        async with backend_on(server, tmp_path) as backend:
            assert await backend.reap() == 0
            assert server.pods == ["of-another"]
    server.remove("of-another")


async def test_a_quota_without_room_for_waiting_pods_costs_no_lease_and_no_readiness(
    server: ApiServer, tmp_path: Path
) -> None:
    """Otherwise all bridges of a busy service would stop, and delete each other's pods."""
    full = Refusal(403, "Forbidden", "exceeded quota: pods")
    with anyio.fail_after(PATIENCE):
        async with warmed(server, tmp_path) as (backend, _):
            server.faults.create = [full] * 50
            await echo(backend)
            while len(server.faults.create) == 50:
                await server.changed()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert await backend.problem() == ""


def test_a_lease_outlives_the_longest_pause_between_renewals() -> None:
    assert 2 * warm.LOOK_SECONDS < warm.LEASE_SECONDS - 10


async def test_a_look_that_hangs_does_not_keep_the_lease_from_renewal(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(warm, "TEND_SECONDS", 0.1)
    renewed = 0

    async def hang(self: Any) -> None:
        nonlocal renewed
        await self.renew()
        renewed += 1
        await anyio.sleep_forever()

    monkeypatch.setattr(warm.WarmPods, "_look", hang)
    with anyio.fail_after(PATIENCE):
        async with tended(server, tmp_path):
            while renewed < 3:
                await server.changed()


@pytest.mark.parametrize("renewed", ["0000-01-01T00:00:00Z", "9999-01-01T00:00:00Z"])
async def test_a_lease_of_an_impossible_time_is_a_dead_bridges(
    server: ApiServer, tmp_path: Path, renewed: str
) -> None:
    server.put_lease("bridge-odd", renewed)
    server.put_pod("odd", owner="bridge-odd")
    with anyio.fail_after(PATIENCE):
        async with backend_on(server, tmp_path) as backend:
            assert await backend.reap() == 1
    assert (server.pods, server.leases) == ([], [])
