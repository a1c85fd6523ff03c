"""Data frames as text. The real libraries are the end-to-end tests'; here are stand-ins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bridge.gate.plans.arguments import labelled
from bridge.guest.display_tables import (
    MAX_CELL_CHARS,
    MAX_TABLE_CHARS,
    Table,
    cell,
    describe,
    text_of,
)
from bridge.guest.placeholders import write


def table(
    length: int, columns: int, value: str = "v", *, labelled: bool = False, name: str = "c"
) -> Table:
    """Return a table of which each cell tells its row and column."""

    def rows(start: int, stop: int, picked: Sequence[int]) -> list[list[str]]:
        assert 0 <= start <= stop <= length
        labels = [[str(row)] if labelled else [] for row in range(start, stop)]
        return [
            [*label, *(f"{value}{row}.{column}" for column in picked)]
            for row, label in zip(range(start, stop), labels, strict=True)
        ]

    kinds = [(f"{name}{number}", "int64") for number in range(columns)]
    return Table(f"Table {length} rows x {columns} columns", kinds, length, rows, labelled)


def test_a_small_table_is_whole() -> None:
    assert text_of(table(2, 2, labelled=True)).splitlines() == [
        "Table 2 rows x 2 columns",
        "c0: int64, c1: int64",
        "||c0|c1|",
        "|-|-|-|",
        "|0|v0.0|v0.1|",
        "|1|v1.0|v1.1|",
    ]


def test_a_long_one_has_its_beginning_and_its_end() -> None:
    lines = text_of(table(1000, 2)).splitlines()
    assert lines[4] == "|v0.0|v0.1|"
    assert lines[16] == "|...||"
    assert lines[17] == "|v992.0|v992.1|"
    assert lines[-1] == "|v999.0|v999.1|"
    assert len(text_of(table(20, 1)).splitlines()) == 4 + 20


@pytest.mark.parametrize("labelled", [False, True])
def test_a_wide_one_lacks_the_columns_in_the_middle(labelled: bool) -> None:
    text = text_of(table(1, 40, labelled=labelled))
    lines = text.splitlines()
    label = "|" if labelled else ""
    assert lines[2].startswith(f"{label}|c0|c1|")
    assert "|c6|...|c33|" in lines[2]
    assert "|v0.6|...|v0.33|" in lines[-1]
    assert len({line.count("|") for line in lines[2:]}) == 1
    assert "c39: int64" in lines[1]


@pytest.mark.parametrize(
    "made",
    [
        table(10**9, 10**4, "x" * 30),
        table(10**9, 14, "x" * 500),
        table(5, 3000, name="long" * 100),
        table(0, 0),
        table(0, 5),
        table(7, 0),
    ],
)
def test_whatever_its_shape_the_text_is_bounded_and_tells_it(made: Table) -> None:
    text = text_of(made)
    assert len(text) <= MAX_TABLE_CHARS
    assert text.startswith(made.title)


def test_more_columns_than_can_be_named_are_counted() -> None:
    assert "and 2" in text_of(table(1, 3000)).splitlines()[1]
    assert text_of(table(1, 3000)).splitlines()[1].endswith("more columns")


class Loud:
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1234567.891, "1.23457e+06"),
        (float("nan"), "nan"),
        ("a|b\n c", "a\\|b c"),
        ("x" * 100, "x" * MAX_CELL_CHARS + "..."),
        (list(range(1000)), "list of 1000"),
        ([1, 2], "[1, 2]"),
        (None, "None"),
        (Loud(), "<Loud: ValueError>"),
    ],
)
def test_a_cell_is_short_and_stays_in_its_row(value: object, text: str) -> None:
    assert cell(value) == text


def test_what_stands_for_a_held_result_is_not_cut() -> None:
    name = "a" * 60
    token = write("0" * 16, 1, (name,))
    assert labelled(cell(token), "0" * 16, {1: "a.b"}) == f"'‹result of #1 a.b›.{name}'"


def of(module: str, name: str, **fields: Any) -> Any:
    """Return a value whose type says that it is of a library."""
    kind = type(name, (), {"__module__": module, "__len__": lambda self: self.length, **fields})
    return type("Own", (kind,), {"__module__": "__main__"})()


class Values(list[Any]):
    """A column."""

    def tolist(self) -> list[Any]:
        return list(self)

    to_pylist = to_list = tolist


class Located:
    """What cuts stand-ins of pandas' frames by position."""

    def __init__(self, columns: dict[Any, list[Any]]) -> None:
        self.columns = columns

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, tuple):
            return Values(list(self.columns.values())[at[1]])
        cut = {name: column[at] for name, column in self.columns.items()}
        return frame(cut, range(*at.indices(len(next(iter(self.columns.values()))))))


def frame(columns: dict[Any, list[Any]], index: Sequence[int]) -> Any:
    """Return a stand-in for a frame of pandas."""
    return of(
        "pandas.core.frame",
        "DataFrame",
        shape=(len(index), len(columns)),
        columns=Values(columns),
        dtypes=Values(type(column[0]).__name__ for column in columns.values()),
        index=Values(index),
        iloc=Located(columns),
    )


def test_frames_are_known_by_their_library_and_also_their_subclasses() -> None:
    pandas = frame({"a": [1, 2], ("b", 1): ["x", "y"]}, range(2))
    assert describe(pandas) == (
        "text/markdown",
        "Own 2 rows x 2 columns\na: int, b, 1: str\n||a|b, 1|\n|-|-|-|\n|0|1|x|\n|1|2|y|",
    )


class Polars:
    """What a frame of polars can do."""

    columns = ("a", "b")
    dtypes = ("Int64", "String")
    shape = (2, 2)

    def select(self, names: list[str]) -> Polars:
        assert names == ["a", "b"]
        return self

    def slice(self, start: int, length: int) -> Polars:
        assert (start, length) == (0, 2)
        return self

    def rows(self) -> Iterator[tuple[Any, ...]]:
        return iter([(1, "x"), (2, None)])


def test_other_libraries_frames_look_alike() -> None:
    kind = type("DataFrame", (Polars,), {"__module__": "polars.dataframe.frame"})
    expected = "DataFrame 2 rows x 2 columns\na: Int64, b: String\n|a|b|\n|-|-|\n|1|x|\n|2|None|"
    assert describe(kind()) == ("text/markdown", expected)


def test_what_is_no_frame_or_fails_at_being_one_is_left_to_its_own_text() -> None:
    assert describe(object()) == describe([1]) == ("", "")
    assert describe(of("pandas.core.frame", "DataFrame")) == ("", "")
    assert describe(of("pandas.io.style", "Styler")) == ("", "")
