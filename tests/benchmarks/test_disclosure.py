"""How well tools are found, on the real servers that are at hand; and how that is counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.disclosure import searcher
from benchmarks.disclosure_quality import HELD_OUT, TUNED, Query, rate, read_queries
from benchmarks.disclosure_servers import (
    BIN,
    CROWD_SERVERS,
    CROWD_TOOLS,
    TEST_PACKAGES,
    crowd,
    servers_at_hand,
)
from bridge.upstream.pool import Pool

WANTED_RECALL = 0.9


def test_ranks_become_recall_and_mean_reciprocal_rank() -> None:
    """What is not found counts as nothing, and any of several wanted tools counts."""
    answers = {"one": ["a.x", "a.y"], "two": ["a.z", "a.x"], "none": ["b.q"], "low": list("123456")}
    queries = [
        Query(text="one", wanted=frozenset({"a.x", "a.y"})),
        Query(text="two", wanted=frozenset({"a.x"})),
        Query(text="none", wanted=frozenset({"a.x"})),
        Query(text="low", wanted=frozenset({"6"})),
    ]
    quality = rate(queries, answers.__getitem__)
    assert quality.ranks == (1, 2, 0, 6)
    assert quality.recall(5) == 0.5
    assert quality.recall(1) == 0.25
    assert quality.mean_reciprocal_rank == pytest.approx((1 + 1 / 2 + 1 / 6) / 4)
    assert quality.missed == (("none", 0), ("low", 6))


def test_there_are_enough_queries_and_no_half_knows_the_other() -> None:
    """Sixty were asked for."""
    tuned, held_out = read_queries(TUNED), read_queries(HELD_OUT)
    assert len(tuned) >= 60
    assert len(held_out) >= 60
    assert not {query.text for query in tuned} & {query.text for query in held_out}


def test_the_made_up_tools_are_the_same_every_time() -> None:
    """Whatever Python hashes to."""
    tools = crowd()
    assert tools == crowd()
    assert len(tools) == CROWD_SERVERS
    assert {len(each) for each in tools.values()} == {CROWD_TOOLS}


@pytest.mark.skipif(
    not (TEST_PACKAGES.is_dir() and (BIN / "node").exists()), reason="needs the servers from npm"
)
async def test_the_wanted_tool_of_a_real_server_is_among_the_first_five(tmp_path: Path) -> None:
    """In nine of ten cases, and in both halves of the queries that these servers answer."""
    specs = servers_at_hand(tmp_path)
    async with Pool(specs, log_dir=tmp_path / "logs", environ=os.environ) as pool:
        tools = {spec.name: await pool.tools(spec.name) for spec in specs}
    names = {f"{tool.server}.{tool.name}" for each in tools.values() for tool in each}
    search = searcher(tools)
    for half in (TUNED, HELD_OUT):
        queries = read_queries(half, tools)
        assert len(queries) >= 20
        assert {tool for query in queries for tool in query.wanted} <= names
        quality = rate(queries, search)
        assert quality.recall(5) >= WANTED_RECALL, quality.missed
