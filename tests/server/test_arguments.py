"""From a model's arguments to a request, or to words that help it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bridge.errors import InvalidRequestError
from bridge.model import ApplyRequest, InputFile, RunRequest, RunResult
from bridge.render.structured import to_structured
from bridge.server.arguments import OUTPUT_SCHEMA, input_schema, parse_request
from bridge.server.tools import command_tool, search_tool
from bridge.settings.commands import CommandProfile
from scripts.samples import sample

UNUSED = ("session", "servers", "timeout", "mode", "files", "retry_of")
FILE = {"files": (InputFile(name="a", data=b"x"),)}


def test_good_arguments_become_a_request() -> None:
    assert parse_request({"code": "1", "servers": ["a"], "timeout": 5}) == RunRequest(
        code="1", servers=("a",), timeout=5.0
    )
    assert parse_request({"code": "1", "servers": None, "timeout": None}) == RunRequest(code="1")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"servers": '["git", "time"]'}, {"servers": ("git", "time")}),
        ({"servers": "git"}, {"servers": ("git",)}),
        ({"timeout": "30"}, {"timeout": 30.0}),
        ({"session": "a", "end_session": "false"}, {"session": "a"}),
        ({"files": '[{"name": "a", "text": "x"}]'}, FILE),
        ({"files": {"name": "a", "text": "x"}}, FILE),
        ({"files": [{"name": "a", "text": "x", "data": "", "uri": "null"}]}, FILE),
        *(
            (dict.fromkeys(UNUSED, blank), {})
            for blank in ("null", " NONE ", "", "undefined", None)
        ),
    ],
)
def test_arguments_that_a_client_mangled_mean_what_is_certain(
    sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert parse_request({"code": "1", **sent}) == RunRequest(code="1", **meant)


def test_a_program_is_never_taken_for_a_mangled_argument() -> None:
    for code in ("null", "[1]", "30"):
        assert parse_request({"code": code}) == RunRequest(code=code)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (None, "needs `code`"),
        ({"code": 1}, "code must be a string, not int 1"),
        ({"code": " \n"}, "needs `code`"),
        ({"servers": ["git", 1]}, "servers[1] must be a string, not int 1"),
        ({"servers": {"git": 1}}, "servers must be a list"),
        ({"timeout": "5 s"}, "timeout must be a number, not '5 s'"),
        ({"timeout": True}, "not True"),
        ({"timeout": float("nan")}, "not nan"),
        ({"timeout": 10**400}, "timeout must be at most"),
        ({"language": "python"}, "no argument 'language'; it takes code, servers"),
        ({"mode": "apply"}, 'run_python(apply="...")'),
        ({"packages": ["x" * 50_001]}, "50,000 characters in all"),
        ({"files": {"a.csv": "1"}}, "files[0] is missing key 'name'"),
        ({"files": ["a"]}, "files[0] must be a dict"),
        ({"files": [{"name": "a"}]}, "one of `text`, `data`"),
        ({"files": [{"text": "a"}]}, "missing key 'name'"),
        ({"files": [{"name": "a", "text": "x", "data": "eA=="}]}, "one of"),
        ({"files": [{"name": "a", "text": {"b": 1}}]}, "json.dumps"),
        ({"files": [{"name": "a", "text": "x", "path": "/etc"}]}, "no key 'path'"),
        ({"files": [{"name": "a", "text": "\ud800"}]}, "as `data`, in base64"),
        ({"files": [{"name": "a", "data": "no base64!"}]}, "Give text as `text`"),
        ({"files": [{"name": "a", "data": "data:text/plain;base64,AA=="}]}, "as `uri`"),
    ],
)
def test_unusable_arguments_are_explained(arguments: dict[str, Any] | None, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(complaint)):
        parse_request(None if arguments is None else {"code": "1", **arguments})


def test_text_data_and_addresses_are_files() -> None:
    given = [
        {"name": "a", "text": "é\n"},
        {"name": "b", "data": "AAEC\nAwQ=\r\n"},
        {"name": "c", "uri": "data:,x", "text": None},
        {"name": "d", "text": ""},
    ]
    request = parse_request({"code": "1", "files": given})
    assert isinstance(request, RunRequest)
    assert request.files == (
        InputFile(name="a", data="é\n".encode()),
        InputFile(name="b", data=bytes(range(5))),
        InputFile(name="c", uri="data:,x"),
        InputFile(name="d", data=b""),
    )


def test_packages_are_offered_only_where_some_are_allowed() -> None:
    assert "packages" not in input_schema(120, 30, packages=False)["properties"]
    assert "packages" in input_schema(120, 30, packages=True)["properties"]


def test_the_schema_says_whether_servers_adds_or_bounds_and_which_profiles_there_are() -> None:
    for listed_only, words in ((False, "in addition to those that the code names"), (True, "only")):
        schema = input_schema(5, 5, listed_only=listed_only, profiles=("standard", "mine"))
        assert words in schema["properties"]["servers"]["description"]
        assert schema["properties"]["profile"]["enum"] == ["standard", "mine"]
    request = parse_request({"code": "1", "profile": "strict"})
    assert request == RunRequest(code="1", profile="strict")


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _nodes(value)


def test_schemas_stay_within_what_strict_clients_convert() -> None:
    """Some models' interfaces refuse choices without a type, and alternatives at the top."""
    profiles = {"only": CommandProfile(name="only", workspace=Path("/srv"), executables=("ls",))}
    tools = [search_tool(), command_tool(profiles)]
    schemas = [input_schema(120, 30), *(tool.input_schema for tool in tools), OUTPUT_SCHEMA]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert schema["properties"]
        assert not {"anyOf", "oneOf", "allOf", "enum", "not"} & schema.keys()
        for node in _nodes(schema):
            assert not isinstance(node.get("enum"), list) or node["type"] == "string"


def test_a_result_of_every_kind_fits_the_announced_schema_and_is_in_it() -> None:
    full = sample(RunResult)
    result = replace(full, plan=replace(full.plan, calls=full.plan.calls * 1_000))
    document = to_structured(result)
    jsonschema.validate(document, OUTPUT_SCHEMA)
    known = OUTPUT_SCHEMA["properties"]
    assert document.keys() == known.keys()
    for part in ("plan", "receipt"):
        assert document[part].keys() == known[part]["properties"].keys()
    assert "callsOmitted" in document["plan"]


def test_arguments_that_say_nothing_are_as_good_as_left_out() -> None:
    blank = {"session": "", "apply": "", "retry_of": "", "mode": "", "reads": "replay"}
    lists: dict[str, Any] = {"files": [], "packages": [], "end_session": False}
    assert parse_request({"code": "1", **blank, **lists}) == RunRequest(code="1")
    plan = "ab" * 16
    request = parse_request({**blank, **lists, "apply": plan, "code": "", "mode": "run"})
    assert request == ApplyRequest(plan_id=plan)
    ended = parse_request({"code": "", "session": "a", "end_session": True})
    assert ended == RunRequest(code="", session="a", end_session=True)
