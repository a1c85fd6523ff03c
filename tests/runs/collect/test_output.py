"""What is shown of a stream, what is passed on to be kept, and that both are what was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.runs.collect.collector import Excerpt, OutputBuffer, cost, cut_notice, shares

pieces = st.lists(
    st.one_of(st.binary(max_size=60), st.text(alphabet="aé€😀\n", max_size=60).map(str.encode)),
    max_size=30,
)


def shown(buffer: OutputBuffer, most: float = 10_000) -> str:
    """Return what is shown, as text without any notice."""
    return buffer.shown(most).text()


@given(pieces, st.integers(0, 300), st.floats(0, 40), st.integers(0, 400))
def test_what_is_shown_and_what_is_kept_are_what_was_written(
    parts: list[bytes], memory: int, most: float, limit: int
) -> None:
    buffer = OutputBuffer(limit, memory)
    passed_on = b"".join([buffer.append(part) for part in parts])
    written = b"".join(parts)
    stored = buffer.start if buffer.is_whole else passed_on
    assert stored == written[:limit]
    assert buffer.dropped == len(written) - len(stored)

    ends = buffer.shown(most)
    assert stored.startswith(ends.head)
    assert stored.endswith(ends.tail)
    assert len(ends.head) + len(ends.tail) + ends.left_out == len(written)
    assert cost(ends.head) + cost(ends.tail) <= max(most, 0)
    if not ends.is_cut:
        assert ends.head == stored
    elif not buffer.dropped:
        middle = stored[len(ends.head) : len(stored) - len(ends.tail)]
        assert ends.lines == middle.count(b"\n")


@given(st.text(alphabet="aé€😀", min_size=1, max_size=200), st.floats(0, 30))
def test_a_cut_goes_through_no_character(text: str, most: float) -> None:
    buffer = OutputBuffer()
    buffer.append(text.encode())
    assert "\ufffd" not in shown(buffer, most)


def test_a_cut_is_between_lines_where_there_are_any_near() -> None:
    buffer = OutputBuffer()
    for number in range(5000):
        buffer.append(f"line {number}\n".encode())
    ends = buffer.shown(100)
    assert ends.head.endswith(b"\n")
    assert ends.tail.startswith(b"line ")
    assert ends.lines == 5000 - ends.head.count(b"\n") - ends.tail.count(b"\n")


def test_lines_are_bounded_like_tokens() -> None:
    buffer = OutputBuffer()
    buffer.append(b"a\nb\nc\nd\ne\nf\n")
    ends = buffer.shown(1000, lines=4)
    assert (ends.head, ends.tail, ends.lines) == (b"a\nb\n", b"e\nf\n", 2)


def test_memory_stays_bounded_however_much_comes() -> None:
    buffer = OutputBuffer(1 << 40, memory=1000)
    passed_on = sum(len(buffer.append(b"x" * 777)) for _ in range(1000))
    assert passed_on == 777_000
    assert len(buffer.start) == 1000
    assert len(buffer._end) <= 1000


def test_forged_gaps_add_no_notices_without_end() -> None:
    buffer = OutputBuffer()
    for _ in range(1000):
        buffer.append(b"x", skipped=1)
    assert shown(buffer).count("dropped") == 16
    ends = buffer.shown(10)
    assert ends.left_out + ends.head.count(b"x") + ends.tail.count(b"x") == 2000


@pytest.mark.parametrize(
    ("costs", "most", "each"),
    [
        ((3, 4), 10, [3, 4]),
        ((30, 4), 10, [6, 4]),
        ((4, 30), 10, [4, 6]),
        ((30, 40), 10, [5, 5]),
        ((0, 40), 10, [0, 10]),
    ],
)
def test_two_streams_share_what_a_run_may_cost(
    costs: tuple[float, float], most: float, each: list[float]
) -> None:
    assert shares(costs, most) == each


def test_a_notice_says_how_much_is_missing_and_what_is_nowhere() -> None:
    ends = Excerpt(head=b"a\n", tail=b"z", is_cut=True, left_out=1234, lines=7)
    assert cut_notice(ends) == "7 lines (1,234 bytes) dropped"
    assert cut_notice(ends, kept=True) == "7 lines (1,234 bytes) not shown here"
    flood = Excerpt(head=b"", is_cut=True, left_out=5000, lines=-1)
    told = "5,000 bytes not shown here, 40 of them dropped"
    assert cut_notice(flood, dropped=40, kept=True) == told
    assert ends.text("cut") == "a\n[… cut …]\nz"
    assert Excerpt(head=b"a").text("cut") == "a\n[… cut …]\n"


@pytest.mark.parametrize("text", ["x y " * 10, "word " * 50_000, " " * 100_000])
def test_what_a_stream_costs_is_exact_as_far_as_it_may_be_shown(text: str) -> None:
    buffer = OutputBuffer()
    buffer.append(text.encode())
    most = 5_000
    exact = cost(buffer.start)
    assert min(buffer.cost(most), most + 1) == min(exact, most + 1)


def test_bytes_that_are_no_text_are_replaced() -> None:
    buffer = OutputBuffer(1000)
    buffer.append(b"\xff\xfe caf\xe9\n")
    assert buffer.shown(10_000).text() == "\ufffd\ufffd caf\ufffd\n"
