"""From a model's arguments to a request, or to words that help it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from bridge.errors import InvalidRequestError
from bridge.model import Finding, RunRequest, RunResult
from bridge.render.structured import structured
from bridge.server.arguments import OUTPUT_SCHEMA, input_schema, parse_request


def test_good_arguments_become_a_request() -> None:
    """All three, and only the code."""
    assert parse_request({"code": "1", "servers": ["a"], "timeout": 5}) == RunRequest(
        code="1", servers=("a",), timeout=5.0
    )
    assert parse_request({"code": "1", "servers": None, "timeout": None}) == RunRequest(code="1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (None, "needs `code`"),
        ({}, "needs `code`"),
        ({"code": 1}, "`code` must be a string, not the number 1"),
        ({"code": ["1"]}, "`code` must be a string, not a list"),
        ({"code": " \n"}, "`code` is empty"),
        ({"code": "1", "servers": "git"}, "`servers` must be a list .* not a string"),
        ({"code": "1", "servers": ["git", 1]}, "not a list with the number 1 in it"),
        ({"code": "1", "servers": {"git": 1}}, "not an object"),
        ({"code": "1", "servers": ["x"] * 201}, "at most 200"),
        ({"code": "1", "timeout": "5"}, "`timeout` must be a number of seconds, not a string"),
        ({"code": "1", "timeout": True}, "not a boolean"),
        ({"code": "1", "timeout": float("nan")}, "not the number nan"),
        ({"code": "1", "language": "python"}, "no argument 'language'; it takes code, servers"),
    ],
)
def test_unusable_arguments_are_explained(arguments: dict[str, Any] | None, complaint: str) -> None:
    """Each text names the argument and what to pass instead."""
    with pytest.raises(InvalidRequestError, match=complaint):
        parse_request(arguments)


def test_the_schemas_are_schemas() -> None:
    """Clients validate with them."""
    for schema in (input_schema(120, 30), OUTPUT_SCHEMA):
        jsonschema.Draft202012Validator.check_schema(schema)


def test_what_the_guard_found_fits_the_announced_schema() -> None:
    """Also where a finding is in no line."""
    result = RunResult(
        run_id="r1",
        status="validation_error",
        summary="Refused.",
        findings=(
            Finding(line=1, column=1, rule="process", message="x"),
            Finding(line=0, rule="too-long", message="x"),
        ),
        findings_omitted=3,
    )
    document = structured(result)
    jsonschema.validate(document, OUTPUT_SCHEMA)
    document["findings"][0]["severity"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, OUTPUT_SCHEMA)
