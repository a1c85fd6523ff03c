"""Pages and drawings as text."""

from __future__ import annotations

import pytest

from bridge.runs.collect.outputs import html_text, svg_source, svg_text


def test_a_table_becomes_lines_and_only_what_is_for_reading_stays() -> None:
    page = """<!DOCTYPE html><html><head><title>t</title><style>td {color: red}</style></head>
    <!-- a <b>comment</b> --><body onload="go()"><h1>Sales</h1><script>alert("x")</script>
    <table><tr><th>name<th>quantity</tr><tr><td>a &amp; b</td><td>3</td></tr></table>
    <ul><li>one<li><b>t</b>wo</ul>2 < 3 <img src=x onerror=go()></body>"""
    text, whole = html_text(page)
    assert whole is True
    assert text.splitlines() == ["Sales", "name | quantity", "a & b | 3", "- one", "- two", "2 < 3"]


def test_a_long_page_is_cut() -> None:
    text, whole = html_text("<p>word</p>" * 10_000, limit=100)
    assert (len(text), whole) == (100, False)


@pytest.mark.parametrize(
    "piece", ["<", "<!--", "<a", "<a ", "<script>", "</", "<!", "&", "<td", "<style", "\n", "<<a>"]
)
def test_no_page_takes_long_and_none_brings_a_script(piece: str) -> None:
    text, _ = html_text(piece * (128 * 1024 // len(piece)))
    assert "<script>" not in text
    svg_text("<svg>" + piece * (128 * 1024 // len(piece)))


@pytest.mark.guarantee("event-loop")
def test_a_name_that_does_not_end_takes_no_longer_than_a_text() -> None:
    """In a search that tries every end of it, this takes hours, and nothing else runs."""
    page = f"<{'a' * 1_000_000}"
    assert html_text(page)[0] == page[:4_000]
    assert svg_text(page) == ""
    assert svg_source(f"<svg {'a' * 3_000}") == ""


SVG = '<svg viewBox="0 0 9 9"><circle cx="4" r="2" fill="url(#g)"/><text x="1">Total</text></svg>'


def test_a_short_drawing_is_read_as_it_is() -> None:
    assert svg_source(f'<?xml version="1.0"?>\n{SVG}') == SVG


@pytest.mark.parametrize(
    "inside",
    [
        "<script>go()</script>",
        "<rect onclick='go()'/>",
        "<rect\nonload = 'go()'/>",
        "<a href='http://example.org'><text>x</text></a>",
        "<image xlink:href='x'/>",
        "<foreignObject><p>x</p></foreignObject>",
        "<style>@import 'x'</style>",
        "<rect fill='url(http://example.org)'/>",
        "<![CDATA[x]]>",
        "<!ENTITY x 'y'>",
        "<rect",
        "x" * 5000,
    ],
)
def test_one_that_does_or_fetches_something_is_not(inside: str) -> None:
    drawing = f"<svg>{inside}<text>a<tspan>b</tspan></text><title>c</title></svg>"
    assert svg_source(drawing) == ""


def test_of_others_the_words_are_read() -> None:
    drawing = "<svg><script>no()</script><text>a &lt; b</text><g><title> c\nd </title></g></svg>"
    assert svg_text(drawing) == "a < b\nc d"
