"""What programs import from IPython, where there is none."""

from __future__ import annotations

from typing import Any

from bridge.guest.wire import Shown
from tests.guest.test_display import PICTURE

PROGRAM = """
import IPython
from IPython.display import display, clear_output, Image, HTML, Markdown, SVG, JSON
clear_output(wait=True)
assert IPython.get_ipython() is None
assert IPython.display.Image is Image
open("a.png", "wb").write(PNG)
open("a.svg", "w").write("<svg></svg>")
display(Image("a.png", width=300), Image(data=PNG), Markdown("# t"), display_id="x")
display(HTML("<p>p"), SVG("a.svg"), JSON({"a": 1}))
from IPython.core.display import HTML as Other
Other("<i>i")
"""


def test_what_notebooks_show_is_shown(guest_on: Any) -> None:
    """Files are read where notebooks read them."""
    finished = guest_on.run(f"PNG = {PICTURE!r}\n{PROGRAM}")
    assert finished.outcome.error == ""
    shown = [frame for frame in finished.frames if isinstance(frame, Shown)]
    assert [(frame.mime, frame.text) for frame in shown] == [
        ("image/png", ""),
        ("image/png", ""),
        ("text/markdown", "# t"),
        ("text/html", "<p>p"),
        ("image/svg+xml", "<svg></svg>"),
        ("text/html", "<i>i"),
    ]
    assert '"a": 1' in finished.stdout


def test_nothing_is_fetched_and_nothing_else_is_there(guest_on: Any) -> None:
    """It says what would do."""
    program = """
from IPython.display import Image
try:
    import IPython.terminal
except ModuleNotFoundError as error:
    print(error)
Image(url="https://example.org/a.png")
"""
    finished = guest_on.run(program)
    assert "no network; give the data" in finished.outcome.error
    assert "IPython.terminal" in finished.stdout
