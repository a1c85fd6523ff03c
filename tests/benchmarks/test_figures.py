"""Statistics of samples."""

from __future__ import annotations

import pytest

from benchmarks.figures import MAX_KEPT, kept, median, quantile, ratio, rounded, shown, summary


def test_a_quantile_lies_between_neighbours_in_proportion() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([0.0, 10.0], 0.99) == pytest.approx(9.9)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (1.0, 3.0)])
def test_the_outermost_quantiles_are_the_least_and_the_greatest(
    share: float, expected: float
) -> None:
    assert quantile([2.0, 3.0, 1.0], share) == expected


def test_one_sample_is_each_of_its_quantiles() -> None:
    assert quantile([7.0], 0.99) == median([7.0]) == 7.0


@pytest.mark.parametrize(("samples", "share"), [([], 0.5), ([1.0], 1.5)])
def test_what_is_no_quantile_is_refused(samples: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"no samples|a share is"):
        quantile(samples, share)


def test_a_summary_has_the_count_and_the_quantiles() -> None:
    found = summary([float(number) for number in range(1, 102)])
    assert found is not None
    assert (found.n, found.min, found.p50, found.p90, found.p99, found.max) == (
        101,
        1.0,
        51.0,
        91.0,
        100.0,
        101.0,
    )
    assert summary([]) is None


@pytest.mark.parametrize(("figure", "floor"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_there_is_no_ratio_without_both_or_to_nothing(
    figure: float | None, floor: float | None
) -> None:
    assert ratio(figure, floor) is None


def test_a_ratio_is_how_many_times_the_floor() -> None:
    assert ratio(3.0, 2.0) == 1.5


def test_few_samples_are_kept_as_they_are_but_for_digits() -> None:
    assert kept([3.00004, 1.23456]) == [1.235, 3.0]


def test_of_many_samples_as_many_quantiles_are_kept_with_both_ends() -> None:
    many = [float(number) for number in range(1000)]
    found = kept(many)
    assert len(found) == MAX_KEPT
    assert (found[0], found[-1]) == (0.0, 999.0)
    assert median(found) == pytest.approx(median(many), rel=0.01)


def test_rounding_keeps_digits_that_count_however_small_or_large() -> None:
    assert rounded(0.000123456) == 0.0001235
    assert rounded(123456.0) == 123500.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (1234.56, "1,235 ms"),
        (12.345, "12.3 ms"),
        (1.2345, "1.23 ms"),
    ],
)
def test_a_value_is_shown_with_as_many_digits_as_tell_something(
    value: float | None, expected: str
) -> None:
    assert shown(value, "ms") == expected
