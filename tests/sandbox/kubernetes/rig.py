"""A cluster of this process's own, and backends on it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.sandbox.kubernetes.backend import KubernetesBackend
from bridge.settings.kubernetes import Kubernetes
from tests.contract.programs import ECHO, read_exactly, spec
from tests.fakes.api_server import ApiServer


def kubeconfig(server: ApiServer, directory: Path, **user: Any) -> Path:
    path = directory / "kubeconfig"
    path.write_text(json.dumps(server.kubeconfig(**user)))
    return path


@asynccontextmanager
async def backend_on(
    server: ApiServer, directory: Path, table: Kubernetes | None = None, **user: Any
) -> AsyncIterator[KubernetesBackend]:
    settings = replace(
        table or Kubernetes(room_seconds=5), kubeconfig=kubeconfig(server, directory, **user)
    )
    async with KubernetesBackend(settings, environ={}) as backend:
        yield backend


async def echo(backend: KubernetesBackend) -> str:
    async with backend.launch(spec(ECHO)) as sandbox:
        await sandbox.send(b"hello")
        assert await read_exactly(sandbox, 5) == b"hello"
        return sandbox.id
