"""Variables in entries: each client's own spelling, and the cost of odd ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.dialect import Syntax
from bridge.discovery.documents import MalformedError
from bridge.discovery.variables import (
    MAX_INSERTED_CHARS,
    Variables,
    expand,
    input_variable,
    missing_inputs,
)
from tests.discovery.test_texts import VARIABLES

ENVIRON = {"A": "va", "EMPTY": "", "NESTED": "${A}", "_x9": "ok"}


def test_what_variables_and_files_bring_in_is_bounded_over_all_texts() -> None:
    """A small file may name a large one many times in every field."""
    part = "x" * (MAX_INSERTED_CHARS // 4)
    variables = Variables(environ={"A": part}, read=lambda _: part)
    assert len(expand("{file:f}{env:A}", variables, "opencode").text) == MAX_INSERTED_CHARS // 2
    expand("${A}${A}", variables)
    with pytest.raises(MalformedError, match="insert more than"):
        expand("$A", variables, "shell")


def test_unclosed_references_without_number_end_in_linear_time() -> None:
    text = "${A:-" * 200_000
    assert expand(text, Variables(environ=ENVIRON)).text == text


@settings(deadline=None)
@given(st.text(alphabet="${}:-AB_x "))
def test_text_without_references_is_left_alone_and_nothing_raises(text: str) -> None:
    found = expand(text, Variables(environ={}))
    assert all(name in text for name in found.unset)
    if "${" not in text:
        assert found.text == text


def test_an_input_has_the_environment_s_value_else_its_default_else_none() -> None:
    variables = replace(VARIABLES, environ={"MCP_BRIDGE_INPUT_API_KEY_2": "given"})
    assert expand("${input:api-key/2}", variables, "vscode").text == "given"
    assert expand("${input:region}${input:blank}", variables, "vscode").text == "eu"
    written = {"url": "${input:region}${input:other}", "args": ["${input:more}${input:other}"]}
    assert missing_inputs(written, variables, "vscode") == ("other", "more")
    assert missing_inputs(written, variables, "cursor") == ()
    assert input_variable("api-key/2") == "MCP_BRIDGE_INPUT_API_KEY_2"


@pytest.mark.parametrize("syntax", ["vscode", "shell", "windsurf", "opencode", "braces", "secrets"])
@pytest.mark.parametrize("piece", ["${env:", "${A:-", "{file:", "${{ secrets.", "${{  ", "$", "${"])
def test_no_syntax_takes_longer_than_its_text(syntax: Syntax, piece: str) -> None:
    text = piece * 50_000
    assert expand(text, VARIABLES, syntax).text == text
    assert expand(text + "}", VARIABLES, "claude").text


def test_no_value_shows_in_a_repr() -> None:
    assert "va" not in repr(VARIABLES)
    assert "va" not in repr(expand("${A}", VARIABLES))
