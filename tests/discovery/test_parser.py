"""Files to servers: the shape above the entries, and that nothing makes parsing raise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import CURSOR, GENERIC, Dialect, Format
from bridge.discovery.parser import MAX_SERVERS, MAX_WARNINGS_PER_FILE
from bridge.upstream.token_store import key_of
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


def parse(document: object, dialect: Dialect = GENERIC, **changes: object) -> Found:
    return parse_config(json.dumps(document).encode(), origin(dialect, **changes))


def only(entry: object, dialect: Dialect = GENERIC, **changes: object) -> Found:
    return parse({"mcpServers": {"x": entry}}, dialect, **changes)


def test_what_is_said_of_one_file_is_bounded() -> None:
    """Each read logs the warnings, and anyone may have written the file."""
    found = only({"command": "c", "args": [f"${{U{n}}}" for n in range(4000)]})
    assert len(found.warnings) == MAX_WARNINGS_PER_FILE + 1
    assert found.warnings[-1].reason == "3900 more warnings about this file are left out"


def test_what_variables_or_a_description_blow_up_is_bounded() -> None:
    (large,) = only({"command": "c", "args": ["${TOKEN}" * 200_000]}).skipped
    assert "insert more than" in large.reason
    (spec,) = only({"command": "c", "description": f"  \ud800{'d' * 9999}"}).servers
    assert (spec.description[:2], len(spec.description)) == ("?d", 2000)


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
    plain = json.loads(json.dumps(entry).replace("${workspaceFolder}", "/home/me/shop"))
    shop, bank, written = (
        only(given, CURSOR, workspace=place).servers[0]
        for given, place in ((entry, "/home/me/shop"), (entry, "/bank"), (plain, "/home/me/shop"))
    )
    assert shop != bank
    assert shop.definition == bank.definition != written.definition
    if shop.url:
        assert key_of(written).digest == key_of(shop).digest != key_of(bank).digest


def test_no_more_servers_are_read_than_a_file_may_define() -> None:
    servers = {f"s{n}": {"command": "c"} for n in range(MAX_SERVERS + 5)}
    found = parse({"mcpServers": servers})
    assert len(found.servers) == MAX_SERVERS
    assert "only the first" in found.warnings[0].reason


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
    found = parse(document)
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
    found = parse(document, dialect)
    for spec in found.servers:
        assert spec.command or spec.url
        assert all(isinstance(arg, str) for arg in spec.args)
    for said in (*found.skipped, *found.warnings):
        assert str(said).isprintable()


@settings(deadline=None)
@given(
    raw=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
    | st.text(alphabet="ab:-[]{}&*!?|>'\"#%@,\n ~1.", max_size=80).map(str.encode),
    format=st.sampled_from(FORMATS),
)
def test_no_bytes_make_parsing_raise(raw: bytes, format: Format) -> None:
    found = parse_config(raw, origin(), format)
    assert found.entries == ()
    assert len(found.warnings) == 1
