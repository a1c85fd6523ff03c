"""A worker's bytes become whole frames, and what is torn costs only itself."""

from __future__ import annotations

from bridge.guest.processes import EXIT_NOTICE
from bridge.guest.supervisor.lines import Lines


def test_lines_are_whole_whatever_the_portions() -> None:
    data = b"one\ntwo\n\nthree\nrest"
    for size in range(1, len(data) + 1):
        lines = Lines(100)
        found = [
            line
            for start in range(0, len(data), size)
            for line in lines.feed(data[start : start + size])
        ]
        assert found == [b"one\n", b"two\n", b"\n", b"three\n"]


def test_a_line_over_the_limit_is_left_out_and_the_next_is_not() -> None:
    lines = Lines(6)
    assert lines.feed(b"12345\n123456\n") == [b"12345\n"]
    assert lines.feed(b"1234567890") == []
    assert lines.feed(b"123\nok\n") == [b"ok\n"]


def test_raw_bytes_come_with_their_line_whatever_the_portions_and_whatever_is_in_them() -> None:
    data = b"+4\na\n+1line\nnext\n+3\nabc"
    for size in range(1, len(data) + 1):
        lines = Lines(100)
        found = [
            line
            for start in range(0, len(data), size)
            for line in lines.feed(data[start : start + size])
        ]
        assert found == [b"+4\na\n+1line\n", b"next\n"]


def test_raw_bytes_over_the_limit_or_cut_short_cost_no_more_than_what_they_belong_to() -> None:
    lines = Lines(20)
    assert lines.feed(b"+30\n" + b"x\n" * 15 + b"line\nok\n") == [b"ok\n"]
    assert lines.feed(b"+10\nabc") == []
    lines.forget()
    assert lines.feed(b"\nok\n") == [b"ok\n"]


def test_the_last_frames_of_a_program_are_found_behind_raw_bytes_whole_or_torn() -> None:
    last = [b'{"type":"done"}\n', EXIT_NOTICE + b'"code":0}\n']
    raw = bytes(100) + b"\n" + EXIT_NOTICE + bytes(200)
    for size in range(len(raw)):
        lines = Lines(1000)
        assert lines.feed(b"+%d\n" % len(raw) + raw[:size]) == []
        assert lines.feed(raw[size:] + b"line\n" + b"".join(last)) == [
            b"+%d\n" % len(raw) + raw + b"line\n",
            *last,
        ]
    lines = Lines(1000)
    assert lines.feed(b"+300\nabc") == []
    assert lines.feed(b"\n" + b"".join(last)) == last
    assert Lines(1000).feed(b"+300\nabc\n" + b"".join(last)) == last
