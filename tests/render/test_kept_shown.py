"""What a result says of things shown, which are blocks of their own."""

from __future__ import annotations

from bridge.model import Artifact, RunResult, Shown
from bridge.render.receipt import bytes_returned
from bridge.render.structured import structured
from bridge.render.text import compact

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
