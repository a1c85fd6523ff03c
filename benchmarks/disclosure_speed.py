"""How long a search takes over thousands of tools, beside SQLite's own for the same words.

In the thread's CPU time, which other processes disturb less than they do the clock on the wall.
"""

from __future__ import annotations

import gc
import random
import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles

from bridge.catalog.search import ToolIndex, words
from bridge.model import MEBIBYTE, Tool

QUERIES = 300
FRESH = 60
_SEED = 7


@dataclass(frozen=True, kw_only=True)
class Speed:
    """CPU times in milliseconds, and how much memory the index takes.

    Attributes:
        fresh_ms: Median where no word of the query was looked for since the index changed.
    """

    tools: int
    median_ms: float
    p99_ms: float
    fresh_ms: float
    floor_ms: float
    build_ms: float
    server_ms: float
    megabytes: float


def speed(servers: Mapping[str, tuple[Tool, ...]]) -> Speed:
    """Measure searching these tools."""
    tracemalloc.start()
    index = ToolIndex()
    index.update(servers)
    megabytes = (tracemalloc.get_traced_memory()[0] + database_bytes(index)) / MEBIBYTE
    tracemalloc.stop()
    builds = []
    for _ in range(3):
        fresh = ToolIndex()
        builds.append(_timed(partial(fresh.update, servers)))
    first = next(iter(servers))
    smaller = {**servers, first: servers[first][1:]}
    one = _timed(partial(index.update, smaller))
    index.update(servers)
    tools = [tool for each in servers.values() for tool in each]
    gc.collect()
    queries = _queries(tools)
    times = [_timed(partial(index.search, query)) for query in queries]
    unused = []
    for number, query in enumerate(queries[:FRESH]):
        index.update(servers if number % 2 else smaller)
        unused.append(_timed(partial(index.search, query)))
    return Speed(
        tools=len(tools),
        median_ms=median(times),
        fresh_ms=median(unused),
        p99_ms=quantiles(times, n=100)[98],
        floor_ms=_floor(tools),
        build_ms=median(builds),
        server_ms=one,
        megabytes=megabytes,
    )


def database_bytes(index: ToolIndex) -> int:
    """Return the size of an index's database, without Python's own objects."""
    assert index._database is not None
    [pages] = index._database.execute("PRAGMA page_count").fetchone()
    [size] = index._database.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(size)


def _queries(tools: list[Tool]) -> list[str]:
    """Return queries as they come: words of a tool, some with a slip or only begun; none twice."""
    chance = random.Random(_SEED)
    found = []
    for tool in chance.sample(tools, QUERIES):
        named, described = tool.name.split("_"), tool.description.split()
        words = [*named[: chance.randint(1, 3)], *chance.sample(described, chance.randint(0, 3))]
        if chance.random() < 0.2:
            word = chance.choice(named)
            words.append(word[:-1] if chance.random() < 0.5 else word[0] + word[2:])
        found.append(" ".join(words))
    return found


def _floor(tools: list[Tool]) -> float:
    """Return what SQLite takes for the same words over names and descriptions, by its own rank."""
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = 'porter')")
        texts = [(f"{tool.name} {tool.description}",) for tool in tools]
        database.executemany("INSERT INTO texts VALUES (?)", texts)
        query = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT 5"
        asked = [" OR ".join(f'"{word}"' for word in words(spelled)) for spelled in _queries(tools)]
        return median(_timed(partial(_fetch, database, query, text)) for text in asked)
    finally:
        database.close()


def _fetch(database: sqlite3.Connection, query: str, text: str) -> None:
    database.execute(query, (text,)).fetchall()


def _timed(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return (time.thread_time() - started) * 1000
