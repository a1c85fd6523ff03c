"""What is written of the bridge's own log lines when something makes it write without end."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from bridge.cli.output import MAX_LINES, MAX_MESSAGE, WINDOW_SECONDS, RepeatedLines
from tests.audit_rig import FakeClock

Written = tuple[logging.Logger, io.StringIO, FakeClock]


@pytest.fixture
def written() -> Iterator[Written]:
    clock, text = FakeClock(0.0), io.StringIO()
    handler = logging.StreamHandler(text)
    handler.addFilter(RepeatedLines(clock))
    logger = logging.Logger("flooded")
    logger.addHandler(handler)
    yield logger, text, clock
    handler.close()


def _flood(logger: logging.Logger, times: int) -> None:
    for number in range(times):
        logger.warning("server %r asked: %s", f"s{number}", number)


@pytest.mark.guarantee("log-floods")
def test_a_flood_from_one_place_is_counted_however_its_lines_differ(written: Written) -> None:
    logger, text, clock = written
    _flood(logger, 12_345)
    logger.warning("something else")
    lines = text.getvalue().splitlines()
    assert len(lines) == MAX_LINES + 1
    assert lines[-2].endswith("[more of these in the next 10 s are only counted]")
    assert lines[-1] == "something else"
    clock.now += WINDOW_SECONDS
    _flood(logger, 1)
    last = text.getvalue().splitlines()[-1]
    assert last == f"server 's0' asked: 0 [repeated {12_345 - MAX_LINES:,} times before]"


def test_lines_that_come_now_and_then_are_all_written_as_they_are(written: Written) -> None:
    logger, text, clock = written
    for _ in range(200):
        _flood(logger, 1)
        clock.now += 1
    assert text.getvalue() == "server 's0' asked: 0\n" * 200


def test_a_line_has_a_bound(written: Written) -> None:
    logger, text, _ = written
    say: Callable[..., None] = logger.warning
    say("%s", "x" * 1_000_000)
    assert len(text.getvalue()) < MAX_MESSAGE + 100
    assert text.getvalue().endswith("(1,000,000 characters)\n")
