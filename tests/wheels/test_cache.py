"""What is kept of packages, and what goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bridge.wheels import cache
from bridge.wheels.cache import LEFT_SECONDS, Cache


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_what_a_killed_bridges_resolver_left_goes_and_what_one_works_in_stays(
    tmp_path: Path,
) -> None:
    kept = Cache(tmp_path, 1024**3)
    kept.make()
    for name, age in (("dead", LEFT_SECONDS + 60), ("alive", 60.0)):
        place = kept.resolvers / name
        place.mkdir()
        (place / "half.whl").write_bytes(b"x" * 1000)
        aged(place, age)
    kept.make_room()
    assert [path.name for path in kept.resolvers.iterdir()] == ["alive"]


def test_choices_that_are_remembered_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_LOCKS", 3)
    kept = Cache(tmp_path, 1024**3)
    kept.make()
    for number in range(6):
        for name in ("locks", "turns"):
            path = tmp_path / name / f"{number}"
            path.write_text("{}")
            # The last two are as new as those of a bridge that is at work.
            aged(path, 60.0 if number > 3 else 2 * LEFT_SECONDS - number)
    kept.make_room()
    for name in ("locks", "turns"):
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["3", "4", "5"]
