"""How much is said of each server, and when what was said has become wrong."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog import docs
from bridge.catalog.docs import Level, choose_levels, describe_servers, is_outdated
from bridge.catalog.entries import ServerEntry
from bridge.model import Tool
from bridge.text import count_tokens
from tests.catalog.nasty_servers import server_entries

WIDE: dict[str, Any] = {
    "type": "object",
    "properties": {f"argument_{number}": {"type": "string"} for number in range(6)},
}


def servers(*counts: int | None, description: str = "What it is for.") -> tuple[ServerEntry, ...]:
    names = {f"server_{number}": description for number in range(len(counts))}
    tools = {
        name: [
            Tool(
                server=name,
                name=f"tool_{n}",
                description="Does something.",
                input_schema={**WIDE, "title": name},
                output_schema={"type": "object", "properties": {"id": {"type": "integer"}}},
            )
            for n in range(count)
        ]
        for name, count in zip(names, counts, strict=True)
        if count is not None
    }
    return server_entries(names, tools)


def levels(entries: Sequence[ServerEntry], tokens: int) -> list[Level]:
    found = choose_levels(entries, tokens)
    assert found is not None
    return found


@pytest.mark.parametrize("level", list(Level))
def test_servers_of_one_size_get_the_fullest_level_at_which_all_fit(level: Level) -> None:
    entries = servers(*[5] * 8)

    def is_reached(tokens: int) -> bool:
        found = choose_levels(entries, tokens)
        return found is not None and min(found) >= level

    needed = bisect_left(range(10_000), True, key=is_reached)
    assert levels(entries, needed) == [level] * 8
    lower = choose_levels(entries, needed - 1)
    assert lower is None if level == Level.BARE else lower is not None and min(lower) == level - 1


def test_what_is_left_over_goes_to_the_smallest_servers_first() -> None:
    found = levels(servers(500, 3, 40, 2), 600)
    assert found[0] == Level.COUNTED
    assert found[1] == found[3] == Level.SUMMARIES
    assert Level.COUNTED < found[2] < Level.SUMMARIES


def test_a_server_that_was_not_asked_has_its_line_at_every_level() -> None:
    for tokens in (60, 100, 400):
        text = describe_servers(servers(3, None), tokens)
        assert "mcp_server_1" in text
        assert "search for" in text


def test_servers_of_which_none_was_asked_are_a_plain_list() -> None:
    assert describe_servers(servers(None, None), 500).splitlines() == [
        "Servers (search for their tools):",
        "mcp_server_0: What it is for. (search for its tools)",
        "mcp_server_1: What it is for. (search for its tools)",
    ]


def test_servers_with_the_same_tools_are_told_once() -> None:
    tools = {
        name: [Tool(server=name, name="read", input_schema=WIDE), Tool(server=name, name="write")]
        for name in ("work", "home", "other")
    }
    tools["other"] = tools["other"][:1]
    entries = server_entries(
        {"work": "For work.", "home": "At home.", "other": "", "new": ""}, tools
    )
    lines = describe_servers(entries, 500).splitlines()
    assert [line for line in lines if line.startswith("mcp_")] == [
        "mcp_work: For work.",
        "mcp_home: At home. (same tools as mcp_work)",
        "mcp_other",
        "mcp_new (search for its tools)",
    ]
    assert sum(".write(" in line for line in lines) == 1
    assert sum(".read(" in line for line in lines) == 2


TEXT = st.text(st.characters(codec=None), max_size=40)
SERVERS = st.dictionaries(
    TEXT, st.tuples(TEXT, st.none() | st.dictionaries(TEXT, TEXT, max_size=12)), max_size=8
)


def entries_of(drawn: dict[str, tuple[str, dict[str, str] | None]]) -> tuple[ServerEntry, ...]:
    tools = {
        server: [
            Tool(server=server, name=name, description=text, input_schema=WIDE)
            for name, text in named.items()
        ]
        for server, (_, named) in drawn.items()
        if named is not None
    }
    return server_entries({server: text for server, (text, _) in drawn.items()}, tools)


@given(drawn=SERVERS, tokens=st.integers(60, 2_000))
def test_no_servers_ever_cost_more_than_the_budget(
    drawn: dict[str, tuple[str, dict[str, str] | None]], tokens: int
) -> None:
    text = describe_servers(entries_of(drawn), tokens)
    assert count_tokens(text) <= tokens
    assert describe_servers(entries_of(drawn), tokens) == text


@given(drawn=SERVERS, tokens=st.integers(0, 1_500), more=st.integers(0, 1_500))
def test_a_larger_budget_never_lowers_what_all_servers_get(
    drawn: dict[str, tuple[str, dict[str, str] | None]], tokens: int, more: int
) -> None:
    entries = entries_of(drawn)
    less, most = choose_levels(entries, tokens), choose_levels(entries, tokens + more)
    if entries and less is not None:
        assert most is not None
        assert min(most) >= min(less)


def test_nothing_is_written_out_that_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def count(text: str) -> int:
        counted.append(text)
        return count_tokens(text)

    monkeypatch.setattr(docs, "count_tokens", count)
    describe_servers(servers(*[100] * 50), 1_500)
    describe_servers(servers(5_000), 1_500)
    assert 0 < len(counted) < 1_000


def test_the_budget_holds_although_lines_together_cost_more_than_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count(text: str) -> int:
        return len(text) // 4 + 7 * text.count("\n")

    monkeypatch.setattr(docs, "count_tokens", count)
    for tokens in (100, 300, 1_000, 3_000):
        assert count(describe_servers(servers(*[4] * 12), tokens)) <= tokens


def test_a_description_is_outdated_by_what_changed_and_by_news_once_all_is_known() -> None:
    before = servers(3, None)
    for now in (servers(3, None, 1), servers(3), servers(4, None)):
        assert is_outdated(before, now)
    assert is_outdated(before, servers(3, None, description="For something else."))
    first = servers(3, None, None)
    for now in (first, servers(3, 2, None)):
        assert not is_outdated(first, now)
    assert is_outdated(first, servers(3, 2, 1))


def test_a_server_that_introduces_itself_is_learnt_of_and_not_changed() -> None:
    silent = tuple(replace(entry, description="") for entry in servers(None, None))
    first = (replace(silent[0], description="Hello.", known=True), silent[1])
    assert not is_outdated(silent, first)
    assert is_outdated(silent, tuple(replace(entry, known=True) for entry in first))


def test_the_longest_heading_fits_the_room_that_is_kept_for_it() -> None:
    heading = docs._list_header(servers(3, 3), [Level.SUMMARIES, Level.NAMES])
    assert count_tokens(heading) <= docs._HEADING_TOKENS


@pytest.mark.parametrize(
    ("description", "line"),
    [
        (
            "# Tracker\n\nTools for issues:\n\nRead a ticket first. Then edit.",
            "Read a ticket first.",
        ),
        ("Issues and boards.\n# More", "Issues and boards."),
        ("# Only a heading", "# Only a heading"),
        ("Tracker\n=======\n\nIssues and boards.", "Issues and boards."),
        ("Tracker\n---\nIssues and boards.", "Issues and boards."),
        ("**Tracker**\n\n__Tools__\nIssues and boards.", "Issues and boards."),
        ("**Issues** and **boards**", "**Issues** and **boards**"),
        ("---\nIssues and boards.", "Issues and boards."),
    ],
)
def test_a_servers_line_is_no_heading(description: str, line: str) -> None:
    text = describe_servers(servers(1, description=description), 500)
    assert text.count(f"mcp_server_0: {line}\n") == 1
