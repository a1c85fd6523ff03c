"""What a result says of things shown, which are blocks of their own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import Artifact, RunResult, Shown
from bridge.render.receipt import bytes_returned
from bridge.render.structured import structured
from bridge.render.text import compact, value_text
from bridge.settings import OutputMode

ORIGINAL = Artifact(
    uri="bridge://artifacts/a",
    name="shown-1.png",
    mime_type="image/png",
    size=9,
    digest="0" * 64,
    run_id="r",
    kind="shown",
)


def result(*shown: Shown, stdout: str = "") -> RunResult:
    return RunResult(run_id="r", status="success", summary="", stdout=stdout, shown=shown)


PICTURE = Shown(mime_type="image/png", data=b"png", width=6, height=4, artifact=ORIGINAL)
TABLE = Shown(mime_type="text/markdown", text="|a|\n|-|\n|1|")


def test_a_picture_is_a_line_with_its_size() -> None:
    assert compact(result(PICTURE, stdout="1\n")) == "1\n[shown] image/png 6x4"


def test_what_was_done_to_one_is_said_with_where_the_original_is() -> None:
    less = Shown(**{**vars(PICTURE), "note": "60x40 shown as\n6x4"})
    absent = Shown(mime_type="image/png", note="not shown: no room", artifact=ORIGINAL)
    assert compact(result(less, absent, TABLE)).splitlines() == [
        "[shown]",
        "image/png 6x4 (60x40 shown as\\n6x4) bridge://artifacts/a",
        "image/png (not shown: no room) bridge://artifacts/a",
    ]


def test_a_run_that_only_showed_a_table_did_not_end_without_output() -> None:
    assert compact(result(TABLE)) == "[shown] 1 text, below"


def test_structured_content_has_all_but_the_pictures_themselves() -> None:
    assert structured(result(PICTURE, TABLE))["shown"] == [
        {"mimeType": "image/png", "width": 6, "height": 4, "uri": "bridge://artifacts/a"},
        {"mimeType": "text/markdown", "text": "|a|\n|-|\n|1|"},
    ]


def test_texts_count_as_output() -> None:
    assert bytes_returned(result(PICTURE, TABLE, stdout="12")) == 2 + len(TABLE.text)


MODES: tuple[OutputMode, ...] = ("compact", "toon", "json", "auto")
ROWS = [{"name": "ann", "age": 31}, {"name": "ben", "age": 27}, {"name": "eve", "age": 45}]
NESTED = {"server": {"host": "localhost", "port": 8080, "tls": {"cert": "/etc/a", "key": "/b"}}}
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), ("a", '"a"'), ("a\nb", "a\nb"), (42, "42"), ([], "[]")],
)
@pytest.mark.parametrize("mode", ["compact", "auto"])
def test_a_value_is_compact_json_or_a_text_of_lines(
    value: Any, text: str, mode: OutputMode
) -> None:
    assert value_text(value, mode) == text


def test_json_is_json_also_of_a_text_of_lines() -> None:
    assert value_text("a\nb", "json") == r'"a\nb"'


def test_auto_writes_tables_as_toon() -> None:
    assert value_text(ROWS, "auto") == "[3]{name,age}:\n  ann,31\n  ben,27\n  eve,45"


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3],
        [["words", 132], ["tool", 77], ["server", 60]],
        ["Work of Eve", "Work of Ada", "Fix the bug, now"],
        {"open": [1, 2, 3, 4, 5], "closed": [6, 7, 8]},
        NESTED,
    ],
)
def test_auto_writes_what_costs_more_as_toon_as_json(value: Any) -> None:
    assert value_text(value, "auto") == value_text(value, "json")


def test_toon_is_toon_whatever_it_costs() -> None:
    assert value_text(NESTED, "toon").startswith("server:\n  host: localhost\n")


@pytest.mark.parametrize("mode", MODES)
def test_values_beyond_what_formats_hold_are_written(mode: OutputMode) -> None:
    deep: Any = "end"
    for _ in range(300):
        deep = [deep]
    assert "end" in value_text(deep, mode)
    assert r"\ud800" in value_text(["\ud800"], mode)


@pytest.mark.parametrize("mode", MODES)
@given(value=ANY_VALUE)
def test_every_value_has_a_text(mode: OutputMode, value: Any) -> None:
    value_text(value, mode).encode()
