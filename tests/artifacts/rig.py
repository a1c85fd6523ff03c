"""A store to try, and what has to be true of one on disk whatever happened to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from bridge.artifacts import ArtifactStore
from bridge.artifacts.entries import parse_file_name

RUN = "0123456789abcdef0123456789abcdef"
OTHER_RUN = "fedcba9876543210fedcba9876543210"
DAY = 24 * 3600.0


class Clock:
    """Seconds since the epoch, which pass when they are told to."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def store(
    root: Path,
    *,
    total: int = 10_000_000,
    run: int = 5_000_000,
    days: int = 7,
    now: Callable[[], float] | None = None,
) -> ArtifactStore:
    """Return a store."""
    return ArtifactStore(root, total_bytes=total, run_bytes=run, days=days, now=now or Clock())


def contents(root: Path) -> set[str]:
    """Return the digests of the contents on disk, each of which is what its name says."""
    found = [path for path in (root / "blobs").glob("*/*") if path.is_file()]
    for path in found:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert path.parent.name == path.name[:2]
    return {path.name for path in found}


def entries(root: Path) -> set[str]:
    """Return the digests that entries speak of."""
    parsed = [parse_file_name(path.name) for path in (root / "owners").glob("*/*")]
    return {entry.digest for entry in parsed if entry is not None}


def unfinished(root: Path) -> list[str]:
    """Return what is being written."""
    return [path.name for path in (root / "writing").glob("*")]


def check(root: Path) -> None:
    """Everything that is listed can be read, and after tidying there is nothing else.

    Raises:
        AssertionError: It is not so.
    """
    found = store(root, total=10**9)
    for artifact in found.listed(None):
        data = found.read(None, artifact.uri)
        assert hashlib.sha256(data).hexdigest() == artifact.digest
        assert len(data) == artifact.size
    found.tidy()
    assert unfinished(root) == []
    assert contents(root) == entries(root)
    size, count = (int(word) for word in (root / "totals").read_text().split())
    assert size == sum(path.stat().st_size for path in (root / "blobs").glob("*/*"))
    assert count == len(found.listed(None))
