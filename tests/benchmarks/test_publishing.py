"""The tables, and the page that keeps one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.publish import BEGIN, END, PAGE, PublishError, publish, replaced
from benchmarks.results import Measurement, load
from benchmarks.table import cells, markdown, terminal
from tests.benchmarks.samples import results, warm

FRAME = f"before\n{BEGIN}\nold\n{END}\nafter\n"


def test_a_measurement_is_shown_with_target_ratio_and_verdict() -> None:
    assert cells(warm(4.0, 2.0))[1:] == (
        "podman",
        "≤ 2.2 × floor",
        "4.00 ms",
        "2.00 ms",
        "2.00",
        "met",
    )
    assert cells(warm(9.0, 2.0))[-1] == "MISSED"


def test_the_report_says_why_something_is_missing() -> None:
    absent = Measurement(row="sustained", engine="podman", unavailable="no namespaces")
    text = terminal(results(absent, warm(), skipped={"docker": "it does not answer"}))
    assert "sustained on podman: not available: no namespaces" in text
    assert "docker was skipped: it does not answer" in text
    assert "Targets met: 1; missed: 0; not measured: 1." in text


def test_the_report_has_the_rows_in_the_order_of_the_table() -> None:
    cold = Measurement(row="cold", engine="podman", figure=1.0, floor=1.0)
    lines = markdown(results(cold, warm())).splitlines()
    assert ["1+1" in line for line in lines[2:4]] == [True, True]
    assert "a second apart" in lines[2]


def test_the_page_keeps_what_is_around_the_markers() -> None:
    assert replaced(FRAME, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


@pytest.mark.parametrize("page", ["", f"{END}\n{BEGIN}", FRAME + FRAME, BEGIN])
def test_a_page_without_markers_in_order_is_refused(page: str) -> None:
    with pytest.raises(PublishError, match="The page needs the line"):
        replaced(page, "new")


def test_publishing_writes_the_page_and_the_pictures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(FRAME)
    written = publish(
        results(warm(samples=(4.0, 4.5))), page, tmp_path / "pictures", tmp_path / "published.json"
    )
    assert [path.name for path in written] == ["page.md", "published.json", "warm.svg"]
    kept = load(tmp_path / "published.json").find("warm", "podman")
    assert kept == warm()
    text = page.read_text()
    assert "(performance/warm.svg)" in text
    assert "old" not in text
    assert "Some Processor, 2 cores" in text


def test_publishing_twice_gives_the_same_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(FRAME)
    publish(results(warm()), page, tmp_path / "pictures", tmp_path / "published.json")
    once = page.read_text()
    publish(results(warm()), page, tmp_path / "pictures", tmp_path / "published.json")
    assert page.read_text() == once


def test_the_real_page_can_be_published_to() -> None:
    replaced(PAGE.read_text(encoding="utf-8"), "new")
