"""The ceilings on the size of the project only fall, except by what a grant allows."""

from __future__ import annotations

import ast

import pytest

from scripts import check_sizes

OLD = ({"bridge": 1_000, "tests": 2_000}, {"one": {"bridge": 100}})


@pytest.mark.parametrize(
    ("ceilings", "grants", "complaints"),
    [
        ({"bridge": 900, "tests": 2_000}, OLD[1], []),
        ({"bridge": 1_001, "tests": 2_000}, OLD[1], ["bridge"]),
        ({"bridge": 1_050, "tests": 2_000}, {**OLD[1], "two": {"bridge": 50}}, []),
        ({"bridge": 1_051, "tests": 2_000}, {**OLD[1], "two": {"bridge": 50}}, ["bridge"]),
        ({"bridge": 1_000, "tests": 2_001}, {**OLD[1], "two": {"bridge": 50}}, ["tests"]),
    ],
)
def test_a_ceiling_rises_by_no_more_than_a_new_grant(
    ceilings: dict[str, int], grants: dict[str, dict[str, int]], complaints: list[str]
) -> None:
    found = list(check_sizes.raised(OLD, (ceilings, grants)))
    assert [line.split()[3] for line in found] == complaints


def test_the_present_ceilings_are_read_from_the_script() -> None:
    source = (check_sizes.ROOT / "scripts" / "check_sizes.py").read_text(encoding="utf-8")
    assert check_sizes.tables(source) == (check_sizes.CEILINGS, check_sizes.GRANTS)


def test_limits_and_exception_classes_are_counted() -> None:
    source = "MAX_A = 1\n_STOP_SECONDS: int = 2\nLINES = 3\nclass FullError(OSError): ...\n"
    tree = ast.parse(source + "class Box: ...\n")
    assert (check_sizes.count_limits(tree), check_sizes.count_exceptions(tree)) == (2, 1)
