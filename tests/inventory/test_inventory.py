"""What is known of servers, made once and changed in parts."""

from __future__ import annotations

from bridge.catalog.entries import run_discovered, run_server
from bridge.inventory.inventory import ToolInventory
from bridge.model import Tool
from tests.catalog.nasty_servers import server_entries

SERVERS = {"one": "The first", "Two!": "The second", "three": ""}


def tools(server: str, *names: str) -> tuple[Tool, ...]:
    """Return tools of a server."""
    return tuple(
        Tool(server=server, name=name, description="", input_schema={}, output_schema=None)
        for name in names
    )


def known() -> ToolInventory:
    """Return three servers, of which one has been asked."""
    found = ToolInventory()
    found.reset(SERVERS, {"one": tools("one", "a", "b-c")})
    return found


def test_it_says_what_the_catalog_says() -> None:
    mine = known()
    mine.update("Two!", tools("Two!", "x"))
    asked = {"one": tools("one", "a", "b-c"), "Two!": tools("Two!", "x")}
    for loaded in ((), ("one",), ("three", "one")):
        plain = server_entries(SERVERS, asked, loaded=loaded)
        assert mine.entries(loaded=loaded) == plain
        assert mine.discovered(loaded) == run_discovered(plain)
        ordered = sorted(loaded, key=mine.place)
        assert [mine.stubs(name, None) for name in ordered] == [
            run_server(each) for each in plain if each.loaded
        ]


def test_things_are_made_once_until_something_is_learnt() -> None:
    mine = known()
    entries, stub, revision = mine.entries(), mine.stubs("one", None), mine.revision
    assert mine.entries() is entries
    assert mine.stubs("one", None) is stub
    assert mine.update("three", tools("three", "z"))
    assert mine.revision != revision
    assert mine.entries() != entries
    assert mine.entry("one") is entries[0]
    assert mine.stubs("one", None) is stub


def test_the_same_tools_are_no_news() -> None:
    mine = known()
    revision, entries = mine.revision, mine.entries()
    again = tools("one", "a", "b-c")
    assert not mine.update("one", again)
    assert mine.tools("one") is again
    assert not mine.update("one", again)
    assert (mine.revision, mine.entries()) == (revision, entries)


def test_a_program_gets_the_tools_that_it_names() -> None:
    """By alias; and all of them if one of its names is none, to be told of the nearest."""
    mine = known()
    (tool,) = mine.stubs("one", frozenset({"b_c"}))["tools"]
    assert tool["name"] == "b-c"
    assert "description" not in tool
    assert mine.stubs("one", frozenset({"b_c", "list_tools"})) == mine.stubs("one", None)
    assert mine.stubs("one", frozenset())["tools"] == []
    assert mine.stubs("one", frozenset({"a", "bc"})) == mine.stubs("one", None)


def test_other_servers_are_another_revision() -> None:
    mine = known()
    mine.entries()
    revision = mine.revision
    mine.reset({"one": "Anew"}, {})
    assert mine.revision != revision
    assert [(entry.description, entry.known) for entry in mine.entries()] == [("Anew", False)]


def test_what_servers_have_besides_tools_does_not_send_all_tools() -> None:
    """A program that reads a resource gets no schemas for it."""
    mine = known()
    found = mine.stubs("one", frozenset({"read_resource", "b_c"}))
    assert [tool["name"] for tool in found["tools"]] == ["b-c"]
