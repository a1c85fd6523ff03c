"""The one estimate of tokens, held against what a real tokenizer counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.text import count_tokens, definition_text

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "testdata" / "tokens.json").read_text(encoding="utf-8")
)["samples"]


@pytest.mark.parametrize(
    "sample", RECORDED, ids=lambda sample: f"{sample['kind']}: {sample['name']}"
)
def test_the_estimate_is_within_a_tenth_of_what_a_tokenizer_counts(sample: dict[str, Any]) -> None:
    assert count_tokens(sample["text"]) == pytest.approx(sample["tokens"], rel=0.1)


def test_all_that_a_model_reads_much_of_is_recorded() -> None:
    assert {sample["kind"] for sample in RECORDED} == {"prose", "rows", "digits", "code"}


@pytest.mark.parametrize("text", ["x" * 100_000, "aB3" * 30_000, "=" * 100_000, "0" * 100_000])
def test_no_flood_of_characters_passes_for_a_few_tokens(text: str) -> None:
    """Tokens bound the output of a program."""
    assert count_tokens(text) > 10_000


@given(st.text(max_size=200), st.text(max_size=200))
def test_two_texts_together_cost_no_more_than_each_on_a_line_of_its_own(
    one: str, other: str
) -> None:
    assert count_tokens(f"{one}\n{other}") <= count_tokens(one) + count_tokens(other) + 1


@given(st.text(st.characters(codec=None), max_size=200))
def test_every_text_has_a_number(text: str) -> None:
    assert 0 <= count_tokens(text) <= 3 * len(text) + 1


def test_a_definition_is_what_a_client_would_load() -> None:
    assert definition_text("t", "ü\n", {"type": "object"}) == (
        '{"name":"t","description":"ü\\n","input_schema":{"type":"object"}}'
    )
