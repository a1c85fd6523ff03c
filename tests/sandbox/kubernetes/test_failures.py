"""How each failure of a cluster looks to the bridge: an error with its own code, and no pod left.

Mandated by design.md's law 2: the program failing is a result, the sandbox failing is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import anyio
import pytest

from bridge.errors import BridgeError, SandboxLostError
from bridge.sandbox.backend import DistantSandbox
from bridge.sandbox.kubernetes.backend import KubernetesBackend
from bridge.settings.kubernetes import Kubernetes
from tests.contract.programs import FOREVER, read_exactly, spec
from tests.fakes.api_server import ApiServer, Refusal
from tests.raised import raises_code
from tests.sandbox.kubernetes.rig import backend_on, echo
from tests.sandbox.process.rig import read_all


@pytest.mark.parametrize(
    ("said", "code", "remedy"),
    [
        ('pods "x" is forbidden: exceeded quota: pods, used: 10', "quota", ""),
        ('"x": must specify requests.cpu', "launch_failed", "[kubernetes]"),
        ("pods is forbidden", "cluster_refused", ""),
    ],
)
async def test_a_refusal_has_its_own_code_and_no_name_of_a_pod_in_what_programs_see(
    server: ApiServer, tmp_path: Path, said: str, code: str, remedy: str
) -> None:
    server.faults.create = [Refusal(403, "Forbidden", said)] * 10
    async with backend_on(server, tmp_path, Kubernetes(room_seconds=1)) as backend:
        with pytest.raises(BridgeError) as caught:
            await echo(backend)
    assert caught.value.code == code
    assert remedy in caught.value.remedy
    assert '"x"' not in caught.value.message
    assert said.split(": ")[-1] in caught.value.host_detail


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("ErrImageNeverPull", "image_missing"),
        *((each, "image_pull_failed") for each in ("ImagePullBackOff", "ErrImagePull")),
        *((each, "image_pull_failed") for each in ("InvalidImageName", "RegistryUnavailable")),
    ],
)
async def test_an_image_that_cannot_be_had_ends_the_wait_at_once(
    backend: KubernetesBackend, server: ApiServer, reason: str, code: str
) -> None:
    server.faults.waiting = {"reason": reason, "message": "the image x is not there"}
    with anyio.fail_after(4), raises_code(code, match="image x is not"):
        await echo(backend)


async def test_a_cluster_without_room_is_waited_for_within_bounds(
    server: ApiServer, tmp_path: Path
) -> None:
    server.nodes = {"a": 0, "b": 0}
    async with backend_on(server, tmp_path, Kubernetes(room_seconds=1)) as backend:
        with raises_code("no_room", match="0/2 nodes"):
            await echo(backend)


@pytest.mark.parametrize("times", [2, 3])
async def test_a_node_that_cannot_be_reached_costs_another_pod_and_no_run_but_not_for_ever(
    backend: KubernetesBackend, server: ApiServer, times: int
) -> None:
    server.faults.attach = [Refusal(500, "InternalError", "error dialing backend")] * times
    fails = pytest.raises(BridgeError, match="error dialing backend")
    with fails if times == 3 else nullcontext():
        await echo(backend)
    assert len({pod["metadata"]["name"] for pod in server.created_pods}) == 3


@pytest.mark.parametrize(
    ("end", "words", "code"),
    [
        (ApiServer.evict, r"\(Evicted\). low on memory", "sandbox_lost"),
        (partial(ApiServer.evict, reason="NodeShutdown"), r"\(NodeShutdown\)", "sandbox_lost"),
        (partial(ApiServer.evict, reason="DeadlineExceeded"), "Exceeded", "pod_deadline"),
        (ApiServer.remove, r"\(deleted\)", "sandbox_lost"),
        (ApiServer.drain, r"\((EvictionByEvictionAPI\). Eviction API|deleted)", "sandbox_lost"),
    ],
)
async def test_a_pod_that_the_cluster_ends_is_lost_in_the_clusters_words(
    backend: KubernetesBackend,
    server: ApiServer,
    end: Callable[[ApiServer, str], None],
    words: str,
    code: str,
) -> None:
    async with backend.launch(spec(FOREVER)) as sandbox:
        await read_exactly(sandbox, 6)
        end(server, sandbox.id)
        for ask in (sandbox.receive, sandbox.wait):
            with raises_code(code, match=words) as caught:
                await ask()
            assert "unchanged, with `retry_of`" in caught.value.remedy


async def test_a_node_that_says_nothing_is_lost_and_its_pod_not_called_deleted(
    backend: KubernetesBackend,
) -> None:
    async with backend.launch(spec(FOREVER)) as sandbox:
        await read_exactly(sandbox, 6)
        assert isinstance(sandbox, DistantSandbox)
        told = await sandbox.why_lost("no answer to 3 questions in a row")
        assert "or its node" in str(told)
        assert "no answer to 3" in str(told)
        # The bridge then deletes the pod, and so its stream breaks.
        await sandbox.kill()
        for ask in (sandbox.receive, sandbox.wait):
            with raises_code("sandbox_lost", match="or its node"):
                await ask()
        assert await sandbox.why_lost("broken") is told


async def test_out_of_memory_is_the_kubelets_word(
    backend: KubernetesBackend, server: ApiServer
) -> None:
    async with backend.launch(spec(FOREVER)) as sandbox:
        await read_exactly(sandbox, 6)
        server.kill(sandbox.id, reason="OOMKilled")
        assert await read_all(sandbox) == b""
        report = await sandbox.wait()
        assert (report.oom_killed, report.signal) == (True, 9)


async def test_an_exit_code_is_known_although_the_stream_reports_success(
    backend: KubernetesBackend,
) -> None:
    async with backend.launch(spec("import os; os._exit(7)")) as sandbox:
        assert await read_all(sandbox) == b""
        # As a run asks: it kills first, and wants to know all the same.
        await sandbox.kill()
        assert (await sandbox.wait()).exit_code == 7


async def test_a_server_that_restarts_breaks_the_stream_and_serves_the_next_run(
    backend: KubernetesBackend, server: ApiServer
) -> None:
    async with backend.launch(spec(FOREVER)) as sandbox:
        await read_exactly(sandbox, 6)
        await server.stop()
        with pytest.raises(SandboxLostError):
            await sandbox.receive()
        await server.start()
    await echo(backend)
    await backend.reap()


async def test_a_server_that_is_away_is_an_error_with_its_own_code(
    backend: KubernetesBackend, server: ApiServer
) -> None:
    await server.stop()
    with raises_code("cluster_down") as caught:
        await echo(backend)
    # A program may see the message; the address is for the user.
    assert str(server.port) not in caught.value.message
    assert server.url in caught.value.host_detail
    await server.start()


async def test_a_server_that_is_busy_while_a_pod_starts_is_asked_again(
    backend: KubernetesBackend, server: ApiServer
) -> None:
    server.faults.get_pod = [Refusal(503, "ServiceUnavailable", "try later")]
    await echo(backend)
    assert len(server.created_pods) == 1
    assert not server.faults.get_pod
