"""One server in several files: who wins, and what the winner knows of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.discovery.finder import Discovery, DiscoveryContext, discover
from tests.discovery.writing import write


def shown(found: Discovery) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the only server: the other clients that have it, and the fields that differ there."""
    (spec,) = found.servers
    fields = [field for text in spec.differences for field in text.rpartition(": ")[2].split(", ")]
    return tuple(source.client for source in spec.also), tuple(fields)


def test_the_same_server_of_several_clients_is_one_that_knows_where_else_it_stands(
    context: DiscoveryContext,
) -> None:
    entry = {"command": "x", "args": ["the-secret"], "env": {"A": "the-secret"}}
    write(context.home / ".claude.json", {"mcpServers": {"same": entry}})
    cursor = {**entry, "args": ["${env:TOKEN}"], "env": {"A": "${env:TOKEN}"}}
    write(context.home / ".cursor" / "mcp.json", {"mcpServers": {"same": cursor}})
    write(
        context.home / ".codex" / "config.toml",
        '[mcp_servers.same]\ncommand = "x"\nargs = ["the-secret"]\nenv = {A = "the-secret"}',
    )
    found = discover(context)
    assert shown(found) == (("Cursor", "Codex"), ())
    assert found.servers[0].source.client == "Claude Code"
    assert found.servers[0].also[0].path == str(context.home / ".cursor" / "mcp.json")
    assert found.skipped == ()


@pytest.mark.parametrize(
    ("weaker", "differences"),
    [
        ({"command": "y", "args": ["a"], "env": {"K": "v"}}, ("command",)),
        ({"command": "x", "args": ["b"], "env": {"K": "v"}}, ("args",)),
        ({"command": "x", "args": ["a"], "env": {"K": "other"}}, ("env",)),
        ({"command": "x", "args": ["a"], "env": {"K": "v"}, "cwd": "/"}, ("cwd",)),
        ({"url": "https://h/"}, ("transport", "command", "args", "env", "url")),
    ],
)
def test_another_server_of_the_name_is_shadowed_and_named_by_its_fields(
    context: DiscoveryContext, weaker: object, differences: tuple[str, ...]
) -> None:
    stronger = {"command": "x", "args": ["a"], "env": {"K": "v"}}
    write(context.home / ".claude.json", {"mcpServers": {"same": stronger}})
    write(context.home / ".cursor" / "mcp.json", {"mcpServers": {"same": weaker}})
    found = discover(context)
    assert shown(found) == ((), differences)
    cursor = context.home / ".cursor" / "mcp.json"
    expected = f"Cursor, {cursor} (mcpServers.same): {', '.join(differences)}"
    assert found.servers[0].differences == (expected,)
    (skipped,) = found.skipped
    assert skipped.reason.startswith("shadowed by ")


def test_what_does_not_make_a_server_another_is_told_as_a_difference(
    context: DiscoveryContext,
) -> None:
    write(context.home / ".claude.json", {"mcpServers": {"same": {"command": "x"}}})
    kiro = {"command": "x", "disabledTools": ["t"], "timeout": 9000, "description": "d"}
    write(context.home / ".kiro" / "settings" / "mcp.json", {"mcpServers": {"same": kiro}})
    assert shown(discover(context)) == (("Kiro",), ("description", "call_timeout", "tools"))
    assert discover(context).servers[0].tools.admits("t")


def test_the_same_url_over_another_transport_is_another_server(context: DiscoveryContext) -> None:
    """Cline means SSE by a URL without a type."""
    entry = {"mcpServers": {"same": {"url": "https://h/mcp"}}}
    write(context.home / ".cursor" / "mcp.json", entry)
    write(context.home / ".cline" / "mcp.json", entry)
    assert shown(discover(context)) == ((), ("transport",))


def test_one_server_under_two_names_stays_two(context: DiscoveryContext) -> None:
    """Programs may use either name."""
    write(context.home / ".claude.json", {"mcpServers": {"a": {"command": "x"}}})
    write(context.home / ".cursor" / "mcp.json", {"mcpServers": {"b": {"command": "x"}}})
    found = discover(context)
    assert [(spec.name, spec.also) for spec in found.servers] == [("a", ()), ("b", ())]


def test_a_weaker_file_that_turns_the_server_off_changes_nothing(context: DiscoveryContext) -> None:
    write(context.home / ".claude.json", {"mcpServers": {"same": {"command": "x"}}})
    off = {"mcpServers": {"same": {"command": "x", "disabled": True}}}
    write(context.home / ".cursor" / "mcp.json", off)
    assert shown(discover(context)) == ((), ())


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
