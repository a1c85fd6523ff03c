"""Files to servers: the shape above the entries, and that nothing makes parsing raise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.client_dialects import (
    CLAUDE_CODE,
    CLAUDE_CODE_LOCAL,
    CLAUDE_CODE_STATE,
    CLAUDE_DESKTOP,
    GENERIC,
    GENERIC_OR_BARE,
)
from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import Dialect, Format
from bridge.discovery.parser import (
    MAX_SERVERS,
    Parsed,
    project_entries,
)
from tests.discovery.parsing import Found, Origin, parse_config

SECRET = "s3cr3t-value"
DIALECTS = tuple({repr(location.dialect): location.dialect for location in LOCATIONS}.values())
FORMATS: tuple[Format, ...] = ("json", "json with comments", "jsonc", "toml", "yaml")


def origin(dialect: Dialect = GENERIC, **changes: object) -> Origin:
    start = Origin(
        client="Some client",
        scope="user",
        path="/conf/servers.json",
        dialect=dialect,
        environ={"TOKEN": SECRET, "NUL": "a\0b", "EMPTY": ""},
        home="/home/me",
        projects=("/home/me/shop", "/home/me/shop/sub"),
    )
    return replace(start, **changes)  # type: ignore[arg-type]  # each test's own fields


def parsed(document: object, dialect: Dialect = GENERIC, **changes: object) -> Found:
    return parse_config(json.dumps(document).encode(), origin(dialect, **changes))


def test_a_bad_entry_does_not_keep_the_others_from_loading() -> None:
    found = parsed({"mcpServers": {"bad": 1, "good": {"command": "c"}}})
    assert [spec.name for spec in found.servers] == ["good"]


@pytest.mark.parametrize(
    ("document", "dialect", "key", "said"),
    [
        ([], GENERIC, "", "must hold an object, not a list"),
        ("x", CLAUDE_CODE, "", "must hold an object, not a string"),
        (None, CLAUDE_CODE_STATE, "", "must hold an object, not null"),
        ({"mcpServers": []}, GENERIC, "mcpServers", "an object of servers, not a list"),
        ({"mcpServers": "x"}, CLAUDE_CODE, "mcpServers", "an object of servers, not a string"),
        ({"mcpServers": 5}, CLAUDE_DESKTOP, "mcpServers", "an object of servers, not a number"),
        ({"mcpservers": {}}, CLAUDE_CODE, "", "none of the keys that hold servers (mcpServers)"),
        ({"a": 1}, GENERIC_OR_BARE, "", "nor a command or url"),
    ],
)
def test_a_file_of_the_wrong_shape_gets_one_warning(
    document: object, dialect: Dialect, key: str, said: str
) -> None:
    found = parsed(document, dialect)
    (warning,) = found.warnings
    assert (warning.path, warning.key) == ("/conf/servers.json", key)
    assert said in warning.reason
    assert found.entries == ()


def test_files_with_other_purposes_need_no_servers() -> None:
    for dialect in (CLAUDE_CODE_STATE, CLAUDE_CODE_LOCAL, CLAUDE_DESKTOP):
        assert parsed({"theme": "dark"}, dialect) == Found(Parsed())


def test_text_that_does_not_decode_is_one_warning() -> None:
    found = parse_config(b"{ // no\n}", origin(CLAUDE_CODE))
    assert found.entries == ()
    assert "comment" in str(found.warnings[0])


def test_all_three_spellings_of_the_server_key_are_read() -> None:
    document = {key: {key: {"command": "c"}} for key in ("servers", "mcp_servers", "mcpServers")}
    assert [spec.source.key for spec in parsed(document).servers] == [
        "mcpServers.mcpServers",
        "servers.servers",
        "mcp_servers.mcp_servers",
    ]


def test_toml_is_read_when_the_file_is_toml() -> None:
    raw = b'[mcp_servers.x]\ncommand = "c"\nargs = [1979-05-27]'
    found = parse_config(raw, origin(), "toml")
    assert "args[0] must be a string, not a date or time" in found.skipped[0].reason


def test_a_bare_entry_is_named_after_its_file() -> None:
    found = parsed({"url": "https://h/mcp"}, GENERIC_OR_BARE, path="/home/me/MCPs/my.wiki.json")
    assert found.servers[0].name == "my.wiki"
    assert found.servers[0].source.key == ""
    broken = parsed({"command": 5, "args": []}, GENERIC_OR_BARE, path="/MCPs/x.json")
    assert [str(warning) for warning in broken.warnings] == [
        "/MCPs/x.json: skipped: command must be a string, not a number"
    ]
    assert "command" in str(broken.skipped[0])


def test_a_bare_entry_s_fields_are_named_without_a_prefix() -> None:
    found = parsed({"command": "${NOPE}"}, GENERIC_OR_BARE)
    assert found.warnings[0].key == "command"


def test_no_more_servers_are_read_than_a_file_may_define() -> None:
    servers = {f"s{n}": {"command": "c"} for n in range(MAX_SERVERS + 5)}
    found = parsed({"mcpServers": servers})
    assert len(found.servers) == MAX_SERVERS
    assert "only the first" in found.warnings[0].reason


def local(table: object, **changes: object) -> Found:
    return parsed({"projects": table}, CLAUDE_CODE_LOCAL, **changes)


def test_the_first_of_the_project_s_directories_that_has_servers_counts() -> None:
    servers = {"mcpServers": {"x": {"command": "c"}}}
    other = {"mcpServers": {"y": {"command": "c"}}}
    both = {"/home/me/shop": servers, "/home/me/shop/sub": other, "/else": other}
    assert [spec.name for spec in local(both).servers] == ["x"]
    empty = {"/home/me/shop": {"mcpServers": {}}, "/home/me/shop/sub": other}
    assert [spec.name for spec in local(empty).servers] == ["y"]
    assert local({"/else": other}) == Found(Parsed())


def test_directories_are_compared_as_claude_code_spells_them() -> None:
    servers = {"mcpServers": {"x": {"command": "c"}}}
    found = local({"C:/Users/me/shop/": servers}, projects=("C:\\Users\\me\\shop",))
    assert [spec.name for spec in found.servers] == ["x"]


@pytest.mark.parametrize("projects", [None, [], "x", {"/home/me/shop": None}])
def test_state_without_usable_projects_has_no_local_servers(projects: object) -> None:
    assert local(projects) == Found(Parsed())
    assert list(project_entries([], ("/p",))) == []


def test_no_message_repeats_a_secret() -> None:
    document = {
        "mcpServers": {
            "a": {"command": "c", "env": {"T": "${TOKEN}", "U": [SECRET]}},
            "b": {"url": "${TOKEN}://h", "headers": {"Authorization": SECRET}},
            "c": {"url": "http://h", "headers": {"Authorization": f"{SECRET}\n"}},
            "d": {"command": "c", "env": {"T": f"{SECRET}\0"}},
            "e": {"command": "c", "args": ["--token", f"${{NOPE}}{SECRET}"]},
        }
    }
    found = parsed(document)
    assert len(found.skipped) == 4
    assert SECRET not in repr((found.skipped, found.warnings))
    assert SECRET not in "".join(map(str, (*found.skipped, *found.warnings)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = ("type", "command", "args", "env", "url", "headers", "cwd", "description", "timeout")
MORE_FIELDS = ("tool_timeout_sec", "startup_timeout_sec", "disabled", "enabled")
USUAL = st.sampled_from(
    ["stdio", "http", "sse", "ws", "https://h/${T}", "${TOKEN:-x}", "c", [], {}, ["a"], {"A": "b"}]
)
ENTRIES = st.dictionaries(st.sampled_from(FIELDS + MORE_FIELDS), JSON | USUAL, max_size=6)
DOCUMENTS = st.one_of(
    JSON,
    ENTRIES,
    st.fixed_dictionaries(
        {"mcpServers": st.dictionaries(st.text(max_size=8), ENTRIES | JSON, max_size=3) | JSON}
    ),
    st.fixed_dictionaries(
        {
            "projects": st.dictionaries(
                st.sampled_from(["/home/me/shop", "/other"]),
                st.fixed_dictionaries({"mcpServers": JSON | st.dictionaries(st.text(), ENTRIES)})
                | JSON,
                max_size=2,
            )
        }
    ),
)


@settings(deadline=None)
@given(document=DOCUMENTS, dialect=st.sampled_from(DIALECTS))
def test_no_json_makes_parsing_raise(document: object, dialect: Dialect) -> None:
    found = parsed(document, dialect)
    for spec in found.servers:
        assert spec.command or spec.url
        assert all(isinstance(arg, str) for arg in spec.args)
    for said in (*found.skipped, *found.warnings):
        assert str(said).isprintable()


@settings(deadline=None)
@given(
    raw=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")),
    format=st.sampled_from(FORMATS),
)
def test_no_bytes_make_parsing_raise(raw: bytes, format: Format) -> None:
    found = parse_config(raw, origin(), format)
    assert found.entries == ()
    assert len(found.warnings) == 1
