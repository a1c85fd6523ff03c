"""A cluster that lies, floods or says nothing: bounded errors of the bridge's own, and no hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.errors import BridgeError, SandboxLostError, SettingsError
from bridge.sandbox.kubernetes import backend as backend_module
from bridge.sandbox.kubernetes import cluster as cluster_module
from bridge.sandbox.kubernetes import pods
from bridge.sandbox.kubernetes.backend import KubernetesBackend, PodStream
from bridge.sandbox.kubernetes.cluster import find_config
from bridge.settings.kubernetes import Kubernetes
from tests.fakes.api_server import ApiServer
from tests.raised import raises_code
from tests.sandbox.kubernetes.rig import backend_on, echo

V1 = "client.authentication.k8s.io/v1"


ODD_POD = b'{"metadata": {"name": "a", "uid": "b", "resourceVersion": "1"}, "status": 3}'


@pytest.mark.parametrize("answer", [b"[]", b"3", b"{}", b"", b'{"items": 3}', b"<html>", ODD_POD])
async def test_an_answer_that_is_none_is_an_error_of_the_bridges(
    backend: KubernetesBackend, server: ApiServer, answer: bytes
) -> None:
    await echo(backend)
    server.answer = answer
    with pytest.raises(BridgeError):
        await echo(backend)
    with pytest.raises(BridgeError):
        await backend.reap()
    server.answer = None
    await echo(backend)


async def test_an_answer_without_end_is_cut_off(
    backend: KubernetesBackend, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MAX_ANSWER_BYTES", 100_000)
    await echo(backend)
    server.answer = b'{"items": ["' + b"x" * 200_000 + b'"]}'
    with pytest.raises(BridgeError, match="100,000"):
        await backend.reap()
    server.answer = None


async def test_a_pod_that_floods_in_place_of_its_first_step_is_given_up(
    backend: KubernetesBackend, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = 0
    receive = PodStream.receive

    async def count_bytes(self: PodStream) -> bytes:
        nonlocal heard
        data = await receive(self)
        heard += len(data)
        return data

    monkeypatch.setattr(PodStream, "receive", count_bytes)
    monkeypatch.setattr(backend_module, "CONFINE_SECONDS", 3.0)
    flood = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    monkeypatch.setattr(pods, "COMMAND", ("/usr/bin/python3", "-c", flood))
    with pytest.raises(BridgeError):
        await echo(backend)
    assert heard < 1_000_000


@pytest.mark.parametrize(
    "script",
    [
        "echo no json",
        "echo '{}'",
        "echo 3",
        """printf '{"status": {"clientCertificateData": "x"}}'""",
        "exit 1",
        "",
        "exec sleep 600",
    ],
)
async def test_a_plugin_that_gives_no_token_is_an_error_and_ended(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(cluster_module, "PLUGIN_SECONDS", 0.5 if "sleep" in script else 30.0)
    args = ["-c", f"echo $$ > {tmp_path}/pid; {script}"]
    plugin = {"apiVersion": V1, "command": "sh" if script else "/no/such/plugin", "args": args}
    async with backend_on(server, tmp_path, exec=plugin) as backend:
        with raises_code("cluster_refused"):
            await echo(backend)
    if script:
        pid = int((tmp_path / "pid").read_text())
        assert not await anyio.Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("text", ["{", "a: [", "- 1", "3", "users: 3", "\0"])
def test_a_kubeconfig_that_is_none_is_a_mistake_of_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SettingsError):
        find_config(Kubernetes(kubeconfig=path), {})


async def test_a_context_without_a_user_is_a_mistake_of_settings(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "current-context: a\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: a, context: {cluster: c}}]\n"
    )
    async with KubernetesBackend(Kubernetes(kubeconfig=path), environ={}) as backend:
        with pytest.raises(BridgeError):
            await echo(backend)


async def test_a_pod_that_was_replaced_before_the_bridge_spoke_to_it_is_not_used(
    backend: KubernetesBackend, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    confine = KubernetesBackend._confine

    async def replace(self: KubernetesBackend, *args: Any) -> None:
        await confine(self, *args)
        for path in list(server.objects):
            if "/pods/" in path:
                server.objects[path]["status"]["containerStatuses"][0]["restartCount"] = 1

    monkeypatch.setattr(KubernetesBackend, "_confine", replace)
    with pytest.raises(SandboxLostError):
        await echo(backend)
