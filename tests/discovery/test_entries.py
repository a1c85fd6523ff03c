"""One entry to one server, or to the reason why not."""

from __future__ import annotations

import json

import pytest

from bridge.discovery.client_dialects import CLAUDE_CODE, GENERIC
from bridge.discovery.dialect import Dialect
from bridge.discovery.parser import MAX_WARNINGS_PER_FILE
from bridge.discovery.variables import MAX_INSERTED_CHARS
from bridge.model import ServerSpec
from tests.discovery.parsing import Found, Origin, parse_config

SECRET = "s3cr3t-value"
WEEK = float(7 * 24 * 3600)


def written(text: str, dialect: Dialect) -> Found:
    """What a file with this text means."""
    origin = Origin(
        client="Some client",
        scope="user",
        path="/conf/servers.json",
        dialect=dialect,
        environ={"TOKEN": SECRET, "NUL": "a\0b", "EMPTY": ""},
        home="/home/me",
    )
    return parse_config(text.encode(), origin)


def named(name: str, entry: object, dialect: Dialect = GENERIC) -> Found:
    return written(json.dumps({"mcpServers": {name: entry}}), dialect)


def only(entry: object, dialect: Dialect = GENERIC) -> Found:
    return named("x", entry, dialect)


def spec_of(entry: object, dialect: Dialect = GENERIC) -> ServerSpec:
    found = only(entry, dialect)
    assert found.skipped == ()
    return found.servers[0]


def reason_of(entry: object, dialect: Dialect = GENERIC) -> str:
    found = only(entry, dialect)
    assert found.servers == ()
    (skipped,) = found.skipped
    assert skipped.source.path == "/conf/servers.json"
    assert skipped.source.key == "mcpServers.x"
    said = {str(warning) for warning in found.warnings}
    assert f"/conf/servers.json (mcpServers.x): skipped: {skipped.reason}" in said
    return skipped.reason


def test_elsewhere_scalars_stand_for_their_text_and_a_bare_url_is_http() -> None:
    spec = spec_of({"command": "c", "args": [1, 2.5, False], "env": {"ON": True}})
    assert spec.args == ("1", "2.5", "false")
    assert spec.env == {"ON": "true"}
    assert spec_of({"url": "https://h/mcp"}).transport == "http"


@pytest.mark.parametrize(
    ("spelled", "transport"),
    [("http", "http"), ("streamable-http", "http"), ("sse", "sse"), ("streamableHttp", "http")],
)
def test_types_name_transports(spelled: str, transport: str) -> None:
    spec = spec_of({"type": spelled, "url": "https://h/mcp", "headers": {"X": "${TOKEN}"}})
    assert spec.transport == transport
    assert spec.headers == {"X": SECRET}


def test_a_command_wins_over_a_url_when_no_type_is_given() -> None:
    assert spec_of({"command": "c", "url": "http://h"}, CLAUDE_CODE).transport == "stdio"


def test_variables_expand_in_every_field_that_takes_them_and_in_no_key() -> None:
    spec = spec_of(
        {"command": "${TOKEN}", "args": ["${TOKEN}"], "env": {"${TOKEN}": "${TOKEN}"}},
        CLAUDE_CODE,
    )
    assert (spec.command, spec.args) == (SECRET, (SECRET,))
    assert spec.env == {"${TOKEN}": SECRET}
    assert spec_of({"url": "http://h/${TOKEN}"}).url == f"http://h/{SECRET}"


def test_what_is_said_of_one_file_is_bounded() -> None:
    """It is logged each time the file is read, and anybody may have written the file."""
    found = only({"command": "c", "args": [f"${{U{n}}}" for n in range(4000)]})
    assert len(found.warnings) == MAX_WARNINGS_PER_FILE + 1
    assert found.warnings[-1].reason == "3900 more warnings about this file are left out"


def test_an_entry_that_variables_blow_up_is_skipped() -> None:
    entry = {"command": "c", "args": ["${TOKEN}" * (2 * MAX_INSERTED_CHARS // len(SECRET))]}
    assert "beyond" in reason_of(entry)


def test_an_unset_variable_stays_and_is_named_with_its_place() -> None:
    found = only({"command": "c", "env": {"KEY": "a${MISSING}"}}, CLAUDE_CODE)
    assert found.servers[0].env == {"KEY": "a${MISSING}"}
    (warning,) = found.warnings
    assert str(warning) == (
        "/conf/servers.json (mcpServers.x.env.KEY): the variable MISSING is not set; "
        "${MISSING} is left as written"
    )


def test_entries_that_are_off_are_skipped_without_a_warning_and_hold_their_name() -> None:
    for entry, said in (
        ({"command": "c", "disabled": True}, '"disabled": true'),
        ({"enabled": False}, '"enabled": false'),
    ):
        found = only(entry)
        assert said in found.skipped[0].reason
        assert found.skipped[0].holds_name
        assert found.warnings == ()
    assert spec_of({"command": "c", "disabled": False, "enabled": True}).name == "x"


@pytest.mark.parametrize(
    ("cwd", "expected"),
    [
        ("data", "/conf/data"),
        ("../data", "/conf/../data"),
        ("/abs", "/abs"),
        ("~", "/home/me"),
        ("~/notes", "/home/me/notes"),
        ("~other", "/conf/~other"),
        ("", None),
        (None, None),
        ("${UNSET:-sub}", "/conf/sub"),
    ],
)
def test_cwd_starts_from_the_file_s_directory(cwd: str | None, expected: str | None) -> None:
    assert spec_of({"command": "c", "cwd": cwd}).cwd == expected


@pytest.mark.parametrize(
    ("fields", "start", "call"),
    [
        ({"timeout": 45000}, None, 45.0),
        ({"timeout": 1000}, None, 1.0),
        ({"timeout": 10**400}, None, WEEK),
        ({"timeout": 1500.5}, None, 1.5005),
        ({"tool_timeout_sec": 9, "timeout": 45000}, None, 9.0),
        ({"startup_timeout_sec": 0.5}, 0.5, None),
        ({"startup_timeout_sec": 1e300}, WEEK, None),
        ({"timeout": None}, None, None),
    ],
)
def test_timeouts_are_read_in_their_units(
    fields: dict[str, object], start: float | None, call: float | None
) -> None:
    spec = spec_of({"command": "c", **fields})
    assert (spec.start_timeout, spec.call_timeout) == (start, call)


def test_a_description_is_trimmed_and_bounded() -> None:
    assert spec_of({"command": "c", "description": "  notes \ud800 "}).description == "notes ?"
    assert len(spec_of({"url": "http://h", "description": "d" * 9999}).description) == 2000


@pytest.mark.parametrize("name", ["g", "my server", "n.dot/слово", "class", "__import__", "名"])
def test_any_visible_name_is_good(name: str) -> None:
    assert named(name, {"command": "c"}).servers[0].name == name
