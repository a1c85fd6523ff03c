"""What programs show: which form of a value, how much of it, and what it costs others."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from bridge.guest.api.display import mime_of
from bridge.guest.protocol.wire import Shown
from tests.guest.finished import Finished
from tests.png import write_png

PICTURE = write_png(3, 2, lambda x, y: (x, y, 0))
LARGE = write_png(64, 64, lambda x, y: ((x * y) % 251, (x * 7 + y * 13) % 256, (x ^ y) * 3 % 256))

FORMS = f"""
import base64
PNG = base64.b64decode({base64.b64encode(PICTURE).decode()!r})
class Png:
    def _repr_png_(self): return PNG
    def _repr_html_(self): return "<b>worse</b>"
class Told:
    def _repr_png_(self): return (base64.b64encode(PNG).decode(), {{"width": 3}})
class Markdown:
    def _repr_html_(self): return "<b>worse</b>"
    def _repr_markdown_(self): return "# better"
class Html:
    def _repr_png_(self): return None
    def _repr_svg_(self): return "<svg/>"
    def _repr_html_(self): return "<table></table>"
class Svg:
    def _repr_svg_(self): return "<svg></svg>"
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {{"text/plain": "plain", "text/html": "<i>page</i>"}}, {{}}
class Broken:
    def _repr_png_(self): raise KeyError("gone")
    def _repr_html_(self): return "<p>second</p>"
class Model:
    def _repr_html_(self): return "<style>pages</style>"
    def _repr_mimebundle_(self, **kw): return {{"text/html": self._repr_html_()}}
    def __repr__(self): return "Model(depth=3)"
class Chart(Model):
    def show(self): ...
class Anything:
    def __getattr__(self, name): return lambda *a: b"anything"
    def __repr__(self): return "<anything>"
"""


def shown(finished: Finished) -> list[Shown]:
    return [frame for frame in finished.frames if isinstance(frame, Shown)]


def told(finished: Finished) -> list[tuple[str, str]]:
    return [(frame.mime, frame.text or frame.note) for frame in shown(finished)]


def test_the_best_form_of_each_value_is_shown_and_what_has_none_is_printed(guest_on: Any) -> None:
    code = FORMS + (
        "display(Png(), Told(), Markdown(), Html(), Svg(), Bundle(), Broken())\n"
        "print('before'); display(Anything(), 'a text', {'b': [1]}); print('after')\n"
        "display(Blob('image/png', PNG), PNG, b'none')"
    )
    finished = guest_on.run(code)
    picture = ("image/png", "")
    assert told(finished) == [
        *(picture, picture, ("text/markdown", "# better"), ("text/html", "<table></table>")),
        *(("image/svg+xml", "<svg></svg>"), ("text/html", "<i>page</i>")),
        *(("text/html", "<p>second</p>"), picture, picture),
    ]
    assert {frame.data for frame in shown(finished) if frame.mime == "image/png"} == {PICTURE}
    assert finished.stdout == "before\n<anything>\na text\n{'b': [1]}\nafter\nb'none'\n"
    assert finished.stderr == "display: _repr_png_ raised KeyError: 'gone'\n"


@pytest.mark.parametrize(
    ("last", "mime", "outcome"),
    [
        ("Png()", "image/png", (False, None, "")),
        ("Blob('image/png', PNG)", "image/png", (False, None, "")),
        ("Anything()", "", (False, None, "<anything>")),
        ("Model()", "", (False, None, "Model(depth=3)")),
        ("Chart()", "text/html", (False, None, "")),
        ("Blob('audio/wav', b'abc')", "", (False, None, "<Blob audio/wav, 3 bytes>")),
        ("[{'a': 1}]", "", (True, [{"a": 1}], "")),
        ("display(Png())", "image/png", (False, None, "")),
    ],
)
def test_a_last_expression_is_shown_if_that_is_what_it_is_for(
    make_guest: Any, last: str, mime: str, outcome: tuple[bool, Any, str]
) -> None:
    finished = make_guest().run(FORMS + last)
    assert (finished.has_result, finished.result, finished.result_repr) == outcome
    assert [frame.mime for frame in shown(finished)] == ([mime] if mime else [])
    assert finished.stderr == ""


def test_pictures_over_the_budget_are_sent_as_originals_with_the_reason(make_guest: Any) -> None:
    encoded = base64.b64encode(LARGE).decode()
    budget = len(encoded) * 2 + 100
    code = f"import base64\ndata = base64.b64decode({encoded!r})\nfor _ in range(25): display(data)"
    frames = shown(make_guest().run(code, limits={"shown_bytes": budget}))
    assert [bool(frame.data) for frame in frames] == [True] * 20 + [False] * 5
    assert [frame.note for frame in frames[:2]] == ["", ""]
    assert all(frame.note.startswith("not shown: ") for frame in frames[2:20])
    assert "10 pictures" in frames[15].note


def test_an_original_that_no_frame_can_hold_is_left_out(make_guest: Any) -> None:
    code = "import os\ndata = b'\\x89PNG\\r\\n\\x1a\\n' + bytes(16) + os.urandom(300_000)\n"
    code += "display(data)\nprint('and on')"
    limits = {"frame_bytes": 256 * 1024, "shown_bytes": 1000}
    finished = make_guest().run(code, limits=limits)
    (frame,) = shown(finished)
    assert (frame.data, frame.small) == (b"", "")
    assert "300,024 bytes, is too large to be kept" in frame.note
    assert finished.stdout == "and on\n"


def test_a_plan_stops_where_it_shows_what_no_one_knows(make_guest: Any) -> None:
    def held(guest: Any, call: Any) -> None:
        guest.reply(call.id, {"held": {"plan": "0" * 16, "number": 1, "call": "git-hub.echo"}})

    code = "value = await mcp_git_hub.echo(text='x')\ndisplay(value)\nprint('not here')"
    finished = make_guest().run(code, answer=held)
    assert finished.outcome.error_type == "HeldResultError"
    assert "it shows" in finished.outcome.error
    assert (finished.stdout, shown(finished)) == ("", [])


def test_modules_of_the_program_can_show_things_and_a_child_process_cannot(make_guest: Any) -> None:
    code = FORMS + (
        "import os\nopen('mine.py', 'w').write('def go(x): display(x)')\n"
        "import mine\nmine.go(Png())\n"
        "child = os.fork()\n"
        "if not child:\n    display(Png()); os._exit(0)\n"
        "os.waitpid(child, 0)\nprint('done')"
    )
    finished = make_guest().run(code)
    assert (len(shown(finished)), finished.stdout) == (1, "done\n")


FAKE_MATPLOTLIB = """
import os, sys, types

def module(name, **fields):
    found = sys.modules[name] = types.ModuleType(name)
    found.__dict__.update(fields)
    return found

class Artist:
    figure = None

class Figure(Artist):
    def __init__(self, name, broken=False): self.name, self.broken, self.number = name, broken, 0
    def get_children(self): return [1, 2] if self.name else [1]
    def savefig(self, buffer, format, **how):
        if self.broken: raise ValueError("cannot set\\nthis")
        buffer.write(PNG + self.name.encode())

Artist.__module__, Figure.__module__ = "matplotlib.artist", "matplotlib.figure"
figures = {}
def new(name, **how):
    figure = Figure(name, **how)
    figure.number = len(figures) + 1
    figures[figure.number] = figure
    return figure
module("matplotlib")
plt = module("matplotlib.pyplot", get_fignums=lambda: list(figures),
    figure=lambda number: figures[number], close=lambda which: figures.clear())
"""


NOT_DRAWN = "display: a figure cannot be drawn: ValueError: cannot set this\n"


@pytest.mark.parametrize(
    ("program", "names", "error", "stderr"),
    [
        ("one = new('one'); new(''); new('two')\ndisplay(one)\n1/0", ["one", "two"], "by zero", ""),
        ("line = Artist(); line.figure = new('one')\n[line]", ["one"], "", ""),
        ("a = Artist(); a.figure = Figure('lost'); new('open')\na", ["lost", "open"], "", ""),
        ("new('bad', broken=True); new('good')", ["good"], "", NOT_DRAWN),
        ("display(new('bad', broken=True))", [], "cannot set", ""),
    ],
)
def test_open_figures_are_shown_once_at_the_end_and_a_broken_one_costs_no_other(
    make_guest: Any, program: str, names: list[str], error: str, stderr: str
) -> None:
    finished = make_guest().run(FORMS + FAKE_MATPLOTLIB + program)
    assert [frame.data[len(PICTURE) :].decode() for frame in shown(finished)] == names
    assert (error in finished.error, bool(finished.error)) == (True, bool(error))
    assert (finished.stderr, finished.result_repr) == (stderr, "")


@pytest.mark.parametrize(
    ("data", "mime"),
    [
        (PICTURE, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", ""),
        (b"<svg>", ""),
        (b"", ""),
    ],
)
def test_pictures_are_known_by_their_first_bytes(data: bytes, mime: str) -> None:
    assert mime_of(data) == mime


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


@pytest.mark.parametrize(
    ("last", "frames", "stdout"),
    [
        ("[Image('a'), Image('b')]", ["image/png", "image/png"], ""),
        (
            "{'red': Image('a'), 'n': 3, 'table': Series()}",
            ["image/png red", "text/plain table:\ncount\n7"],
            "n: 3\n",
        ),
        ("(1, 2), Series()", ["text/plain count\n7"], "(1, 2)\n"),
        ("[Blob('image/png', PNG)]", ["image/png"], ""),
        ("PNG", ["image/png"], ""),
        ("display([Image('a'), 'text'])", ["image/png"], "'text'\n"),
        ("[1, [2]]", [], ""),
        ("{'a': {'b': 1}}", [], ""),
        ("[]", [], ""),
        ("[Image('a')] * 21", [], ""),
        ("[[[Image('a')]]]", [], ""),
        ("[range(3)]", [], ""),
        ("b'abc'", [], ""),
    ],
)
def test_a_last_expression_displays_its_pictures_and_tables_and_leaves_data_a_result(
    make_guest: Any, last: str, frames: list[str], stdout: str
) -> None:
    finished = make_guest().run(FORMS + FAKE_LIBRARIES + last)
    assert [" ".join(frame).strip() for frame in told(finished)] == frames
    assert (finished.stdout, finished.stderr) == (stdout, "")
    assert bool(finished.has_result or finished.result_repr) == (not frames)


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
        "[figure, 'text', 7]",
    ],
)
def test_what_drawing_functions_return_shows_its_figure_once(make_guest: Any, last: str) -> None:
    finished = make_guest().run(FORMS + FAKE_MATPLOTLIB + RETURNED + last)
    assert [frame.data for frame in shown(finished)] == [PICTURE + b"lost"]
    assert finished.result_repr == ""
    # Anything else in a list is printed item by item.
    assert finished.stdout == ("'text'\n7\n" if "text" in last else "")


def test_lists_of_data_load_nothing_that_shows(make_guest: Any) -> None:
    code = FORMS + FAKE_LIBRARIES
    code += """
import atexit
atexit.register(lambda: print([name for name in sys.modules if 'display' in name]))
[{'a': [1.5]}, (2, None)]
"""
    assert make_guest().run(code).stdout == "[]\n"


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
    assert [text for _, text in told(finished)] == ["", "<div>plot</div>", "<p>page</p>"]
    assert finished.stdout == "True\nFalse False\n"


NOTEBOOK = """
from IPython.display import HTML, JSON, SVG, Image, Markdown, clear_output, display
from IPython import get_ipython
import IPython
open("chart.png", "wb").write(PNG)
clear_output(wait=True)
display(Image("chart.png"), Image(data=PNG, width=3), Image(filename="chart.png"))
display(HTML("<i>a</i>"), Markdown("# b"), SVG("<svg/>"), JSON({"c": 1}), {"d": 2})
display("first", display_id=True).update("second")
print(get_ipython(), IPython.display.display is display)
from IPython.core.display import display, HTML
try: Image(url="https://example.org/a.png")
except OSError as error: print(error)
Image(PNG)
"""


def test_a_notebooks_display_is_the_programs(guest_on: Any) -> None:
    finished = guest_on.run(FORMS + NOTEBOOK)
    assert finished.outcome.error == ""
    frames = shown(finished)
    assert [frame.data for frame in frames if frame.mime == "image/png"] == [PICTURE] * 4
    texts = ["<i>a</i>", "# b", "<svg/>", '{\n "c": 1\n}']
    assert [frame.text for frame in frames if frame.text] == texts
    assert finished.stdout == (
        "{'d': 2}\nfirst\nsecond\nNone True\nthe sandbox has no network: https://example.org/a.png\n"
    )


def test_an_installed_ipython_keeps_its_other_modules(guest_on: Any) -> None:
    code = """
import os, sys
os.makedirs("IPython/core"); open("IPython/__init__.py", "w").write("raise SystemError")
open("IPython/core/__init__.py", "w"); open("IPython/core/magic.py", "w").write("x = 5")
for name in [name for name in sys.modules if "IPython" in name]: del sys.modules[name]
from bridge.guest.api.ipython import install
install(sys.modules)
import importlib.util, IPython.display
from IPython.core import magic
print(magic.x, importlib.util.find_spec("IPython").name, IPython.display.display(1))
"""
    finished = guest_on.run(code)
    assert finished.stdout.split() == ["1", "5", "IPython", "None"]
