"""Two results side by side, and the command that does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import compare as command
from benchmarks.comparison import NOISE, Change, better_of, compare, doubts, regressions
from benchmarks.results import Measurement, Results, dumped
from benchmarks.table import compared
from tests.benchmarks.samples import MACHINE, results, warm


def test_ratios_are_compared_where_there_are_floors_whatever_the_figures_say() -> None:
    (line,) = compare(results(warm(4.0, 2.0)), results(warm(40.0, 20.0)))
    assert (line.old, line.new, line.by_ratio, line.change) == (2.0, 2.0, True, "same")


@pytest.mark.parametrize(
    ("new", "change"),
    [(2.0 * (1 + NOISE) - 0.01, "same"), (2.0 * (1 + NOISE) + 0.01, "worse"), (1.0, "better")],
)
def test_a_ratio_is_worse_only_beyond_the_noise(new: float, change: Change) -> None:
    (line,) = compare(results(warm(2.0, 1.0)), results(warm(new, 1.0)))
    assert line.change == change


@pytest.mark.parametrize(("new", "change"), [(0.5, "worse"), (2.0, "better"), (0.95, "same")])
def test_where_more_is_better_less_is_worse(new: float, change: Change) -> None:
    def rate(figure: float) -> Measurement:
        return Measurement(row="sustained", engine="podman", figure=figure, floor=1.0)

    (line,) = compare(results(rate(1.0)), results(rate(new)))
    assert line.change == change


def test_figures_are_compared_where_there_is_no_floor() -> None:
    def idle(figure: float) -> Measurement:
        return Measurement(row="idle-cpu", engine="podman", figure=figure)

    (line,) = compare(results(idle(0.2)), results(idle(0.9)))
    assert (line.by_ratio, line.change) == (False, "worse")


def test_rows_that_only_one_has_are_named_and_are_no_regressions() -> None:
    other = Measurement(row="cold", engine="podman", figure=1.0, floor=1.0)
    lines = compare(results(warm()), results(other))
    assert [(line.row, line.change) for line in lines] == [("warm", "gone"), ("cold", "new")]
    assert regressions(lines) == ()


def test_a_row_that_neither_could_measure_is_not_shown() -> None:
    absent = Measurement(row="sustained", engine="podman", unavailable="no namespaces")
    assert compare(results(absent), results(absent)) == ()


def test_what_weakens_a_comparison_is_said() -> None:
    busy = type(MACHINE)(**{**vars(MACHINE), "load_after": 7.0})
    elsewhere = type(MACHINE)(**{**vars(MACHINE), "cores": 64})
    assert doubts(results(), results()) == ()
    said = doubts(results(quick=True), results(machine=busy))
    assert len(said) == 2
    assert "--quick" in said[0]
    assert "load of 7.0" in said[1]
    assert "machines differ" in doubts(results(), results(machine=elsewhere))[0]


def test_the_comparison_is_shown_as_a_table() -> None:
    text = compared(compare(results(warm(2.0, 1.0)), results(warm(3.0, 1.0))))
    assert text.splitlines()[1].split() == [
        "warm",
        "podman",
        "ratio",
        "2.00",
        "3.00",
        "+50%",
        "WORSE",
    ]


def _written(path: Path, figure: float) -> str:
    path.write_text(dumped(results(warm(figure, 1.0))))
    return str(path)


@pytest.mark.parametrize(("figure", "status"), [(2.0, 0), (3.0, 1)])
def test_the_command_ends_with_1_on_regressions(
    figure: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = _written(tmp_path / "old", 2.0), _written(tmp_path / "new", figure)
    assert command.main([old, new]) == status
    assert f"{status} worse by more than 15%" in capsys.readouterr().out


def test_the_command_ends_with_2_on_files_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path / "none"), _written(tmp_path / "new", 1.0)]) == 2
    assert "There is no" in capsys.readouterr().err


def test_a_row_that_looks_worse_is_measured_again_and_the_best_reading_counts() -> None:
    readings = iter(
        [results(warm(9.0, 1.0), _cold(1.0)), results(warm(7.0, 1.0)), results(warm(2.0, 1.0))]
    )
    asked: list[object] = []

    def measure(quick: bool, only: Sequence[str] | None) -> Results:
        asked.append((quick, only))
        return next(readings)

    new = command.best_of(results(warm(2.0, 1.0), _cold(1.0)), measure, NOISE)
    assert asked == [(True, None), (False, ["warm"]), (False, ["warm"])]
    assert new.find("warm", "podman") == warm(2.0, 1.0)
    assert new.find("cold", "podman") == _cold(1.0)


def test_a_row_that_stays_worse_is_measured_a_bounded_number_of_times() -> None:
    readings = iter([results(warm(9.0, 1.0)), results(warm(6.0, 1.0)), results(warm(7.0, 1.0))])
    new = command.best_of(results(warm(2.0, 1.0)), lambda quick, only: next(readings), NOISE)
    assert new.find("warm", "podman") == warm(6.0, 1.0)
    assert next(readings, None) is None


def test_of_two_readings_each_row_is_the_better_one() -> None:
    def rate(figure: float) -> Measurement:
        return Measurement(row="sustained", engine="podman", figure=figure, floor=1.0)

    both = better_of(
        results(warm(2.0, 1.0), rate(3.0)), results(warm(3.0, 1.0), rate(4.0), _cold(1.0))
    )
    assert both.rows == (warm(2.0, 1.0), rate(4.0), _cold(1.0))


def _cold(figure: float) -> Measurement:
    return Measurement(row="cold", engine="podman", figure=figure, floor=1.0)
