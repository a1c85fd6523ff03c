"""The bound on what the host keeps of a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.rpc.output import OutputBuffer


def test_text_within_the_limit_is_kept_exactly() -> None:
    """Blank lines, carriage returns and missing final newlines are the program's business."""
    buffer = OutputBuffer(100)
    buffer.append("a\n\n")
    buffer.append("\r b")
    assert buffer.text() == "a\n\n\r b"
    assert buffer.dropped == 0


def test_a_gap_the_guest_announces_is_shown_and_counted() -> None:
    """The reader must see where text is missing, and how much."""
    buffer = OutputBuffer(100)
    buffer.append("head")
    buffer.append("tail", skipped=1234)
    assert buffer.text() == "head\n[… 1,234 bytes dropped …]\ntail"
    assert buffer.dropped == 1234


@given(st.lists(st.text(max_size=20)), st.integers(0, 40))
def test_the_host_keeps_no_more_than_its_limit(parts: list[str], limit: int) -> None:
    """Whatever a guest sends, kept and dropped bytes add up and the first stay."""
    buffer = OutputBuffer(limit)
    for part in parts:
        buffer.append(part)
    kept = buffer.text().encode("utf-8", "replace")
    whole = "".join(parts).encode("utf-8", "replace")
    assert len(kept) <= limit
    assert whole.startswith(kept)
    assert len(kept) + buffer.dropped == len(whole)


def test_lines_beyond_the_bound_are_dropped_and_counted() -> None:
    """A flood of empty lines is bounded like one of text."""
    buffer = OutputBuffer(1000, max_lines=3)
    buffer.append("a\nb\n")
    buffer.append("c\nd\ne")
    buffer.append("f\n")
    buffer.append("g")
    assert buffer.text() == "a\nb\nc\n"
    assert buffer.dropped == len("d\nef\ng")


def test_text_that_has_no_bytes_is_kept_as_text_that_has() -> None:
    """A guest may send half of a surrogate pair, which no terminal and no client can be sent."""
    buffer = OutputBuffer(100)
    buffer.append("a\ud800b")
    assert buffer.text() == "a?b"
