"""Several things to show in one value: lists and dicts, and what drawing functions return."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.api.test_display import FAKE_MATPLOTLIB, FORMS, PICTURE, names, shown
from tests.guest.finished import Finished

FAKE_LIBRARIES = """
import sys, types
PIL = types.ModuleType("PIL"); sys.modules["PIL"] = PIL
class Image:
    mode = "RGB"
    def __init__(self, name): self.name = name
    def save(self, buffer, format): buffer.write(PNG + self.name.encode())
    def __repr__(self): return "<image %s>" % self.name
Image.__module__ = "PIL.Image"
class Series:
    def __str__(self): return "count\\n7"
    def _repr_html_(self): return "<table>count 7</table>"
Series.__module__ = "polars.series.series"
"""


def told(finished: Finished) -> list[tuple[str, str]]:
    return [(frame.mime, frame.text or frame.note) for frame in shown(finished)]


TABLE = "count\n7"


@pytest.mark.parametrize(
    ("last", "frames", "stdout"),
    [
        ("[Image('a'), Image('b')]", [("image/png", "")] * 2, ""),
        (
            "{'red': Image('a'), 'n': 3, 'table': Series()}",
            [("image/png", "red"), ("text/plain", f"table:\n{TABLE}")],
            "n: 3\n",
        ),
        ("(1, 2), Series()", [("text/plain", TABLE)], "(1, 2)\n"),
        ("[Blob('image/png', PNG)]", [("image/png", "")], ""),
        ("PNG", [("image/png", "")], ""),
        ("display([Image('a'), 'text'])", [("image/png", "")], "'text'\n"),
    ],
)
def test_pictures_and_tables_in_a_last_expression_are_shown_one_by_one(
    make_guest: Any, last: str, frames: list[tuple[str, str]], stdout: str
) -> None:
    finished = make_guest().run(FORMS + FAKE_LIBRARIES + last)
    assert told(finished) == frames
    assert (finished.stdout, finished.stderr) == (stdout, "")
    assert (finished.outcome.has_result, finished.outcome.result_repr) == (False, "")


@pytest.mark.parametrize(
    "last",
    [
        "[1, [2]]",
        "{'a': {'b': 1}}",
        "[]",
        "[Image('a')] * 21",
        "[[[Image('a')]]]",
        "[range(3)]",
        "b'abc'",
    ],
)
def test_data_and_long_lists_of_anything_stay_results(make_guest: Any, last: str) -> None:
    finished = make_guest().run(FORMS + FAKE_LIBRARIES + last)
    assert told(finished) == []
    assert finished.outcome.has_result or finished.outcome.result_repr


RETURNED = """
def part(figure):
    found = Artist(); found.figure = figure; return found
class Grid: pass
Grid.__module__ = "seaborn.axisgrid"
figure = Figure("lost")
grid = Grid(); grid.figure = figure
"""


@pytest.mark.parametrize(
    "last",
    [
        "[figure, part(figure)]",
        "{'x': figure}",
        "{'whiskers': [part(figure)], 'means': []}",
        "([part(figure)], [[part(figure)]])",
        "grid",
    ],
)
def test_what_drawing_functions_return_shows_its_figure_once(make_guest: Any, last: str) -> None:
    finished = make_guest().run(FORMS + FAKE_MATPLOTLIB + RETURNED + last)
    assert (names(finished), finished.outcome.result_repr) == (["lost"], "")


def test_a_list_with_something_else_beside_its_figures_is_shown_item_by_item(
    make_guest: Any,
) -> None:
    finished = make_guest().run(FORMS + FAKE_MATPLOTLIB + RETURNED + "[figure, 'text', 7]")
    assert (names(finished), finished.stdout) == (["lost"], "'text'\n7\n")


def test_lists_of_data_load_nothing_that_shows(make_guest: Any) -> None:
    code = FORMS + FAKE_LIBRARIES
    seen = "\nprint([name for name in sys.modules if 'display' in name])"
    checked = f"import atexit\natexit.register(lambda: exec({seen!r}))\n[{{'a': [1.5]}}, (2, None)]"
    assert make_guest().run(code + checked).stdout == "[]\n"


SCREENS = """
import os
os.makedirs("PIL"); os.makedirs("plotly")
open("PIL/__init__.py", "w").close(); open("plotly/__init__.py", "w").close()
open("PIL/Image.py", "w").write('''
class Image:
    mode = "RGB"
    def save(self, buffer, format): buffer.write(PNG)
    def show(self, title=None): raise OSError("no screen")
''')
open("plotly/basedatatypes.py", "w").write('''
class BaseFigure:
    def show(self, *args, **kwargs): raise OSError("no browser")
    def _repr_html_(self): return "<div>plot</div>"
''')
import PIL.Image, plotly.basedatatypes, webbrowser
PIL.Image.PNG = PNG
PIL.Image.Image().show("title")
plotly.basedatatypes.BaseFigure().show(renderer="browser")
open("a page.html", "w").write("<p>page</p>")
print(webbrowser.open("file://" + os.path.abspath("a page.html").replace(" ", "%20")))
print(webbrowser.open("https://example.com/"), webbrowser.open("file:///nowhere"))
"""


def test_what_would_open_a_window_or_a_browser_is_shown_instead(make_guest: Any) -> None:
    finished = make_guest().run(f"PNG = {PICTURE!r}\n{SCREENS}")
    assert finished.outcome.error == ""
    assert told(finished) == [
        ("image/png", ""),
        ("text/html", "<div>plot</div>"),
        ("text/html", "<p>page</p>"),
    ]
    assert finished.stdout == "True\nFalse False\n"
