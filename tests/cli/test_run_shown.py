"""What a terminal gets of things shown."""

from __future__ import annotations

import pytest

from bridge.cli.run import pictures, show
from bridge.model import Artifact, RunResult, Shown

ORIGINAL = Artifact(
    uri="bridge://artifacts/a",
    name="shown-1.png",
    mime_type="image/png",
    size=9,
    digest="0" * 64,
    run_id="r",
    kind="shown",
)
RESULT = RunResult(
    run_id="r",
    status="success",
    summary="",
    stdout="1\n",
    shown=(
        Shown(mime_type="image/png", data=b"png", width=6, height=4, artifact=ORIGINAL),
        Shown(mime_type="text/markdown", text="|a|"),
        Shown(mime_type="text/plain", text="b", note="the text\x1b of a page", artifact=ORIGINAL),
    ),
)


@pytest.mark.parametrize("terminal", [True, False])
def test_texts_are_output_and_pictures_are_told_of_on_a_terminal(
    capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    show(RESULT, terminal=terminal)
    written = capsys.readouterr()
    assert written.out == "1\n|a|\nb\n"
    told = (
        "shown: image/png 6x4 bridge://artifacts/a\n"
        "shown: text/plain (the text\\x1b of a page) bridge://artifacts/a\n"
    )
    assert written.err == (told if terminal else "")


def test_the_originals_of_pictures_go_where_files_go() -> None:
    assert pictures(RESULT) == [ORIGINAL]
