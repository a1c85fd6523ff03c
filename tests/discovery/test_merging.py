"""One server in several files: who wins, and what the winner knows of the others."""

from __future__ import annotations

from dataclasses import replace

from bridge.discovery.finder import Discovery, DiscoveryContext, discover
from tests.discovery.writing import write


def shown(found: Discovery) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the only server: the other clients that have it, and the fields that differ there."""
    (spec,) = found.servers
    fields = [field for text in spec.differences for field in text.rpartition(": ")[2].split(", ")]
    return tuple(source.client for source in spec.also), tuple(fields)


def test_what_does_not_make_a_server_another_is_told_as_a_difference(
    context: DiscoveryContext,
) -> None:
    write(context.home / ".claude.json", {"mcpServers": {"same": {"command": "x"}}})
    kiro = {"command": "x", "disabledTools": ["t"], "timeout": 9000, "description": "d"}
    write(context.home / ".kiro" / "settings" / "mcp.json", {"mcpServers": {"same": kiro}})
    assert shown(discover(context)) == (("Kiro",), ("description", "call_timeout", "tools"))
    assert discover(context).servers[0].tools.admits("t")


def test_a_server_is_equal_whatever_other_files_say(context: DiscoveryContext) -> None:
    """Sessions stay open when a client of less strength is configured."""
    write(context.home / ".claude.json", {"mcpServers": {"same": {"command": "x"}}})
    before = discover(context).servers
    write(context.home / ".cursor" / "mcp.json", {"mcpServers": {"same": {"command": "y"}}})
    assert discover(context).servers == before


def test_a_project_s_rejected_server_is_no_place_of_the_user_s(context: DiscoveryContext) -> None:
    entry = {"mcpServers": {"same": {"command": "x"}}}
    write(context.home / ".claude.json", entry)
    write(context.cwd / ".cursor" / "mcp.json", entry)
    none = replace(context, project_servers="none")
    assert shown(discover(none)) == ((), ())
    assert shown(discover(context)) == (("Cursor",), ())


def test_no_difference_tells_a_value(context: DiscoveryContext) -> None:
    write(
        context.home / ".claude.json",
        {"mcpServers": {"s": {"type": "http", "url": "https://h", "headers": {"A": "s3cret"}}}},
    )
    other = {"mcpServers": {"s": {"url": "https://h", "headers": {"A": "s3cret2"}}}}
    write(context.home / ".cursor" / "mcp.json", other)
    found = discover(context)
    assert shown(found) == ((), ("headers",))
    assert "s3cret" not in repr((found.servers, found.skipped, found.warnings))
