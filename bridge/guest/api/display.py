"""Displays pictures, tables and pages of a program to the caller.

A value may offer several forms. The first available one is sent: a picture, Markdown, HTML or SVG.
HTML is skipped if the value has its own `__repr__` and is not a chart. Data frames and arrays are
sent as the text that their library prints; other values are printed.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys

from bridge.guest.api.values import Blob, error_text
from bridge.guest.protocol.placeholders import Unknown
from bridge.guest.protocol.wire import MAX_FRAME_BYTES, Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

    from bridge.guest.api.client import ChannelClient

# A program may display any number of values of any size.
MAX_ITEMS = 20  # Values of a run, as on the host; further values are counted only.
MAX_SOURCE_CHARS = 512 * 1024  # HTML, SVG, Markdown or a table's text; longer text is cut.

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


class Display:
    def __init__(self, client: ChannelClient, limits: Mapping[str, Any]) -> None:
        self._client = client
        self._frame_bytes = int(limits.get("frame_bytes", MAX_FRAME_BYTES))
        self._left = int(limits.get("shown_bytes", 1024 * 1024))  # For all pictures, as base64.
        self._items = self._pictures = 0
        # The figures, not their ids: Python reuses ids.
        self._figures: List[Any] = []

    def show(self, *values: Any) -> None:
        """Display values; print those that have only text."""
        for value in values:
            if issubclass(type(value), Unknown):
                from bridge.guest.api.held_results import stop

                stop(value, "shows")
            if not (self._show(value) or self._show_each(value)):
                print(value if isinstance(value, str) else _text(value))

    def show_last(self, value: Any) -> bool:
        """Display a last expression's value; return whether it has a displayable form."""
        if issubclass(type(value), Unknown):
            return False
        try:
            return self._drawn(value) or self._show(value) or self._show_each(value)
        except Exception as error:
            what = "a %s cannot be shown" % type(value).__name__
            print("display: %s: %s" % (what, _told(error)), file=sys.stderr)
            return False

    def show_figures(self, at_end: bool = False) -> None:
        """Display and close the open matplotlib figures.

        The first drawing error is raised, or printed at the program's end, after the other figures
        are displayed.
        """
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        problem = None
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            # A figure without axes is not a picture.
            if not self._was_shown(figure) and len(figure.get_children()) > 1:
                try:
                    self._show(figure)
                except Exception as error:
                    problem = problem or error
        pyplot.close("all")
        if problem is not None and at_end:
            # For example, a title has an invalid formula.
            print("display: a figure cannot be drawn: %s" % _told(problem), file=sys.stderr)
        elif problem is not None:
            raise problem

    def _show_each(self, value: Any) -> bool:
        kind = type(value)
        if kind not in (list, tuple, dict) or not 0 < len(value) <= MAX_ITEMS:
            return False
        items = list(value.items()) if kind is dict else [("", item) for item in value]
        if not any(_picture_of(item) or _is_table(type(item)) for _, item in items):
            return False
        for key, item in items:
            label = str(key)[:100]
            if not self._show(item, label):
                print("%s: %s" % (label, _text(item)) if label else _text(item))
        return True

    def _show(self, value: Any, label: str = "") -> bool:
        draw = _picture_of(value)
        if draw is not None:
            if _is_figure(type(value)):
                self._figures.append(value)
            self._send_picture(draw, label)
            return True
        if isinstance(value, (Blob, bytes)):
            return False
        if _is_table(type(value)):
            text = str(value)
            self._send_text("text/plain", "%s:\n%s" % (label, text) if label else text)
            return True
        for mime, form in _forms(value):
            if mime in ("image/png", "image/jpeg"):
                draw = _picture_of(_bytes(form))
                if draw is not None:
                    self._send_picture(draw)
                    return True
            elif issubclass(type(form), str):
                # A plain text: a text with a placeholder has no known length.
                text = str.__str__(form)
                if 0 < len(text) <= MAX_SOURCE_CHARS:
                    self._send_text(mime, text)
                    return True
        return False

    def _drawn(self, value: Any) -> bool:
        figures: List[Any] = []
        if "matplotlib" not in sys.modules or _is_figure(type(value)):
            return False
        if not _collect(value, figures, 0):
            return False
        pyplot = sys.modules.get("matplotlib.pyplot")
        for figure in figures:
            # An open figure is displayed at the program's end.
            is_open = pyplot is not None and getattr(figure, "number", None) in pyplot.get_fignums()
            if not self._was_shown(figure) and not is_open:
                self._show(figure)
        return bool(figures)

    def _was_shown(self, figure: Any) -> bool:
        return any(figure is seen for seen in self._figures)

    def _send_text(self, mime: str, text: str) -> None:
        self._items += 1
        shown = text[:MAX_SOURCE_CHARS] if self._items <= MAX_ITEMS else ""
        self._client.tell(Shown(mime, text=shown))

    def _send_picture(self, make: Any, label: str = "") -> None:
        """Send a picture; if it is too large, send a smaller one and the original as a file."""
        self._items += 1
        self._pictures += 1
        if self._items > MAX_ITEMS:
            self._client.tell(Shown("image/png"))
            return
        data, remark = make()
        mime, size = mime_of(data), _base64_size(data)
        small, note = b"", ""
        # No picture uses the whole room of the following ones.
        room = self._left if size <= self._left else self._left // 2
        if self._pictures > 10:
            note = "not shown: a result has 10 pictures at most"
        elif size > self._left or (
            mime == "image/png"
            and max(int.from_bytes(data[at : at + 4], "big") for at in (16, 20)) > MAX_SIDE
        ):
            note = "not shown: there is no room for it in this result"
            if room >= 4096:
                small, note = shrink(data, room // 4 * 3)
        else:
            self._left -= size
        self._left -= _base64_size(small)
        # room for the frame's other fields
        if size + _base64_size(small) > self._frame_bytes - (64 * 1024):
            whole = "the original, of %s bytes, is too large to be kept" % f"{len(data):,}"
            note, data = "%s; %s" % (note, whole) if note else whole, b""
        note = "; ".join(part for part in (note, remark, label) if part)
        import binascii  # the core of `base64`

        encoded = binascii.b2a_base64(small, newline=False).decode() if small else ""
        self._client.tell(Shown(mime, data=data, small=encoded, note=note))


def _picture_of(value: Any) -> Optional[Callable[[], Tuple[bytes, str]]]:
    """Return a function for a value's picture and a note on it; None for other values."""
    if _is_figure(type(value)):
        return lambda: figure_png(value)
    if _is_a(type(value), "PIL.Image", "Image"):
        # PIL writes these modes as PNG.
        direct = value.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
        return lambda: (_png((value if direct else value.convert("RGB")).save), "")
    if isinstance(value, (Blob, bytes)) and mime_of(bytes(value)):
        return lambda: (bytes(value), "")
    return None


def _base64_size(data: bytes) -> int:
    return (len(data) + 2) // 3 * 4


def _is_table(kind: type) -> bool:
    return any(name in _TABLES.get(home.partition(".")[0], ()) for home, name in _origins(kind))


def _forms(value: Any) -> Any:
    kind = type(value)
    # The HTML of a chart, which has a `show`, is more useful than its `repr`.
    plain = type.__getattribute__(kind, "__repr__") is object.__repr__
    by_html = plain or hasattr(kind, "show")
    methods = [each for each in _METHODS if each[0] != "text/html" or by_html]
    for mime, name in methods:
        # From the class: some objects return a value for every name.
        method = getattr(kind, name, None)
        if callable(method):
            form = _ask_form(value, method, name)
            if form is not None:
                yield mime, form
    method = getattr(kind, "_repr_mimebundle_", None)
    if callable(method):
        bundle = _ask_form(value, method, "_repr_mimebundle_")
        if isinstance(bundle, dict):
            for mime in (*(mime for mime, _ in methods), "text/plain"):
                if bundle.get(mime) is not None:
                    yield mime, bundle[mime]


def _ask_form(value: Any, method: Any, name: str) -> Any:
    try:
        form = method(value)
    except Exception as error:
        print("display: %s raised %s" % (name, _told(error)), file=sys.stderr)
        return None
    # Some return the form with its metadata.
    return form[0] if isinstance(form, tuple) and form else form


def _bytes(form: Any) -> bytes:
    import binascii

    try:
        return bytes(binascii.a2b_base64(form) if isinstance(form, str) else memoryview(form))
    except (TypeError, ValueError):
        return b""  # It is no picture.


def _text(value: Any) -> str:
    import pprint  # few values come here, and few programs

    return pprint.pformat(value, width=100, sort_dicts=False)


def _told(error: BaseException) -> str:
    return ": ".join(filter(None, (type(error).__name__, error_text(error)[:500])))


MAX_SIDE = 2000
"""Pixels: a program's picture may have any size, and model services refuse several larger ones."""

FONT_LISTS = ("/usr/local/share/mcp-code-bridge/matplotlib", "/packages/.matplotlib")
"""Directories of the image and of the packages with matplotlib's font list."""


def _collect(value: Any, figures: List[Any], depth: int) -> bool:
    """Collect the figures in the result of a drawing function; return whether each part has one.

    Parts are axes and lines, lists, arrays and dicts of them, and the numbers next to them, such as
    those of a histogram.
    """
    kind = type(value)
    figure = value if _is_figure(kind) else None
    module = type.__getattribute__(kind, "__module__")
    if _is_a(kind, "matplotlib.artist", "Artist") or str(module) == "seaborn.axisgrid":
        figure = figure or getattr(value, "figure", None)
        if figure is None:
            return False
    if figure is not None:
        if not any(figure is other for other in figures):
            figures.append(figure)
        return True
    if _is_a(kind, "numpy", "ndarray"):
        return value.dtype != object or _collect(value.ravel()[:MAX_ITEMS].tolist(), figures, depth)
    # Bars are a subclass of tuple.
    if depth >= 3 or not isinstance(value, (list, tuple, dict)):
        return False
    parts = list(value.values()) if isinstance(value, dict) else value
    return all(_collect(part, figures, depth + 1) for part in parts[:MAX_ITEMS])


def _is_figure(kind: type) -> bool:
    return _is_a(kind, "matplotlib.figure", "Figure")


def _is_a(kind: type, module: str, name: str) -> bool:
    return (module, name) in _origins(kind)


def _origins(kind: type) -> List[Tuple[str, str]]:
    """Return the modules and names of a class and its bases; metaclasses may hide attributes."""
    bases = type.mro(kind)
    return [(str(type.__getattribute__(base, "__module__")), base.__name__) for base in bases]


def mime_of(data: bytes) -> str:
    """Return a picture's type by its first bytes; empty for other data."""
    kind = re.match(rb"\x89(PNG)\r\n\x1a\n|\xff\xd8\xff()|(GIF)8[79]a|(?s:RIFF....(WEBP))", data)
    if kind is None:
        return ""
    return "image/" + (kind[kind.lastindex or 0].decode().lower() or "jpeg")


def figure_png(figure: Any) -> Tuple[bytes, str]:
    """Draw a figure at its own size, or larger if labels would be cut off; with a note on it."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        data = _png(figure.savefig)
        # After drawing, because the layout is then known.
        extent = _extent(figure)
        if extent is not None:
            data = _png(figure.savefig, bbox_inches=extent)
    missing: Dict[str, None] = {}
    for each in caught:
        glyph = re.match(r"Glyph (\d+) ", str(each.message))
        if glyph:
            missing[chr(int(glyph.group(1)))] = None
        else:
            warnings.showwarning(each.message, each.category, each.filename, each.lineno)
    letters = "".join(missing)[:40]
    return data, "the font has nothing for %s" % letters if letters else ""


def _png(save: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, format="png", **how)
    return buffer.getvalue()


def _extent(figure: Any) -> Any:
    try:
        box = figure.get_tightbbox()
        width, height = (float(size) for size in figure.get_size_inches())
    except Exception:
        # Older versions of matplotlib do not support this.
        return None
    pad = 0.08
    left, bottom = min(0.0, box.x0 - pad), min(0.0, box.y0 - pad)
    right, top = max(width, box.x1 + pad), max(height, box.y1 + pad)
    over = max(-box.x0, -box.y0, box.x1 - width, box.y1 - height)
    # The picture grows to at most twice its size; the comparison also excludes NaN.
    fits = right - left < 2 * width and top - bottom < 2 * height
    if over < 0.02 or not fits:
        return None
    return type(figure.bbox_inches.frozen()).from_extents(left, bottom, right, top)


def shrink(data: bytes, limit: int) -> Tuple[bytes, str]:
    """Return a picture of at most `limit` bytes and a note; on failure no bytes and the reason."""
    try:
        # By name: the host's type checker does not have it.
        return _shrunk(importlib.import_module("PIL.Image"), data, limit)
    except ImportError:
        why = "PIL is not installed to reduce it"
    except Exception as error:
        why = "cannot be made smaller (%s)" % type(error).__name__
    return b"", "not shown: it is too large, and " + why


def _shrunk(pil: Any, data: bytes, limit: int) -> Tuple[bytes, str]:
    with pil.open(io.BytesIO(data)) as opened:
        opened.load()
        known_as, whole = opened.format, opened.size
        if opened.mode not in ("L", "RGB", "RGBA"):
            transparent = "transparency" in opened.info or opened.mode in ("LA", "PA")
            image = opened.convert("RGBA" if transparent else "RGB")
        else:
            image = opened.copy()
    side = min(max(whole), MAX_SIDE)
    for _ in range(8):
        if max(image.size) > side:
            image.thumbnail((side, side))
        for form in ("PNG",) if image.mode == "RGBA" else ("PNG", "JPEG"):
            buffer = io.BytesIO()
            # PNG ignores `quality`.
            image.save(buffer, format=form, quality=85)
            small = buffer.getvalue()
            if len(small) <= limit:
                told = "%dx%d shown as " % whole
                told += "" if whole == image.size else "%dx%d" % image.size
                other = form if whole == image.size or known_as != form else ""
                return small, ("%s %s" % (told.rstrip(), other)).rstrip()
        side = max(image.size) * 7 // 10
        if side < 64:  # Smaller pictures are unreadable.
            break
    return b"", "not shown: it is too large, and unreadable when it is small enough"


def prepare_matplotlib() -> None:
    """Give matplotlib, during its import, the font list that it would otherwise build."""
    directory = os.environ.get("MPLCONFIGDIR", "")
    if not directory:
        return
    try:
        os.makedirs(directory, exist_ok=True)
        for place in filter(os.path.isdir, FONT_LISTS):
            for name in os.listdir(place):
                if not os.path.lexists(os.path.join(directory, name)):
                    os.symlink(os.path.join(place, name), os.path.join(directory, name))
    except OSError:
        return
