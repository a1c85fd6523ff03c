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
from bridge.sandbox.kubernetes import pods
from bridge.sandbox.kubernetes.backend import KubernetesBackend
from bridge.sandbox.kubernetes.pods import share
from bridge.settings.kubernetes import Kubernetes
from tests.contract.programs import ECHO, FOREVER, read_exactly, spec
from tests.fakes.api_server import ApiServer, Refusal
from tests.raised import raises_code
from tests.sandbox.kubernetes.rig import backend_on, echo

WARM = Kubernetes(warm=2, room_seconds=5)


def states(server: ApiServer) -> list[str]:
    return sorted(
        pod["metadata"]["labels"]["mcp-code-bridge.org/state"]
        for path, pod in server.objects.items()
        if "/pods/" in path and pod["status"]["phase"] == "Running"
    )


async def until(server: ApiServer, wanted: list[str]) -> None:
    while states(server) != wanted:
        await server.changed()


@asynccontextmanager
async def tended(
    server: ApiServer, directory: Path, table: Kubernetes = WARM
) -> AsyncIterator[KubernetesBackend]:
    await anyio.Path(directory).mkdir(exist_ok=True)
    async with backend_on(server, directory, table) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(backend.tend, anyio.lowlevel.checkpoint)
        yield backend
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def warmed(
    server: ApiServer, directory: Path
) -> AsyncIterator[tuple[KubernetesBackend, set[str]]]:
    async with tended(server, directory) as backend:
        await echo(backend)
        await until(server, ["warm", "warm"])
        yield backend, set(server.pods)


@pytest.fixture
async def pair(
    request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path
) -> AsyncIterator[tuple[KubernetesBackend, KubernetesBackend]]:
    """Give two bridges, the second with other settings if the test names some."""
    other = replace(WARM, **getattr(request, "param", {}))
    async with (
        tended(server, tmp_path / "one") as one,
        tended(server, tmp_path / "two", other) as two,
    ):
        await one.reap()
        await two.reap()
        yield one, two


@pytest.mark.slow
async def test_a_run_takes_a_pod_that_waits_and_another_one_is_started(
    server: ApiServer, tmp_path: Path
) -> None:
    async with tended(server, tmp_path) as backend:
        first = await echo(backend)
        await until(server, ["warm", "warm"])
        waiting = set(server.pods)
        second = await echo(backend)
        assert first not in waiting
        assert second in waiting
        await until(server, ["warm", "warm"])
        assert second not in server.pods


async def test_runs_with_other_limits_get_a_pod_of_their_own(
    server: ApiServer, tmp_path: Path
) -> None:
    async with warmed(server, tmp_path) as (backend, waiting):
        other = spec(ECHO, limits=replace(Limits(), memory_bytes=2**28))
        async with backend.launch(other) as sandbox:
            assert sandbox.id not in waiting


@pytest.mark.slow
async def test_two_bridges_share_what_waits_and_may_take_each_others(
    server: ApiServer, pair: tuple[KubernetesBackend, KubernetesBackend]
) -> None:
    one, two = pair
    await echo(one)
    await echo(two)
    await until(server, ["warm", "warm"])
    async with two.launch(spec(FOREVER)) as a, two.launch(spec(FOREVER)) as b:
        assert a.id != b.id


async def test_a_pod_taken_by_another_in_between_is_left_to_it(
    server: ApiServer, tmp_path: Path
) -> None:
    async with warmed(server, tmp_path) as (backend, waiting):
        server.faults.patch_pods = [Refusal(409, "Conflict", "it has been modified")]
        assert await echo(backend) in waiting


@pytest.mark.parametrize(
    "renewed", ["2020-01-01T00:00:00.000000Z", "0000-01-01T00:00:00Z", "9999-01-01T00:00:00Z"]
)
async def test_pods_of_a_bridge_that_died_are_deleted_by_the_next(
    backend: KubernetesBackend, server: ApiServer, renewed: str
) -> None:
    server.put_pod("of-a-dead-one", owner="bridge-dead")
    server.put_lease("bridge-dead", renewed)
    async with backend.launch(spec(FOREVER)) as sandbox:
        assert await backend.reap() == 1
        assert server.pods == [sandbox.id]
        assert await backend.reap() == 0
    await backend.aclose()
    assert server.leases == []


@pytest.mark.parametrize(
    ("owner", "service"), [("bridge-dead", "others"), ("bridge-living", "default")]
)
async def test_what_another_service_or_a_living_bridge_has_is_left_alone_by_any_clock(
    backend: KubernetesBackend, server: ApiServer, owner: str, service: str
) -> None:
    server.behind = timedelta(hours=1)
    server.put_lease("bridge-living", server.now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    server.put_pod("of-another", owner=owner, service=service)
    assert await backend.reap() == 0
    assert server.pods == ["of-another"]
    server.remove("of-another")


async def test_a_server_that_is_away_is_known_and_its_return_as_well(
    server: ApiServer, tmp_path: Path
) -> None:
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
    assert [share(7, ["a", "b", "c"], name) for name in "abcd"] == [3, 2, 2, 0]
    assert share(1, ["a"], "a") == 1


async def test_no_bridge_deletes_the_first_pod_of_another_one(
    backend: KubernetesBackend, server: ApiServer, tmp_path: Path
) -> None:
    async with backend_on(server, tmp_path) as other, backend.launch(spec(ECHO)) as sandbox:
        assert await other.reap() == 0
        await sandbox.send(b"here")
        assert await read_exactly(sandbox, 4) == b"here"


async def test_a_pod_taken_while_it_is_swept_is_left_to_who_took_it(
    backend: KubernetesBackend, server: ApiServer
) -> None:
    server.put_pod("taken", owner="bridge-dead")
    taken = server.objects["/api/v1/namespaces/sandboxes/pods/taken"]
    server.slow_delete = lambda name: server.put(f"/api/v1/namespaces/sandboxes/pods/{name}", taken)
    await backend.reap()
    assert server.pods == ["taken"]
    server.slow_delete = lambda _: None
    await backend.reap()
    assert server.pods == []


async def test_a_bridge_that_starts_while_another_sweeps_keeps_its_first_pod(
    backend: KubernetesBackend, server: ApiServer
) -> None:
    def start_another(path: str) -> None:
        if path.endswith("/leases") and "new" not in server.pods:
            server.put_lease("bridge-new", server.now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
            server.put_pod("new", owner="bridge-new")

    await backend.reap()
    server.on_list = start_another
    assert await backend.reap() == 0
    assert server.pods == ["new"]
    server.on_list = lambda _: None
    server.remove("new")


@pytest.mark.parametrize(
    "pair", [{"runtime_class": "gvisor"}, {"seccomp": "localhost/own.json"}], indirect=True
)
async def test_a_pod_made_with_other_settings_is_no_pod_for_this_bridge(
    server: ApiServer, pair: tuple[KubernetesBackend, KubernetesBackend]
) -> None:
    await echo(pair[0])
    await until(server, ["warm"])
    waiting = set(server.pods)
    assert await echo(pair[1]) not in waiting


async def test_a_quota_without_room_for_waiting_pods_costs_no_lease_and_no_readiness(
    server: ApiServer, tmp_path: Path
) -> None:
    """Otherwise all bridges of a busy service would stop, and delete each other's pods."""
    full = Refusal(403, "Forbidden", "exceeded quota: pods")
    async with warmed(server, tmp_path) as (backend, _):
        server.faults.create = [full] * 50
        await echo(backend)
        while len(server.faults.create) == 50:
            await server.changed()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert await backend.problem() == ""


def test_a_lease_outlives_the_longest_pause_between_renewals() -> None:
    assert 2 * pods.LOOK_SECONDS < pods.LEASE_SECONDS - 10


async def test_a_look_that_hangs_does_not_keep_the_lease_from_renewal(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(pods, "TEND_SECONDS", 0.1)
    renewed = 0

    async def hang(self: Any) -> None:
        nonlocal renewed
        await self.renew()
        renewed += 1
        await anyio.sleep_forever()

    monkeypatch.setattr(pods.WarmPods, "_look", hang)
    async with tended(server, tmp_path):
        while renewed < 3:
            await server.changed()
