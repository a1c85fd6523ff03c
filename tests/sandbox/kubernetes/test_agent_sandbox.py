"""Pods that agent-sandbox hands out, claimed through its real SDK.

The controller is played here: it gives a claim a pod, and takes the pod away with the claim.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from bridge.errors import CapacityError
from bridge.model import Limits
from bridge.sandbox.kubernetes import pod
from bridge.settings.kubernetes import Kubernetes
from tests.contract.programs import ECHO, read_exactly, spec
from tests.fakes.api_server import ApiServer, Document
from tests.sandbox.kubernetes.rig import PATIENCE, backend_on

CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/sandboxes/sandboxclaims"
POOL = Kubernetes(provider="agent-sandbox", warm_pool="python", room_seconds=3)


@asynccontextmanager
async def controller(server: ApiServer) -> AsyncIterator[list[Document]]:
    """Give every claim a pod of its own; yield the claims as they were asked for."""
    seen: list[Document] = []

    async def reconcile() -> None:
        while True:
            for path, claim in list(server.objects.items()):
                if path.startswith(CLAIMS) and "status" not in claim.get("done", {}):
                    claim["done"] = {"status": True}
                    seen.append(json.loads(json.dumps(claim)))
                    name = claim["metadata"]["name"].replace("claim", "pod")
                    template = pod.Template(settings=POOL, image="x", owner="agent-sandbox")
                    made = template.manifest(name, Limits(), "used")
                    owner = {"kind": "SandboxClaim", "uid": claim["metadata"]["uid"]}
                    made["metadata"]["ownerReferences"] = [owner]
                    server.create("/api/v1/namespaces/sandboxes/pods", made)
                    ready = {"type": "Ready", "status": "True", "reason": "DependenciesReady"}
                    claim["status"] = {"sandbox": {"name": name}, "conditions": [ready]}
                    server.put(path, claim)
            await server.changed()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reconcile)
        yield seen
        tasks.cancel_scope.cancel()


async def test_a_claimed_pod_runs_a_program_and_is_released(
    server: ApiServer, tmp_path: Path
) -> None:
    """The claim names the pool and a time after which the controller ends it by itself."""
    with anyio.fail_after(PATIENCE):
        async with controller(server) as claims, backend_on(server, tmp_path, POOL) as backend:
            async with backend.launch(spec(ECHO)) as sandbox:
                await sandbox.send(b"claimed")
                assert await read_exactly(sandbox, 7) == b"claimed"
            [claim] = claims
            assert claim["spec"]["warmPoolRef"] == {"name": "python"}
            assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
            assert server.pods == []
            assert not [path for path in server.objects if path.startswith(CLAIMS)]


async def test_a_pool_that_gives_nothing_is_waited_for_within_bounds(
    server: ApiServer, tmp_path: Path
) -> None:
    """The claim is taken back."""
    async with backend_on(server, tmp_path, POOL) as backend:
        with anyio.fail_after(PATIENCE), pytest.raises(CapacityError, match="agent-sandbox"):
            async with backend.launch(spec(ECHO)):
                pass
    assert not [path for path in server.objects if path.startswith(CLAIMS)]
