"""Data frames, series and arrays as text: shape, types and as many rows as are worth reading.

Owns the way from a frame of pandas, polars or pyarrow to a table, and how that is cut. Imports none
of them, nor numpy: whoever shows a frame has its library. What a library prints by itself leaves
out the types and spends most of its characters on blanks.
"""

from __future__ import annotations

import sys

from bridge.guest.placeholders import PREFIX, Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Sequence, Tuple

    Rows = List[List[str]]

MAX_TABLE_CHARS = 6000
"""About 2,000 tokens: a look at the data. Whoever wants all of it writes a file."""

MAX_COLUMNS = 14
MAX_CELL_CHARS = 40
MAX_NAMES_CHARS = 1500
"""Of the columns' names and types, of which there may be more than columns shown."""

HEADS_AND_TAILS = ((12, 8), (10, 5), (5, 3), (2, 1), (0, 0))
"""Rows of the beginning and the end; the first that fits. Frames as long as the first are whole."""

MAX_ARRAY_CHARS = 2000
ARRAY_EDGE = 3
ARRAY_WHOLE = 100
"""Values up to which an array is shown whole."""


class Table:
    """A part of a frame, as texts.

    Attributes:
        title: What it is, and how large.
        columns: All names and types, in order.
        labelled: Whether rows have labels, which is a column of its own without a name.
        rows: Gives the cells of the rows from one number to another, of the columns at some
            positions.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[Tuple[str, str]],
        length: int,
        rows: Callable[[int, int, Sequence[int]], Rows],
        labelled: bool = False,
    ) -> None:
        self.title = title
        self.columns = columns
        self.length = length
        self.rows = rows
        self.labelled = labelled


def describe(value: Any) -> Tuple[str, str]:
    """Return a table or an array as text, behind its type; empty for anything else.

    And for what fails at it.
    """
    maker = _maker(type(value))
    if maker is None:
        return "", ""
    try:
        text: str = maker(value)
    except Exception:
        # A subclass with ways of its own, or a library of another make: its own text will do.
        return "", ""
    return "text/plain" if maker is _array else "text/markdown", text


def is_table(kind: type) -> bool:
    """Tell whether values of a type are tables or arrays."""
    return _maker(kind) is not None


def _maker(kind: type) -> Any:
    for base in type.mro(kind):
        # Not by way of a class of the class, which may be anything.
        package = str(type.__getattribute__(base, "__module__")).partition(".")[0]
        maker = _MAKERS.get((package, base.__name__))
        if maker is not None:
            return maker
    return None


def text_of(table: Table) -> str:
    """Return a table's title, its columns with their types, and rows of it as Markdown."""
    picked = _picked(len(table.columns))
    lines = [table.title]
    if table.columns:
        lines.append(_names(table.columns))
    for head, tail in HEADS_AND_TAILS:
        rows = _rows(table, head, tail, picked)
        whole = "\n".join([*lines, *_grid(table, picked, rows)])
        if len(whole) <= MAX_TABLE_CHARS:
            return whole
    return "\n".join(lines)[:MAX_TABLE_CHARS]


def _picked(count: int) -> List[int]:
    """Return the positions of the columns shown: the first and the last."""
    if count <= MAX_COLUMNS:
        return list(range(count))
    first = MAX_COLUMNS // 2
    return [*range(first), *range(count - (MAX_COLUMNS - first), count)]


def _names(columns: Sequence[Tuple[str, str]]) -> str:
    told = ["%s: %s" % (_cut(name), _cut(kind)) for name, kind in columns[:200]]
    whole = ", ".join(told)
    if len(columns) == len(told) and len(whole) <= MAX_NAMES_CHARS:
        return whole
    kept, size = [], 0
    for each in told:
        size += len(each) + 2
        if size > MAX_NAMES_CHARS:
            break
        kept.append(each)
    return "%s and %d more columns" % (", ".join(kept), len(columns) - len(kept))


def _rows(table: Table, head: int, tail: int, picked: Sequence[int]) -> Rows:
    if table.length <= head + tail:
        return table.rows(0, table.length, picked)
    width = len(picked) + table.labelled
    rows = table.rows(0, head, picked) if head else []
    rows.append(["..."] * min(width, 1) + [""] * (width - 1))
    return rows + (table.rows(table.length - tail, table.length, picked) if tail else [])


def _grid(table: Table, picked: Sequence[int], rows: Rows) -> List[str]:
    names = [_cut(table.columns[position][0]) for position in picked]
    head = ["", *names] if table.labelled else names
    cut = MAX_COLUMNS // 2 + table.labelled if len(table.columns) > MAX_COLUMNS else 0
    lines = []
    for row in [head, ["-"] * len(head), *rows]:
        cells = [*row[:cut], "..." if row[:1] != ["-"] else "-", *row[cut:]] if cut else row
        lines.append("|%s|" % "|".join(cells))
    return lines


def cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    kind = type(value)
    if issubclass(kind, Unknown):
        return repr(value)
    try:
        if kind is float:
            text = "%.6g" % value
        elif isinstance(value, (list, tuple, dict, bytes)) and len(value) > MAX_CELL_CHARS:
            text = "%s of %d" % (kind.__name__, len(value))
        else:
            # As a plain text: one with what nobody knows in it must not be looked into.
            text = str.__str__(value) if issubclass(kind, str) else str(value)
    except Exception as error:
        text = "<%s: %s>" % (kind.__name__, type(error).__name__)
    # What stands for the result of a held call is cut by nobody.
    return repr(text) if PREFIX in text else _cut(text)


def _cut(text: Any) -> str:
    # Long ones are cut first: what is left out need not be looked at.
    told = " ".join(str(text)[: 8 * MAX_CELL_CHARS].split())
    if len(told) > MAX_CELL_CHARS:
        told = told[:MAX_CELL_CHARS] + "..."
    return told.replace("|", "\\|")


def _title(name: str, rows: int, columns: int) -> str:
    return "%s %d rows x %d columns" % (name, rows, columns)


# --- libraries ----------------------------------------------------------------------------------


def _pandas_frame(frame: Any) -> str:
    height, width = frame.shape
    types = [str(kind) for kind in frame.dtypes.tolist()]
    names = [_label(name) for name in frame.columns.tolist()]

    def rows(start: int, stop: int, picked: Sequence[int]) -> Rows:
        part = frame.iloc[start:stop]
        labels = [_label(label) for label in part.index.tolist()]
        columns = [part.iloc[:, position].tolist() for position in picked]
        return _crossed([labels, *([cell(value) for value in column] for column in columns)])

    title = _title(type(frame).__name__, height, width)
    return text_of(Table(title, list(zip(names, types)), height, rows, labelled=True))  # noqa: B905


def _pandas_series(series: Any) -> str:
    def rows(start: int, stop: int, picked: Sequence[int]) -> Rows:
        part = series.iloc[start:stop]
        labels = [_label(label) for label in part.index.tolist()]
        return _crossed([labels, [cell(value) for value in part.tolist()]])

    name = "value" if series.name is None else _label(series.name)
    title = "Series %d rows" % len(series)
    return text_of(Table(title, [(name, str(series.dtype))], len(series), rows, labelled=True))


def _polars_frame(frame: Any) -> str:
    height, width = frame.shape
    names = list(frame.columns)

    def rows(start: int, stop: int, picked: Sequence[int]) -> Rows:
        part = frame.select([names[position] for position in picked]).slice(start, stop - start)
        return [[cell(value) for value in row] for row in part.rows()]

    columns = list(zip(names, map(str, frame.dtypes)))  # noqa: B905
    return text_of(Table(_title("DataFrame", height, width), columns, height, rows))


def _polars_series(series: Any) -> str:
    def rows(start: int, stop: int, picked: Sequence[int]) -> Rows:
        return [[cell(value)] for value in series.slice(start, stop - start).to_list()]

    column = (str(series.name) or "value", str(series.dtype))
    return text_of(Table("Series %d rows" % len(series), [column], len(series), rows))


def _arrow_table(table: Any) -> str:
    columns = [(str(field.name), str(field.type)) for field in table.schema]

    def rows(start: int, stop: int, picked: Sequence[int]) -> Rows:
        part = table.slice(start, stop - start)
        found = [part.column(position).to_pylist() for position in picked]
        return _crossed([[cell(value) for value in column] for column in found])

    title = _title(type(table).__name__, table.num_rows, len(columns))
    return text_of(Table(title, columns, table.num_rows, rows))


def _array(array: Any) -> str:
    numpy = sys.modules["numpy"]
    shape = " x ".join(map(str, array.shape)) or "no dimension"
    text: str = numpy.array2string(
        array, threshold=ARRAY_WHOLE, edgeitems=ARRAY_EDGE, separator=", ", max_line_width=100
    )
    if len(text) > MAX_ARRAY_CHARS:
        text = "%s... (%d more characters)" % (text[:MAX_ARRAY_CHARS], len(text) - MAX_ARRAY_CHARS)
    return "%s %s, %s\n%s" % (type(array).__name__, shape, array.dtype, text)


def _label(label: Any) -> str:
    if isinstance(label, tuple):
        return ", ".join(cell(part) for part in label)
    return cell(label)


def _crossed(columns: Sequence[Sequence[str]]) -> Rows:
    return [list(row) for row in zip(*columns)]  # noqa: B905


_MAKERS: Dict[Tuple[str, str], Callable[[Any], str]] = {
    ("pandas", "DataFrame"): _pandas_frame,
    ("pandas", "Series"): _pandas_series,
    ("polars", "DataFrame"): _polars_frame,
    ("polars", "Series"): _polars_series,
    ("pyarrow", "Table"): _arrow_table,
    ("pyarrow", "RecordBatch"): _arrow_table,
    ("numpy", "ndarray"): _array,
}
