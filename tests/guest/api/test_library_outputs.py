"""A program's reports on itself: cheap, few, and the last one sent."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from bridge.guest.api import library
from bridge.guest.api.library import Library, conclude
from bridge.guest.api.values import MCPError
from bridge.guest.protocol.wire import Progress


class Line:
    """Takes frames instead of the channel."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.gone = False

    def tell(self, frame: Any) -> None:
        """Take one."""
        if self.gone:
            raise MCPError("the connection is closed", kind="channel")
        self.sent.append(frame)


class Clock:
    """Time as one sets it."""

    now = 0.0


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    """A fresh one, with time standing still."""
    Clock.now = 100.0
    monkeypatch.setattr(library, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(library._Pace, "due", 0.0)
    monkeypatch.setattr(library._Pace, "unsent", None)
    return Line()


def reporter(line: Line) -> Library:
    helpers = Library()
    helpers._client = line  # type: ignore[assignment]
    return helpers


def test_of_a_million_reports_few_are_sent_and_the_last_is(line: Line) -> None:
    helpers = reporter(line)
    for number in range(1000):
        Clock.now = 100.0 + number / 1000
        helpers.progress(number, 1000, f"turn {number}")
    conclude(line)  # type: ignore[arg-type]
    conclude(line)  # type: ignore[arg-type]
    assert [frame.done for frame in line.sent] == [
        0,
        100,
        200,
        300,
        400,
        500,
        600,
        700,
        800,
        900,
        999,
    ]
    assert line.sent[-1] == Progress(999.0, 1000.0, "turn 999")


def test_a_report_is_sent_as_the_host_takes_it(line: Line) -> None:
    helpers = reporter(line)
    helpers.progress(Decimal("1.5"), True, "m" * 1000)  # type: ignore[arg-type]
    assert line.sent == [Progress(1.5, 1.0, "m" * library.MAX_MESSAGE)]
    assert type(line.sent[0].done) is float


@pytest.mark.parametrize("done", [float("nan"), float("inf"), "3", None, 10**400])
def test_what_is_no_number_is_refused_at_once(line: Line, done: Any) -> None:
    with pytest.raises(TypeError, match="finite numbers") as refused:
        reporter(line).progress(done, 10)
    assert line.sent == []
    assert 'progress(3, 10, "loading")' in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("lines", "told"),
    [((10, 3), "the first line comes first: (3, 10)"), ((-3, -1), "offset=-1000 is the end")],
)
async def test_lines_that_there_cannot_be_are_refused(
    line: Line, lines: tuple[int, int], told: str
) -> None:
    with pytest.raises(ValueError, match="^lines ") as refused:
        await reporter(line).read_output("4f2c", lines=lines)
    assert told in str(refused.value)


def test_a_report_that_nobody_takes_is_no_failure(line: Line) -> None:
    line.gone = True
    reporter(line).progress(1, 2)
