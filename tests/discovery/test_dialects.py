"""Fields that only some clients have, where the golden files do not reach."""

from __future__ import annotations

import json

import pytest

from bridge.discovery.client_dialects import CLAUDE_CODE
from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import Dialect
from bridge.discovery.documents import size_limit
from bridge.discovery.entries import ONLY_CLIENT
from bridge.model import OAuthHints, ServerSpec, ToolFilter
from bridge.upstream.token_store import key_of
from tests.discovery.parsing import Found, Origin, parse_config

DIALECTS = {row.id: row.dialect for row in reversed(LOCATIONS)}


def written(document: object, dialect: Dialect, workspace: str = "/home/me/shop") -> Found:
    origin = Origin(
        client="Some client",
        scope="user",
        path="/conf/servers.json",
        dialect=dialect,
        environ={"TOKEN": "the-secret", "EMPTY": ""},
        home="/home/me",
        workspace=workspace,
    )
    return parse_config(json.dumps(document).encode(), origin)


def only(entry: object, client: str) -> Found:
    dialect = DIALECTS[client]
    document: object = {"x": entry}
    for key in reversed(dialect.server_keys[-1].split(".")):
        document = {key: document}
    return written(document, dialect)


def spec_of(entry: object, client: str) -> ServerSpec:
    found = only(entry, client)
    assert found.skipped == ()
    return found.servers[0]


@pytest.mark.parametrize(
    ("client", "entry", "expected"),
    [
        ("codex", {"enabled_tools": []}, ToolFilter(only=frozenset())),
        ("goose", {"available_tools": []}, ToolFilter()),
        ("copilot", {"tools": ["*", "a"]}, ToolFilter()),
        ("copilot", {"tools": []}, ToolFilter(only=frozenset())),
        ("gemini", {"includeTools": None}, ToolFilter()),
        ("kiro", {"disabledTools": ["a"]}, ToolFilter(without=frozenset({"a"}))),
        ("cursor", {"disabledTools": ["a"], "tools": ["b"]}, ToolFilter()),
    ],
)
def test_lists_of_tools_mean_what_they_mean_in_the_client(
    client: str, entry: dict[str, object], expected: ToolFilter
) -> None:
    command = "cmd" if client == "goose" else "command"
    assert spec_of({command: "x", **entry}, client).tools == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, None),
        ({"oauth": False}, None),
        ({"oauth": {"enabled": False, "clientId": "c"}}, None),
        ({"oauth": {}}, OAuthHints()),
        (
            {"oauth": {"clientId": "c", "callbackPort": 1}},
            OAuthHints(client_id="c", callback_port=1),
        ),
        ({"oauth": {"scopes": ["a"]}, "oauthScopes": ["b"]}, OAuthHints(scopes=("a",))),
        ({"oauthScopes": ["b"]}, OAuthHints(scopes=("b",))),
        ({"oauth": {"redirectUri": "http://localhost:7/cb"}}, OAuthHints(callback_port=7)),
    ],
)
def test_hints_for_logging_in(entry: dict[str, object], expected: OAuthHints | None) -> None:
    assert spec_of({"url": "https://h/", **entry}, "cursor").oauth == expected


def test_a_server_without_an_address_has_nothing_to_log_in_to() -> None:
    assert spec_of({"command": "x", "oauth": {"clientId": "c"}}, "cursor").oauth is None


def test_a_program_for_headers_is_not_run_and_that_is_said() -> None:
    found = written(
        {"mcpServers": {"x": {"type": "http", "url": "https://h/", "headersHelper": "get-token"}}},
        CLAUDE_CODE,
    )
    assert found.servers[0].headers == {}
    assert found.warnings[0].key == "mcpServers.x.headersHelper"
    assert "is not run" in found.warnings[0].reason


def test_a_written_header_is_stronger_than_a_token_from_a_variable() -> None:
    entry = {"url": "https://h/", "bearer_token_env_var": "TOKEN"}
    own = {**entry, "http_headers": {"authorization": "Basic x"}}
    assert spec_of(own, "codex").headers == {"authorization": "Basic x"}
    assert spec_of(entry, "codex").headers == {"Authorization": "Bearer the-secret"}


@pytest.mark.parametrize("variable", ["NOT_SET", "EMPTY"])
def test_a_header_whose_variable_says_nothing_is_not_sent(variable: str) -> None:
    found = only({"url": "https://h/", "env_http_headers": {"X-A": variable}}, "codex")
    assert found.servers[0].headers == {}
    assert found.warnings[0].key == "mcp_servers.x.env_http_headers.X-A"


@pytest.mark.parametrize("variable", ["NOT_SET", "EMPTY"])
def test_a_token_that_is_not_there_is_not_sent(variable: str) -> None:
    found = only({"url": "https://h/", "bearer_token_env_var": variable}, "codex")
    assert found.servers[0].headers == {}
    assert f"the variable {variable} is not set" in found.warnings[0].reason


def test_what_only_the_client_can_start_is_left_out_and_takes_no_name() -> None:
    builtin = {"type": "builtin", "name": "x"}, "goose"
    for entry, client in (builtin, ({"source": "extension"}, "zed"), ({"settings": {}}, "zed")):
        found = only(entry, client)
        assert (found.skipped[0].reason, found.skipped[0].foreign) == (ONLY_CLIENT, True)
        assert found.warnings == ()
    assert only({"settings": {}, "command": "x"}, "zed").servers


def test_a_server_may_be_called_as_the_object_is_that_holds_servers() -> None:
    entry = {"type": "local", "command": ["x"]}
    found = written({"mcp": {"servers": entry}}, DIALECTS["opencode"])
    assert [(spec.name, spec.source.key) for spec in found.servers] == [("servers", "mcp.servers")]


def test_an_entry_s_own_transport_object_counts_before_its_fields() -> None:
    entry = {"type": "stdio", "transport": {"type": "sse", "url": "https://h/"}, "disabled": False}
    assert spec_of(entry, "cline").transport == "sse"


def test_times_are_in_the_client_s_units() -> None:
    assert spec_of({"command": "x", "timeout": 90}, "cline").call_timeout == 90
    assert spec_of({"command": "x", "timeout": 90_000}, "gemini").call_timeout == 90
    assert spec_of({"command": "x", "timeout": 90_000}, "cursor").call_timeout == 90
    two = {"command": "x", "startup_timeout_sec": 2, "startup_timeout_ms": 9000}
    assert spec_of(two, "codex").start_timeout == 2


def test_a_relative_directory_starts_at_the_project_where_the_client_says_so() -> None:
    assert spec_of({"command": "x", "cwd": "sub"}, "cursor").cwd == "/home/me/shop/sub"
    assert spec_of({"command": "x", "cwd": "sub"}, "claude-desktop").cwd == "/conf/sub"
    assert spec_of({"command": "x", "cwd": "~/sub"}, "cursor").cwd == "/home/me/sub"


def test_what_is_read_by_python_code_is_read_in_part_only_when_small() -> None:
    """A file that comes with a project may be as large as its author likes."""
    assert size_limit("yaml") < size_limit("jsonc") < size_limit("json")


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["-y", "fs", "${workspaceFolder}", "${userHome}/x"]},
        {"command": "${workspaceFolder}/run", "env": {"TOKEN": "${env:TOKEN}"}},
        {"command": "run", "cwd": "${workspaceFolder}"},
        {"url": "https://x.test${workspaceFolder}", "headers": {"A": "${workspaceFolder}"}},
    ],
)
def test_a_servers_definition_is_as_it_is_written(entry: dict[str, object]) -> None:
    """Its login is for what the variables made of its address."""
    shop, bank = (
        written({"mcpServers": {"x": entry}}, DIALECTS["cursor"], place).servers[0]
        for place in ("/home/me/shop", "/home/me/bank")
    )
    assert shop != bank
    assert shop.definition == bank.definition
    plain = json.loads(json.dumps(entry).replace("${workspaceFolder}", "/home/me/shop"))
    assert spec_of(plain, "cursor").definition != shop.definition
    if shop.url:
        assert key_of(shop).digest != key_of(bank).digest
        assert key_of(shop).digest == key_of(spec_of(plain, "cursor")).digest
