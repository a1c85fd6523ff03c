"""What a program shows: pictures and tables, for a reader who is no terminal.

Owns which form of a value is shown, and how much of a run is. Imported with the first thing that is
to be shown. How pictures are made is `display_pictures`'; that all of it is only a wish, and what
becomes of it, is the host's.

A value may offer several forms. Taken is the first of these, which is what a model gets most of:
a picture, because it is seen as it is; Markdown, because it is read at little cost; HTML, of which
the host keeps the text; SVG, which is seldom looked at as a picture. Of data frames and arrays it
is the text that their library prints. What has none of them is printed, in its place among the
other output.
"""

from __future__ import annotations

import sys

from bridge.guest import display_pictures
from bridge.guest.placeholders import Unknown
from bridge.guest.values import Blob
from bridge.guest.wire import MAX_FRAME_BYTES, Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional

    from bridge.guest.client import Client

MAX_ITEMS = 20
"""Of a run. The host has the same bound; what is beyond it is counted, and not made at all."""

MAX_PICTURES = 10
"""Of a run that are handed on as such; clients and models take few. Others are kept aside."""

DEFAULT_SHOWN_BYTES = 1024 * 1024

MAX_SOURCE_CHARS = 512 * 1024
"""Of HTML, SVG or Markdown, or a table's text. Larger ones are pages of their own, with libraries
in them."""

MIN_PICTURE_BYTES = 4096
"""With less room than this a picture is not made small any more, but only kept."""

MAX_LABEL_CHARS = 100
"""Of a dict's key, said of what stands under it."""

FRAME_ROOM = 64 * 1024
"""Of a frame, for what stands in it beside the picture."""

_METHODS = (
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/html", "_repr_html_"),
    ("image/svg+xml", "_repr_svg_"),
)

_TABLES = {
    "numpy": ("ndarray",),
    "pandas": ("DataFrame", "Series"),
    "polars": ("DataFrame", "Series"),
    "pyarrow": ("RecordBatch", "Table"),
}
"""Classes of libraries whose own text says what their HTML says, and costs a model less."""


class Display:
    """What one run shows.

    Args:
        shown_bytes: Of all pictures together, as base64.
        frame_bytes: Of what may be sent at once.
    """

    def __init__(
        self,
        client: Client,
        shown_bytes: int = DEFAULT_SHOWN_BYTES,
        frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._client = client
        self._frame_bytes = frame_bytes
        self._left = shown_bytes
        self._items = 0
        self._pictures = 0
        # The figures themselves: their ids would be used again.
        self._figures: List[Any] = []

    def show(self, *values: Any) -> None:
        """Show values, or print those that have no form but their text."""
        for value in values:
            if issubclass(type(value), Unknown):
                from bridge.guest.held import stop

                stop(value, "shows")
            if not (self._show(value) or self._show_each(value)):
                print(value if isinstance(value, str) else _text(value))

    def show_last(self, value: Any) -> bool:
        """Show the value of a program's last expression, if it is for showing."""
        if issubclass(type(value), Unknown):
            return False
        try:
            return self._drawn(value) or self._show(value) or self._show_each(value)
        except Exception as error:
            print("display: %s" % _problem(value, error), file=sys.stderr)
            return False

    def show_figures(self) -> None:
        """Show what is open of matplotlib's and was not shown, and close it.

        Whatever one of them cannot be drawn for is raised when the others are shown.
        """
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        problem = None
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            # One with nothing on it is left over, and nobody's picture.
            if not self._seen(figure) and len(figure.get_children()) > 1:
                try:
                    self._show(figure)
                except Exception as error:
                    problem = problem or error
        pyplot.close("all")
        if problem is not None:
            raise problem

    def show_left(self) -> None:
        """Show what is open at a program's end, when there is no line that could fail for it."""
        try:
            self.show_figures()
        except Exception as error:
            # A formula in a title that cannot be set, for one: the program's author has to know.
            print("display: a figure cannot be drawn: %s" % _told(error), file=sys.stderr)

    def _show_each(self, value: Any) -> bool:
        """Show what a short list, tuple or dict holds, if a picture or a table is among it."""
        kind = type(value)
        if kind not in (list, tuple, dict) or not 0 < len(value) <= MAX_ITEMS:
            return False
        items = list(value.items()) if kind is dict else [("", item) for item in value]
        if not any(_is_seen(item) for _, item in items):
            return False
        for key, item in items:
            label = str(key)[:MAX_LABEL_CHARS]
            if not self._show(item, label):
                print("%s: %s" % (label, _text(item)) if label else _text(item))
        return True

    def _show(self, value: Any, label: str = "") -> bool:
        """Show a value in its best form; return False if that is its text."""
        kind = type(value)
        if display_pictures.is_figure(kind):
            self._figures.append(value)
            self._send_picture(lambda: display_pictures.figure_png(value), label)
            return True
        if display_pictures.is_pil(kind):
            self._send_picture(lambda: (display_pictures.pil_png(value), ""), label)
            return True
        if isinstance(value, (Blob, bytes)):
            data = bytes(value)
            if not display_pictures.mime_of(data):
                return False
            self._send_picture(lambda: (data, ""), label)
            return True
        if _is_table(kind):
            text = str(value)
            self._send_text("text/plain", "%s:\n%s" % (label, text) if label else text)
            return True
        return self._show_form(value)

    def _show_form(self, value: Any) -> bool:
        """Show a value in a form that it makes itself, if it does."""
        for mime, form in _forms(value):
            if mime in ("image/png", "image/jpeg"):
                data = _bytes(form)
                if data is not None and display_pictures.mime_of(data):
                    self._send_picture(lambda data=data: (data, ""))
                    return True
            elif issubclass(type(form), str):
                # A plain one: of a text with what nobody knows in it, not even the length is known.
                text = str.__str__(form)
                if 0 < len(text) <= MAX_SOURCE_CHARS:
                    self._send_text(mime, text)
                    return True
        return False

    def _drawn(self, value: Any) -> bool:
        """Show the figure of what drawing functions return; return False for anything else."""
        figures = display_pictures.figures_of(value)
        for figure in figures:
            if not self._seen(figure) and not display_pictures.is_open(figure):
                self._show(figure)
        return bool(figures)

    def _seen(self, figure: Any) -> bool:
        return any(figure is seen for seen in self._figures)

    def _send_text(self, mime: str, text: str) -> None:
        self._items += 1
        if self._items > MAX_ITEMS:
            self._client.tell(Shown(mime))
            return
        self._client.tell(Shown(mime, text=text[:MAX_SOURCE_CHARS]))

    def _send_picture(self, make: Any, label: str = "") -> None:
        """Send a picture as it is if it fits, or smaller, for the reader, and as it is aside.

        Args:
            label: What it stands under in a dict.
        """
        self._items += 1
        self._pictures += 1
        if self._items > MAX_ITEMS:
            self._client.tell(Shown("image/png"))
            return
        data, remark = make()
        mime, size = display_pictures.mime_of(data), base64_size(data)
        small, note = b"", ""
        # No picture leaves nothing to those that follow.
        room = self._left if size <= self._left else self._left // 2
        if self._pictures > MAX_PICTURES:
            note = "not shown: a result has %d pictures at most" % MAX_PICTURES
        elif size > self._left or display_pictures.is_wide(data):
            if room >= MIN_PICTURE_BYTES:
                small, note = display_pictures.shrink(data, room // 4 * 3)
            if not small:
                note = note or "not shown: there is no room for it in this result"
        if not note:
            self._left -= size
        self._left -= base64_size(small)
        if size + base64_size(small) > self._frame_bytes - FRAME_ROOM:
            whole = "the original, of %s bytes, is too large to be kept" % f"{len(data):,}"
            note, data = "%s; %s" % (note, whole) if note else whole, b""
        note = "; ".join(part for part in (note, remark, label) if part)
        self._client.tell(Shown(mime, data=_encoded(data), small=_encoded(small), note=note))


def _is_seen(value: Any) -> bool:
    """Tell whether a value is a picture or a table."""
    kind = type(value)
    if display_pictures.is_figure(kind) or display_pictures.is_pil(kind):
        return True
    if isinstance(value, (Blob, bytes)):
        return bool(display_pictures.mime_of(bytes(value)))
    return _is_table(kind)


def _is_table(kind: type) -> bool:
    for base in type.mro(kind):
        # Not by way of a class of the class, which may be anything.
        package = str(type.__getattribute__(base, "__module__")).partition(".")[0]
        if base.__name__ in _TABLES.get(package, ()):
            return True
    return False


def base64_size(data: bytes) -> int:
    """Return how long data is as base64."""
    return (len(data) + 2) // 3 * 4


def _encoded(data: bytes) -> str:
    import binascii  # what `base64` is made of

    return binascii.b2a_base64(data, newline=False).decode() if data else ""


def _forms(value: Any) -> Any:
    """Yield the forms that a value makes of itself: type and content, the best first."""
    kind = type(value)
    for mime, name in _METHODS:
        # Of the class: there are objects that have an answer to every name.
        method = getattr(kind, name, None)
        if callable(method):
            form = _asked(value, method, name)
            if form is not None:
                yield mime, form
    method = getattr(kind, "_repr_mimebundle_", None)
    if callable(method):
        bundle = _asked(value, method, "_repr_mimebundle_")
        if isinstance(bundle, dict):
            for mime in (*(mime for mime, _ in _METHODS), "text/plain"):
                if bundle.get(mime) is not None:
                    yield mime, bundle[mime]


def _asked(value: Any, method: Any, name: str) -> Any:
    try:
        form = method(value)
    except Exception as error:
        print("display: %s raised %s" % (name, _told(error)), file=sys.stderr)
        return None
    # Some give what they know about it along with it.
    return form[0] if isinstance(form, tuple) and form else form


def _bytes(form: Any) -> Optional[bytes]:
    if isinstance(form, (bytes, bytearray, memoryview)):
        return bytes(form)
    if not isinstance(form, str):
        return None
    import binascii

    try:
        return binascii.a2b_base64(form)
    except ValueError:
        return None


def _text(value: Any) -> str:
    import pprint  # few values come here, and few programs

    return pprint.pformat(value, width=100, sort_dicts=False)


def _told(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())[:500]
    except Exception:
        text = ""
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


def _problem(value: Any, error: BaseException) -> str:
    return "a %s cannot be shown: %s" % (type(value).__name__, _told(error))
