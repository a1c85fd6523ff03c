"""A sandbox's start and frames hold no run's data and no way to servers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from bridge.model import RunRequest, ServerSpec
from bridge.runs.program import GRACE_SECONDS
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import Tap

SECRETS = ("secret-env", "secret-argument", "secret-header", "secret-place", "127.0.0.1")

ALL_THAT_IS_KNOWN = """
import json, os
everything = [
    await runtime.list_servers(), runtime.discovered_servers(detailed=True),
    runtime.describe_server("work-shop"), runtime.describe_server("remote"),
    runtime.list_loaded_server_metadata(), runtime.capability_summary(),
    await runtime.query_tool_docs("work-shop", detail="full"), repr(mcp_work_shop),
    await runtime.list_tools("work-shop"), dict(os.environ),
    await runtime.search_tool_docs("add", detail="full"),
]
len(json.dumps(everything))
"""


async def _results(
    settings: Settings, backend: Tap, specs: tuple[ServerSpec, ...], *codes: str
) -> list[Any]:
    async with engine_on(backend, settings, finder=ListFinder(*specs)) as engine:
        with anyio.fail_after(120):
            results = [await engine.run(RunRequest(code=code, timeout=1)) for code in codes]
    assert [result.error for result in results] == [""] * len(codes)
    return [result.result for result in results]


async def test_a_sandbox_receives_no_way_to_reach_servers(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "secret-place").mkdir()
    local = replace(
        workshop(),
        args=(*workshop().args, "secret-argument"),
        env={"TOKEN": "secret-env"},
        cwd=str(tmp_path / "secret-place"),
    )
    remote = replace(
        workshop("remote"),
        transport="http",
        command="",
        args=(),
        url="http://127.0.0.1:9/secret-place",
        headers={"X": "secret-header"},
    )
    backend = Tap()
    size, _ = await _results(settings, backend, (local, remote), ALL_THAT_IS_KNOWN, "print(1)")
    assert size > 1000
    told = bytes(backend.heard).decode("utf-8", "replace") + repr(backend.specs)
    assert '"add"' in told
    for secret in (*SECRETS, str(tmp_path), sys.executable):
        assert secret not in told, secret
    first, second = ((spec.argv, dict(spec.env)) for spec in backend.specs)
    assert first == second


async def test_starting_a_sandbox_does_not_use_up_the_programs_time(settings: Settings) -> None:
    assert await _results(settings, Tap(seconds=1.2 + GRACE_SECONDS), (), "1 + 1") == [2]
