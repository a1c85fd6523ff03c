"""Where the state of the configuration is looked at from."""

from __future__ import annotations

import threading

import pytest

from bridge.servers.servers import ConfigSnapshot


@pytest.mark.parametrize(("quick_seconds", "later"), [(0.0, False), (1000.0, True)])
async def test_a_look_is_taken_from_here_only_after_a_quick_one(
    quick_seconds: float, later: bool
) -> None:
    """The first one never is: nobody knows yet how long it takes."""
    here = []

    def stamp() -> object:
        here.append(threading.current_thread() is threading.main_thread())
        return len(here)

    look = ConfigSnapshot(stamp, quick_seconds=quick_seconds)
    assert [await look.take(), await look.take()] == [1, 2]
    assert here == [False, later]
