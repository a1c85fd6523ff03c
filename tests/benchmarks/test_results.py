"""The results file: what is written comes back, and what is no such file is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import (
    FORMAT,
    VERSION,
    Measurement,
    ResultsError,
    dumped,
    joined,
    load,
    parsed,
)
from tests.benchmarks.samples import MACHINE, results, warm


def test_what_is_written_comes_back() -> None:
    absent = Measurement(row="sustained", engine="podman", unavailable="no namespaces")
    written = results(
        warm(samples=(4.5, 3.5), floor_samples=(2.0,), detail="p99 5 ms"),
        absent,
        skipped={"docker": "there is no command docker here"},
    )
    read = parsed(dumped(written), "x")
    assert read.machine == written.machine
    assert (read.engines, read.skipped) == (written.engines, written.skipped)
    assert read.rows == (
        warm(samples=(3.5, 4.5), floor_samples=(2.0,), detail="p99 5 ms"),
        absent,
    )


def test_results_taken_one_after_the_other_are_joined() -> None:
    there = Measurement(row="warm", engine="kubernetes", figure=30.0, floor=3.0)
    second = results(
        there,
        engines={"kubernetes": "1.20.2"},
        machine=replace(MACHINE, load_before=7.0, load_after=9.0),
    )
    both = joined(results(warm(), skipped={"docker": "it does not answer"}), second)
    assert both.rows == (warm(), there)
    assert both.engines == {"podman": "4.3.1", "kubernetes": "1.20.2"}
    assert both.skipped == {"docker": "it does not answer"}
    assert both.machine == replace(MACHINE, load_after=9.0)
    assert not both.quick
    assert joined(results(), results(quick=True)).quick


def test_the_file_is_json_with_one_line_for_each_measurement() -> None:
    text = dumped(results(warm(samples=(4.0,)), warm()))
    assert json.loads(text)["format"] == FORMAT
    assert sum(line.startswith('  {"row":') for line in text.splitlines()) == 2


def test_ratio_verdict_and_summary_are_there_for_readers_and_worked_out_anew() -> None:
    text = dumped(results(warm(4.0, 2.0, samples=(4.0,))))
    row = json.loads(text)["rows"][0]
    assert (row["ratio"], row["verdict"], row["summary"]["n"]) == (2.0, "met", 1)
    forged = text.replace('"verdict":"met"', '"verdict":"missed"')
    assert parsed(forged, "x").rows[0].verdict == "met"


def test_a_file_without_measurements_can_be_written_and_read() -> None:
    assert parsed(dumped(results()), "x").rows == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", r"x is not JSON .* Make one with `make bench`"),
        ("[]", "x is not a results file of this benchmark"),
        ('{"format": "something else"}', "x is not a results file of this benchmark"),
        (
            json.dumps({"format": FORMAT, "version": VERSION + 1}),
            f"x has version {VERSION + 1} .* reads version {VERSION}. Measure that commit again",
        ),
        (json.dumps({"format": FORMAT, "version": VERSION}), "x is damaged: machine: "),
    ],
)
def test_what_is_no_results_file_is_refused_with_what_to_do(text: str, said: str) -> None:
    with pytest.raises(ResultsError, match=said):
        parsed(text, "x")


def test_a_damaged_measurement_is_refused() -> None:
    text = dumped(results(warm())).replace('"figure":4.0', '"figure":"quick"')
    with pytest.raises(ResultsError, match="damaged: figure"):
        parsed(text, "x")


def test_rows_that_this_benchmark_no_longer_has_are_left_out() -> None:
    text = dumped(results(warm())).replace('"row":"warm"', '"row":"a row of old"')
    assert parsed(text, "x").rows == ()


def test_a_file_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="There is no .*results.json. Make one"):
        load(tmp_path / "results.json")


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ResultsError, match="cannot be read"):
        load(path)
