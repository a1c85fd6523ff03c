"""The wanted tool is found on the real servers of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.disclosure import searcher
from benchmarks.disclosure_quality import HELD_OUT, TUNED, rate, read_queries
from benchmarks.disclosure_servers import BIN, TEST_PACKAGES, servers_at_hand
from bridge.upstream.pool import Pool

WANTED_RECALL = 0.9


@pytest.mark.slow
@pytest.mark.skipif(
    not (TEST_PACKAGES.is_dir() and (BIN / "node").exists()), reason="needs the servers from npm"
)
async def test_the_wanted_tool_of_a_real_server_is_among_the_first_five(tmp_path: Path) -> None:
    specs = servers_at_hand(tmp_path)
    async with Pool(specs, log_dir=tmp_path / "logs", environ=os.environ) as pool:
        tools = {spec.name: await pool.server(spec.name).tools() for spec in specs}
    names = {f"{tool.server}.{tool.name}" for each in tools.values() for tool in each}
    search = searcher(tools)
    for half in (TUNED, HELD_OUT):
        queries = read_queries(half, tools)
        assert len(queries) >= 20
        assert {tool for query in queries for tool in query.wanted} <= names
        quality = rate(queries, search)
        assert quality.recall(5) >= WANTED_RECALL, quality.missed
