"""A store for tests, and a check of its invariants on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from bridge.artifacts.store import ArtifactStore
from bridge.store import Transaction
from bridge.store.schema import artifacts
from tests.postgresql import store_at

RUN = "0123456789abcdef0123456789abcdef"
OTHER_RUN = "fedcba9876543210fedcba9876543210"
DAY = 24 * 3600.0


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


def store(
    root: Path,
    *,
    total: int = 10_000_000,
    run: int = 5_000_000,
    days: int = 7,
    now: Callable[[], float] | None = None,
) -> ArtifactStore:
    return ArtifactStore(
        store_at(root), total_bytes=total, run_bytes=run, days=days, now=now or Clock()
    )


def age(root: Path, seconds: float) -> None:
    """Date all artifacts back."""
    created = artifacts.c.created - round(seconds * 1000)
    store_at(root).execute(artifacts.update().values(created=created))


def contents(root: Path) -> set[str]:
    kept = store_at(root)
    if kept.shared:
        for digest in kept.blobs.all():
            with closing(kept.blobs.open(digest)) as blob:
                assert hashlib.sha256(blob.read(blob.size, 0)).hexdigest() == digest
        return kept.blobs.all()
    found = [path for path in (root / "blobs").glob("??/*") if path.is_file()]
    for path in found:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert path.parent.name == path.name[:2]
    return {path.name for path in found}


def entries(root: Path) -> set[str]:
    with store_at(root).reading() as kept:
        return kept.used()


def unfinished_files(root: Path) -> list[str]:
    return [path.name for path in (root / "blobs" / "writing").glob("*")]


def check(root: Path) -> None:
    """Check that each listed artifact is readable, and that nothing else remains after `tidy`."""
    found = store(root, total=10**9)
    for artifact in found.find_all(None):
        data = found.read(None, artifact.uri)
        assert hashlib.sha256(data).hexdigest() == artifact.digest
        assert len(data) == artifact.size
    found.tidy()
    assert unfinished_files(root) == []
    assert contents(root) == entries(root)


def rows(kept: Transaction) -> list[Row[Any]]:
    assert kept.connection is not None
    return list(kept.connection.execute(artifacts.select()))
