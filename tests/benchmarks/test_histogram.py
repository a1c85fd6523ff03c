"""Histograms: well-formed, small, true to the samples."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.histogram import BINS, Panel, bins, histogram
from benchmarks.pictures import drawings
from benchmarks.publish import MAX_PICTURE_BYTES
from tests.benchmarks.samples import results, warm

MANY = tuple(4 + number % 17 / 10 for number in range(120))


def drawn(*panels: Panel) -> str:
    return histogram("runs <fast> & slow", "ms", "a call", panels)


def test_a_picture_is_well_formed_whatever_its_title() -> None:
    root = ElementTree.fromstring(drawn(Panel(label="podman", samples=MANY)))
    assert root.attrib["aria-label"] == "runs <fast> & slow"


def test_a_picture_has_a_panel_for_each_engine_with_samples_and_grows_with_them() -> None:
    one = Panel(label="podman", samples=MANY, floor_samples=(1.0, 1.1))
    empty = Panel(label="docker", samples=())
    few = ElementTree.fromstring(drawn(one, empty))
    more = ElementTree.fromstring(drawn(one, one))
    assert int(more.attrib["height"]) > int(few.attrib["height"])
    assert "docker" not in drawn(one, empty)


def test_a_panel_says_its_quantiles_and_how_many_samples() -> None:
    text = drawn(Panel(label="podman", samples=(2.0, 4.0, 6.0), floor_samples=(1.0,)))
    assert "podman: p50 4 ms" in text
    assert "n 3; floor p50 1 ms" in text


def test_an_outlier_is_in_the_last_bar_and_said() -> None:
    text = drawn(Panel(label="podman", samples=(*MANY, *MANY, 500.0)))
    assert "1 beyond the axis, in the last bar" in text
    assert bins([500.0, 1.0], 10.0)[-1] == 1


def test_every_sample_is_in_a_bin() -> None:
    found = bins([0.0, 5.0, 9.999, 10.0, 11.0], 10.0)
    assert len(found) == BINS
    assert sum(found) == 5
    assert (found[0], found[BINS // 2], found[-1]) == (1, 1, 3)


@pytest.mark.parametrize("samples", [(0.0, 0.0), (1e-6,), (1e6, 2e6), (5.0,)])
def test_samples_of_any_size_can_be_drawn(samples: tuple[float, ...]) -> None:
    ElementTree.fromstring(drawn(Panel(label="podman", samples=samples)))


def test_nothing_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="no samples"):
        drawn(Panel(label="podman", samples=()))


def test_a_run_draws_the_rows_that_have_samples_and_each_is_small() -> None:
    rows = [warm(samples=MANY, floor_samples=MANY) for _ in range(3)]
    pictures = drawings(results(*rows))
    assert list(pictures) == ["warm.svg"]
    assert len(pictures["warm.svg"].encode()) < MAX_PICTURE_BYTES
