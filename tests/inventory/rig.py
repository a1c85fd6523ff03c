"""Servers whose tools are listed, without an engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from bridge.inventory.inventory import ToolCache
from bridge.inventory.servers import Servers
from bridge.model import ServerSpec
from bridge.store import Store
from bridge.upstream.pool import Pool
from tests.engine_rig import WORKSHOP, ListFinder, workshop


def raw(name: str, mode: str = "", **env: str) -> ServerSpec:
    return replace(workshop(name), args=(str(WORKSHOP.with_name("raw.py")), mode), env=env)


@asynccontextmanager
async def open_servers(
    directory: Path, *specs: ServerSpec, finder: ListFinder | None = None, **seconds: float
) -> AsyncIterator[Servers]:
    environ = {**os.environ, "PID_FILE": str(directory / "pids")}
    pool = Pool((), log_dir=directory / "logs", environ=environ, start_timeout=1000.0)
    options: Any = {"straggler_seconds": 20.0, "failure_seconds": 1000.0, **seconds}
    servers = Servers(finder or ListFinder(*specs), pool, ToolCache(Store(directory)), **options)
    with anyio.fail_after(60):
        async with servers:
            yield servers


def starts(directory: Path) -> int:
    file = directory / "pids"
    return len(file.read_text().split()) if file.exists() else 0
