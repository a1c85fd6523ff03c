"""Targets, verdicts, and the table of the issue as data."""

from __future__ import annotations

import pytest

from benchmarks.bench import Group
from benchmarks.runner import GROUPS, chosen, is_measured
from benchmarks.targets import BY_KEY, ENGINES, LOCAL, REMOTE, ROWS, Target, Verdict


@pytest.mark.parametrize(
    ("target", "figure", "ratio", "expected"),
    [
        (Target(at_most=5), 5.0, None, "met"),
        (Target(at_most=5), 5.1, None, "missed"),
        (Target(at_least=40), 40.0, None, "met"),
        (Target(at_least=40), 39.9, None, "missed"),
        (Target(ratio_at_most=1.0), 300.0, 1.0, "met"),
        (Target(ratio_at_most=1.0), 300.0, 1.01, "missed"),
        (Target(ratio_at_least=0.8), 4.0, 0.8, "met"),
        (Target(ratio_at_least=0.8), 4.0, 0.79, "missed"),
        (Target(at_most=5, ratio_at_most=3), 4.0, 3.5, "missed"),
        (Target(at_most=5, ratio_at_most=3), 6.0, 2.0, "missed"),
        (Target(at_most=5, ratio_at_most=3), 4.0, 2.0, "met"),
        (Target(), 4.0, 2.0, "no target"),
        (Target(at_most=5), None, None, "not measured"),
    ],
)
def test_a_verdict_holds_the_figure_against_every_bound(
    target: Target, figure: float | None, ratio: float | None, expected: Verdict
) -> None:
    assert target.verdict(figure, ratio) == expected


def test_a_ratio_that_could_not_be_had_does_not_meet_a_bound_on_it() -> None:
    assert Target(ratio_at_most=3).verdict(4.0, None) == "missed"


def test_a_target_says_all_its_bounds() -> None:
    assert Target(at_most=5, ratio_at_most=3).text("ms") == "≤ 5 ms and ≤ 3 × floor"
    assert Target(at_least=40).text("runs/s") == "≥ 40 runs/s"
    assert Target().text("ms") == "–"


def test_the_embedded_backend_has_targets_of_its_own() -> None:
    assert BY_KEY["warm"].target("docker") == Target(ratio_at_most=2.2)
    assert BY_KEY["cold"].target("bubblewrap") == Target(at_most=60)
    assert BY_KEY["sustained"].target("docker") == Target()


def test_a_row_whose_target_is_a_ratio_names_its_floor() -> None:
    for row in ROWS:
        for engine in ENGINES:
            target = row.target(engine)
            if target.ratio_at_most is not None or target.ratio_at_least is not None:
                assert row.floor, row.key


def test_targets_of_this_machines_engines_are_not_those_of_other_machines() -> None:
    for engine in REMOTE:
        assert BY_KEY["warm"].target(engine) == Target()
    assert BY_KEY["pod-waits"].target("kubernetes") == Target(ratio_at_most=0.5)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_row_is_measured_by_two_groups(engine: str) -> None:
    measured = [key for group in GROUPS if engine in group.engines for key in group.keys]
    assert sorted(measured) == sorted({*measured})
    if engine in LOCAL:
        assert {row.key for row in ROWS if row.host_only} < {*measured}


def test_every_row_is_measured_somewhere() -> None:
    assert {key for group in GROUPS for key in group.keys} == {row.key for row in ROWS}


@pytest.mark.parametrize("engine", REMOTE)
def test_other_machines_have_the_rows_that_show_what_the_way_costs(engine: str) -> None:
    measured = {key for group in GROUPS if engine in group.engines for key in group.keys}
    assert {"warm", "cold", "call", "sustained", "message"} < measured


def test_an_engine_is_not_needed_when_no_row_asked_for_is_measured_on_it() -> None:
    assert is_measured("kubernetes", None)
    assert is_measured("kubernetes", ["gather", "pod-waits"])
    assert not is_measured("kubernetes", ["gather"])


def on(engine: str, groups: tuple[Group, ...]) -> list[Group]:
    return [group for group in groups if engine in group.engines]


def test_rows_asked_for_choose_the_groups_that_measure_them() -> None:
    found = on("podman", chosen(["throughput", "warm"]))
    assert [group.keys for group in found] == [
        ("warm", "warm-cpu"),
        ("gather", "throughput"),
    ]
    assert chosen(None) == GROUPS


def test_rows_measured_together_are_measured_apart_when_only_one_is_asked_for() -> None:
    (together,) = on("podman", chosen(["first-line", "warm", "warm-cpu"]))
    (alone,) = chosen(["first-line"])
    assert together.keys == ("warm", "warm-cpu", "first-line")
    assert alone.keys == ("first-line",)
    assert alone.measure is not together.measure


def test_the_rows_of_one_group_are_all_of_the_host_or_all_of_an_engine() -> None:
    for group in GROUPS:
        assert len({BY_KEY[key].host_only for key in group.keys}) == 1
        assert not (BY_KEY[group.keys[0]].host_only and {*REMOTE} & {*group.engines})
