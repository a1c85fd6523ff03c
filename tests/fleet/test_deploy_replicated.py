"""`deploy/` with several bridges and a real PostgreSQL: updated, evicted, scaled under clients."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from scripts.fleet.cluster import Cluster
from tests.fleet.deploy_rig import (
    HOST,
    PATIENCE,
    VOLUME,
    Deployed,
    applied,
    client_of,
    forwarded,
    run,
    value,
)
from tests.fleet.rig import BRIDGE, NAMESPACE, wait_until
from tests.postgresql import LOGIN, Server

HOLD = """
await mcp_keeper.keep(id='before')
await mcp_keeper.hold(begun='/tmp/begun', until='/tmp/go')
await mcp_keeper.keep(id='after')
'whole'
"""

HOLD_SECONDS = 120
"""More than a rolling update takes."""

SETTINGS = f"runs = 2\ncall_timeout = {HOLD_SECONDS}"
"""At once in each bridge, so that few more wait for one."""


@pytest.fixture(scope="module")
def replicated(
    cluster: Cluster,
    deploy_images: None,
    postgresql_server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Deployed]:
    with postgresql_server.connected() as connection:
        connection.execute("CREATE DATABASE deployed")
    directory = tmp_path_factory.mktemp("replicated")
    place = tmp_path_factory.mktemp("volume")
    cluster.kubectl("apply", "-f", "-", stdin=VOLUME % ("ReadWriteMany", place))
    with forwarded(postgresql_server.port) as port:
        store = f"postgresql://{LOGIN}@{HOST}:{port}/deployed"
        with applied(cluster, "replicated", directory, settings=SETTINGS, store=store) as deployed:
            deployed.until_ready(2)
            yield deployed
    cluster.kubectl("delete", "pv", "state")
    with postgresql_server.connected() as connection:
        connection.execute("DROP DATABASE deployed WITH (FORCE)")


def name_at(deployed: Deployed, address: str) -> str:
    (found,) = [pod for pod in deployed.bridges() if pod["status"].get("podIP") == address]
    return str(found["metadata"]["name"])


def in_pod(deployed: Deployed, name: str, *words: str) -> str:
    return deployed.kubectl("exec", name, "-c", "bridge", "--", *words)


def has_begun(deployed: Deployed, name: str) -> bool:
    return "begun" in in_pod(deployed, name, "ls", "/tmp")


@asynccontextmanager
async def client(deployed: Deployed, turn: int = 0) -> AsyncIterator[Any]:
    addresses = await anyio.to_thread.run_sync(deployed.addresses)
    async with client_of(addresses[turn % len(addresses)]) as connected:
        yield connected


async def wait_in_thread(is_so: Any, what: str) -> None:
    """Wait in a thread, so that clients go on."""
    await anyio.to_thread.run_sync(lambda: wait_until(is_so, what, PATIENCE))


async def readiness(address: str) -> dict[str, Any]:
    async with httpx2.AsyncClient() as web:
        answer = await web.get(f"http://{address}:9090/readyz")
    return {"status": answer.status_code, **answer.json()}


async def test_a_rolling_update_loses_no_run_and_no_session(replicated: Deployed) -> None:
    first = replicated.until_ready(2)
    name, whole, numbers = name_at(replicated, first[0]), list[Any](), list[Any]()
    over = anyio.Event()

    async def hold() -> None:
        async with client_of(first[0]) as connected:
            # The client does this after a result otherwise, of a bridge that ended.
            await connected.list_tools()
            whole.append(await value(connected, HOLD, timeout=HOLD_SECONDS))

    async def go_on() -> None:
        while not over.is_set():
            async with client(replicated, len(numbers)) as connected:
                await connected.list_tools()
                numbers.append(await value(connected, f"{len(numbers)}"))

    async with client_of(first[0]) as connected:
        session = (await run(connected, "seen = [0]", session="work"))["session"]["id"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await wait_in_thread(lambda: has_begun(replicated, name), "the run is under way")
        tasks.start_soon(go_on)
        await anyio.to_thread.run_sync(
            replicated.kubectl, "rollout", "restart", f"deployment/{BRIDGE}"
        )
        while "draining" not in (told := await readiness(first[0]))["missing"]:  # noqa: ASYNC110
            await anyio.sleep(0.2)
        assert (told["status"], told["ready"]) == (503, False)
        assert first[0] not in replicated.addresses()
        await anyio.to_thread.run_sync(in_pod, replicated, name, "touch", "/tmp/go")
        await wait_in_thread(lambda: not {*first} & {*replicated.addresses()}, "both were replaced")
        over.set()
    assert whole == ["whole"]
    assert numbers == [*range(len(numbers))] != []
    for turn, address in enumerate(replicated.until_ready(2), 1):
        async with client_of(address) as connected:
            seen = await value(connected, f"seen.append({turn}); seen", session=session)
        assert seen == [*range(turn + 1)]


def test_an_eviction_leaves_one_that_is_ready(replicated: Deployed) -> None:
    replicated.until_ready(2)
    path = f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets/{BRIDGE}"

    def how_many_may_go() -> int:
        status = json.loads(replicated.cluster.request("GET", path))["status"]
        return int(status["disruptionsAllowed"])

    def evict(name: str) -> None:
        metadata = {"name": name, "namespace": NAMESPACE}
        asked = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": metadata}
        pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
        replicated.cluster.request("POST", f"{pod}/eviction", asked)

    wait_until(lambda: how_many_may_go() == 1, "one may be evicted", PATIENCE)
    one, other = (str(pod["metadata"]["name"]) for pod in replicated.bridges())
    evict(one)
    with pytest.raises(urllib.error.HTTPError) as refused:
        evict(other)
    assert refused.value.code == 429
    wait_until(lambda: how_many_may_go() == 1, "the other one may be evicted", PATIENCE)
