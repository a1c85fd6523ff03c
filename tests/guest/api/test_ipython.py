"""`IPython.display` in a sandbox: what a notebook's program shows, without IPython."""

from __future__ import annotations

from typing import Any

from tests.guest.api.test_display import FORMS, PICTURE, shown

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
    assert [(frame.mime, frame.text) for frame in frames if frame.text] == [
        ("text/html", "<i>a</i>"),
        ("text/markdown", "# b"),
        ("image/svg+xml", "<svg/>"),
        ("text/plain", '{\n "c": 1\n}'),
    ]
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
