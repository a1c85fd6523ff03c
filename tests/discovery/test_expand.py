"""Variables in entries: the cases measured with Claude Code 2.1, and the cost of odd ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.expand import expand

ENVIRON = {"A": "va", "EMPTY": "", "NESTED": "${A}", "_x9": "ok"}


@pytest.mark.parametrize(
    ("text", "expanded", "unset"),
    [
        ("${A}", "va", ()),
        ("x${A}y${A}", "xvayva", ()),
        ("${B:-dflt}", "dflt", ()),
        ("${B:-}", "", ()),
        ("${A:-dflt}", "va", ()),
        ("${EMPTY}", "", ()),
        ("${EMPTY:-d2}", "", ()),
        ("${UNSET}", "${UNSET}", ("UNSET",)),
        ("${UNSET}${UNSET}${OTHER}", "${UNSET}${UNSET}${OTHER}", ("UNSET", "OTHER")),
        ("$A", "$A", ()),
        ("${X-A}", "${X-A}", ()),
        ("${A:=z}", "${A:=z}", ()),
        ("${}", "${}", ()),
        ("${9A}", "${9A}", ()),
        ("${_x9}", "ok", ()),
        ("${NESTED}", "${A}", ()),
        ("${B:-${A}}", "${A}", ()),
        ("%A%", "%A%", ()),
        ("${A", "${A", ()),
    ],
)
def test_references_expand_as_claude_code_expands_them(
    text: str, expanded: str, unset: tuple[str, ...]
) -> None:
    assert expand(text, ENVIRON) == (expanded, unset)


def test_unclosed_references_without_number_end_in_linear_time() -> None:
    text = "${A:-" * 200_000
    assert expand(text, ENVIRON) == (text, ())


@settings(deadline=None)
@given(st.text(alphabet="${}:-AB_x "))
def test_text_without_references_is_left_alone_and_nothing_raises(text: str) -> None:
    expanded, unset = expand(text, {})
    assert all(name in text for name in unset)
    if "${" not in text:
        assert expanded == text
