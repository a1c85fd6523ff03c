"""`deploy/` on the cluster: bridges in pods, their gateways, and clients that come through them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from scripts.fleet.cluster import Cluster
from tests.fleet.deploy_rig import (
    OTHER_TOKEN,
    PATIENCE,
    TOKEN,
    VOLUME,
    Deployed,
    applied,
    client_of,
    run,
    value,
)
from tests.fleet.rig import wait_until

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@pytest.fixture(scope="module")
def single(
    cluster: Cluster, deploy_images: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    place = tmp_path_factory.mktemp("volume")
    cluster.kubectl("apply", "-f", "-", stdin=VOLUME % ("ReadWriteOnce", place))
    with applied(cluster, "single", tmp_path_factory.mktemp("single")) as deployed:
        deployed.until_ready(1)
        yield deployed
    cluster.kubectl("delete", "pv", "state")


async def test_a_client_runs_a_program_that_calls_a_server_of_the_bridges_pod(
    single: Deployed,
) -> None:
    (bridge,) = single.bridges()
    (address,) = single.addresses()
    name = str(bridge["metadata"]["name"])
    for token in (TOKEN, OTHER_TOKEN):
        wait_until(lambda: bool(single.sandboxes()), "a sandbox waits", PATIENCE)
        before = _uids(single)
        async with client_of(address, token) as client:
            assert await value(client, "await mcp_keeper.keep(id='one')\n6 * 7") == 42
        # Each is used once: the one of this run goes.
        wait_until(lambda: before - _uids(single) != set(), "its pod is gone", PATIENCE)  # noqa: B023
    assert single.kubectl("exec", name, "-c", "bridge", "--", "cat", "/tmp/kept") == "one\none\n"
    wait_until(lambda: bool(single.sandboxes()), "a sandbox waits", PATIENCE)
    assert _owners(single) == {bridge["metadata"]["uid"]}


def _uids(deployed: Deployed) -> set[str]:
    return {str(pod["metadata"]["uid"]) for pod in deployed.sandboxes()}


@pytest.mark.parametrize("credential", ["", "Bearer", "Bearer wrong", "Basic YWxpY2U6"])
async def test_the_gateway_lets_no_one_in_without_a_token(
    single: Deployed, credential: str
) -> None:
    (address,) = single.addresses()
    headers = {"authorization": credential} if credential else {}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as web:
        for path in ("/mcp", "/metrics", "/readyz", "/"):
            answer = await web.post(f"http://{address}:8080{path}", json=HELLO)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        numbers = await web.get(f"http://{address}:9090/metrics")
        assert "mcp_code_bridge_runs_queued 0" in numbers.text.splitlines()
        assert (await web.get(f"http://{address}:9090/readyz")).json()["ready"] is True
        assert (await web.post(f"http://{address}:9090/mcp", json=HELLO)).status_code == 404


async def test_a_session_outlives_the_pod_that_had_it(single: Deployed) -> None:
    (old,) = single.bridges()
    async with client_of(single.addresses()[0]) as client:
        session = (await run(client, "x = 40", session="work"))["session"]["id"]
    single.kubectl("delete", "pod", str(old["metadata"]["name"]))
    wait_until(lambda: bool(single.bridges()), "there is another pod", PATIENCE)
    (address,) = single.until_ready(1)
    async with client_of(address) as client:
        assert await value(client, "x + 2", session=session) == 42
    gone = old["metadata"]["uid"]
    wait_until(lambda: gone not in _owners(single), "the old one's sandboxes are gone", PATIENCE)


def _owners(deployed: Deployed) -> set[str]:
    found = (pod["metadata"].get("ownerReferences", ()) for pod in deployed.sandboxes())
    return {str(one["uid"]) for each in found for one in each}
