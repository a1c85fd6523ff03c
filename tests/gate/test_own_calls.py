"""What a program has the bridge itself do is done once, also by its retries."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from bridge.errors import LibraryError, OutcomeUnknownError
from bridge.gate.calls import Gate, Grant
from bridge.gate.journal import Journals, Replay
from bridge.gate.oversight import Oversight
from bridge.gate.own_calls import OwnCalls
from bridge.model import CallCount, Json, RetriedReads


class Notes:
    """Runs that keep numbers, and what becomes of them."""

    def __init__(self) -> None:
        self.journals = Journals()
        self.made: list[str] = []
        self.runs = 0
        self.gates: list[Gate] = []

    def run(self, retry_of: str = "", reads: RetriedReads = "replay") -> OwnCalls:
        """Begin a run; its id is its number."""
        self.runs += 1
        name = str(self.runs)
        replay = None
        if retry_of:
            replay = Replay(self.journals.find(retry_of, "me"), reads, run_id=name)
        oversight = Oversight(journal=self.journals.begin(name, "me", replay), replay=replay)
        self.gates.append(Gate(Grant(servers=None, calls=5), _nothing, oversight))
        return OwnCalls(oversight, self.gates[-1])

    async def answer(self, params: Mapping[str, Json]) -> Json:
        """Do something."""
        self.made.append(params["key"])
        return len(self.made)


async def _nothing(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    return {}


async def test_a_retry_gets_the_answers_of_its_first_run_and_does_the_rest() -> None:
    notes = Notes()
    own = notes.run()
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 3
    own = notes.run("1")
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 3
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 4
    assert notes.gates[-1].tally.replayed == (
        CallCount(server="runtime", tool="save", count=2),
        CallCount(server="runtime", tool="load", count=1),
    )
    # What is changed after it was read would not be the same change.
    own = notes.run("2", reads="refresh")
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert notes.made == ["a"] * 4


async def test_what_failed_is_done_again_and_what_was_cut_off_is_not() -> None:
    notes = Notes()
    own = notes.run()

    async def fail(params: Mapping[str, Json]) -> Json:
        raise LibraryError("the disk is full")

    with pytest.raises(LibraryError):
        await own.make("save", {"key": "a"}, "write", fail)
    with anyio.CancelScope() as scope:

        async def hang(params: Mapping[str, Json]) -> Json:
            scope.cancel()
            await anyio.sleep_forever()

        await own.make("save", {"key": "b"}, "write", hang)
    own = notes.run("1")
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    with pytest.raises(OutcomeUnknownError, match="runtime.save"):
        await own.make("save", {"key": "b"}, "write", notes.answer)
    assert [count.tool for count in notes.gates[-1].tally.unknown] == ["save"]
    assert notes.made == ["a"]
