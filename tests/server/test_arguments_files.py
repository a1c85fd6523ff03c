"""`files` of a request: what is a file, and what to pass instead of what is none."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import InvalidRequestError
from bridge.model import InputFile
from bridge.server.arguments import MAX_DATA_CHARS, parse_files


def test_text_data_and_addresses_are_files() -> None:
    """Base64 may be broken into lines; what is null is not given."""
    assert parse_files(None) == ()
    assert parse_files(
        [
            {"name": "a", "text": "é\n"},
            {"name": "b", "data": "AAEC\nAwQ=\r\n"},
            {"name": "c", "uri": "data:,x", "text": None},
            {"name": "d", "text": ""},
        ]
    ) == (
        InputFile(name="a", data="é\n".encode()),
        InputFile(name="b", data=bytes(range(5))),
        InputFile(name="c", uri="data:,x"),
        InputFile(name="d", data=b""),
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "must be a list"),
        ({"a.csv": "1"}, 'as [{"name": "data.csv", "text": "a,b"}], not an object'),
        ("[]", "not a string"),
        (["a"], "must be a list"),
        ([{"name": "a"}], "one of `text`, `data`"),
        ([{"text": "a"}], "needs a `name`"),
        ([{"name": "a", "text": "x", "data": "eA=="}], "one of"),
        ([{"name": "a", "text": 1}], "`text` of file 'a' must be a string, not the number 1"),
        ([{"name": "a", "text": {"b": 1}}], "json.dumps"),
        ([{"name": "a", "text": "x", "path": "/etc"}], "has no 'path'"),
        ([{"name": "a", "text": "\ud800"}], "as `data`, in base64"),
        ([{"name": "a", "data": "no base64!"}], "Give text as `text`"),
        ([{"name": "a", "data": "data:text/plain;base64,AA=="}], "as `uri`"),
        ([{"name": "a", "data": "?"}] * 101, "There are 101 files"),
        ([{"name": "a", "data": "?" * (MAX_DATA_CHARS + 1)}], "is more than a run takes"),
    ],
)
def test_what_is_no_file_is_told_what_one_is(value: Any, why: str) -> None:
    """So that the next attempt is right."""
    with pytest.raises(InvalidRequestError) as caught:
        parse_files(value)
    assert why in str(caught.value)
