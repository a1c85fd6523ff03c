"""Counting without a tokenizer, and never with one that would have to be fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.tokens import definition_text, estimate

TABLE = "fb374d419588a4632f3f557e76b4b70aebbca790"

SENTENCE = (
    "Create an issue in a repository. Needs write access; labels that do not exist are made. "
    "Returns the number of the issue and its address.\n"
)
SIGNATURE = (
    "  .git_log(repo_path: str, *, max_count: int = 10, start_timestamp: str | None = None, "
    "end_timestamp: str | None = None)\n"
)
SCHEMA = json.dumps(
    {
        "name": "convert_time",
        "description": "Convert time between timezones",
        "input_schema": {
            "type": "object",
            "properties": {
                "source_timezone": {"type": "string", "description": "Source IANA timezone name"},
                "time": {"type": "string", "description": "Time to convert in 24-hour format"},
            },
            "required": ["source_timezone", "time"],
        },
    },
    separators=(",", ":"),
)


@pytest.mark.parametrize(
    ("text", "counted"),
    [(SENTENCE, 29), (SIGNATURE, 36), (SCHEMA, 65), (SENTENCE * 40, 1160), ("", 0), (" ", 1)],
)
def test_the_estimate_is_close_to_what_the_tokenizer_counts(text: str, counted: int) -> None:
    """The numbers are o200k_base's; ten percent, and one token for short texts."""
    assert abs(estimate(text) - counted) <= 1 + counted * 0.1


@given(st.text(max_size=200), st.text(max_size=200))
def test_two_texts_together_cost_no_more_than_each_on_a_line_of_its_own(
    one: str, other: str
) -> None:
    """So that lines can be counted one by one."""
    assert estimate(f"{one}\n{other}") <= estimate(one) + estimate(other) + 1


@given(st.text(st.characters(codec=None), max_size=200))
def test_every_text_has_a_number(text: str) -> None:
    """Lone surrogates too; no more than bytes, roughly."""
    assert 0 <= estimate(text) <= 2 * len(text) + 1


def counted_with(cache: str) -> list[object]:
    """Count in a process of its own, in which nothing may be connected to."""
    code = f"""
import socket, sys
def refused(*_): raise AssertionError("connected")
socket.socket.connect = socket.create_connection = refused
from bridge.catalog.tokens import count_tokens, tokenizer_name
text = {SENTENCE!r}
print([tokenizer_name(), count_tokens(text), "tiktoken" in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TIKTOKEN_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[object] = json.loads(
        done.stdout.replace("'", '"').replace("T", "t").replace("F", "f")
    )
    return found


def test_without_the_table_the_tokenizer_is_not_even_imported(tmp_path: Path) -> None:
    """It would fetch it."""
    assert counted_with(str(tmp_path)) == ["estimate", estimate(SENTENCE), False]
    assert counted_with("") == ["estimate", estimate(SENTENCE), False]


def test_a_table_that_is_not_the_right_one_is_left_alone(tmp_path: Path) -> None:
    """The tokenizer would delete it, and fetch another."""
    table = tmp_path / TABLE
    table.write_bytes(b"YQ== 0\n" + b" " * 3_613_915)
    assert counted_with(str(tmp_path))[0] == "estimate"
    assert table.exists()


def test_a_definition_is_what_a_client_would_load() -> None:
    """All of it, compact, and in the order that it was given."""
    assert definition_text("t", "ü\n", {"type": "object"}) == (
        '{"name":"t","description":"ü\\n","input_schema":{"type":"object"}}'
    )
