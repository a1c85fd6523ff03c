"""What every group of rows is given: where to work, how much to measure, how to say it failed."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engines import Engine
from benchmarks.results import Measurement
from benchmarks.targets import LOCAL

SERVERS = Path(__file__).parent
TOOL_SERVER = (sys.executable, str(SERVERS / "toolserver.py"))
LEAN_SERVER = (sys.executable, str(SERVERS / "leanserver.py"))


class BenchmarkError(Exception):
    """Something cannot be measured; the text says what and, where it is known, what to do."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One run of the benchmark.

    Attributes:
        directory: Its own, removed afterwards. Short: sockets lie in it.
        quick: Whether few samples do.
    """

    directory: Path
    quick: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def count(self, full: int, quick: int) -> int:
        """Return how many samples to take."""
        return quick if self.quick else full

    def place(self) -> Path:
        """Make and return a directory for one bridge."""
        path = self.directory / str(next(self._numbers))
        path.mkdir()
        return path


Measure = Callable[[Bench, Engine], Awaitable[list[Measurement]]]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that are measured together.

    Attributes:
        apart: The same rows in smaller groups, for when not all of them are asked for.
        engines: On which they are measured so.
    """

    keys: tuple[str, ...]
    measure: Measure
    apart: tuple[Group, ...] = ()
    engines: tuple[str, ...] = LOCAL


def without_bridge_settings() -> dict[str, str]:
    """Return the environment less what would change how the bridge works.

    What is measured is the bridge as it comes.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MCP_BRIDGE_", "MCP_SERVERS_", "CLAUDE_"))
    }
