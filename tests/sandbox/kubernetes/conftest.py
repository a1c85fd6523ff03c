"""Fixtures: a cluster that speaks the newer attach protocol or the one asked for, and a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.sandbox.kubernetes.backend import KubernetesBackend
from tests.fakes.api_server import V5, ApiServer
from tests.sandbox.kubernetes.rig import backend_on


@pytest.fixture
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    async with ApiServer(protocols=(getattr(request, "param", V5),)).serving() as made:
        yield made
        assert made.pods == []


@pytest.fixture
async def backend(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubernetesBackend]:
    async with backend_on(server, tmp_path) as made:
        yield made
