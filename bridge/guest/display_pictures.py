"""Pictures, from what draws them, and smaller ones of the same.

Owns matplotlib's figures, PIL's images and the first bytes by which files of pictures are known.
Imports neither library: whoever shows something of theirs has it.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

MAX_SIDE = 2000
"""Pixels. Services that run models refuse larger pictures where there are several, and scale what
is over about 1600 down themselves."""

MIN_SIDE = 64
"""Of the longer side: nobody sees anything in smaller ones."""

STEPS = 8
"""Sizes that are tried until one fits."""

MAX_PARTS = 20
"""Of a list that are looked at, whether all of them are parts of figures."""

MAX_DEPTH = 3
"""Of lists in such lists."""

MAX_OVERHANG = 2.0
"""How many times its own size a figure's picture may get for what hangs over its edge."""

MAX_LETTERS = 40
"""That a font does not have, told of."""

FONT_LISTS = "/usr/local/share/mcp-code-bridge/matplotlib"
"""Where the image keeps the list of its fonts, as matplotlib made it."""

_JPEG_QUALITY = 85

_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
"""What PIL can write as PNG."""


def is_figure(kind: type) -> bool:
    """Tell whether values of a type are matplotlib's figures."""
    return _is_a(kind, "matplotlib.figure", "Figure")


def figures_of(value: Any) -> List[Any]:
    """Return the figures in what drawing functions return, with whatever is part of one.

    Such are axes and lines, lists, arrays and dicts of them, and the numbers beside them, as those
    of a histogram. Of anything else there are none.
    """
    figures: List[Any] = []
    if "matplotlib" not in sys.modules or is_figure(type(value)):
        return figures
    return figures if _collect(value, figures, 0) else []


def _collect(value: Any, figures: List[Any], depth: int) -> bool:
    """Collect the figures; return whether there is nothing that has none."""
    kind = type(value)
    figure = value if is_figure(kind) else None
    if _is_a(kind, "matplotlib.artist", "Artist") or _is_grid(kind):
        figure = figure or getattr(value, "figure", None)
        if figure is None:
            return False
    if figure is not None:
        if not any(figure is other for other in figures):
            figures.append(figure)
        return True
    if _is_a(kind, "numpy", "ndarray"):
        return value.dtype != object or _collect(value.ravel()[:MAX_PARTS].tolist(), figures, depth)
    # Bars, for one, come as a tuple of a class of their own.
    if depth >= MAX_DEPTH or not isinstance(value, (list, tuple, dict)):
        return False
    parts = list(value.values()) if isinstance(value, dict) else value
    return all(_collect(part, figures, depth + 1) for part in parts[:MAX_PARTS])


def _is_grid(kind: type) -> bool:
    """Tell whether values of a type are seaborn's grids of axes."""
    return str(type.__getattribute__(kind, "__module__")) == "seaborn.axisgrid"


def is_open(figure: Any) -> bool:
    """Tell whether a figure is among those that are shown at the program's end."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return pyplot is not None and getattr(figure, "number", None) in pyplot.get_fignums()


def is_pil(kind: type) -> bool:
    """Tell whether values of a type are PIL's images."""
    return _is_a(kind, "PIL.Image", "Image")


def _is_a(kind: type, module: str, name: str) -> bool:
    return any(
        base.__name__ == name and type.__getattribute__(base, "__module__") == module
        for base in type.mro(kind)
    )


def mime_of(data: bytes) -> str:
    """Return the type of a picture by its first bytes; empty for anything else."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "image/png"
    if data[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return ""


def is_wide(data: bytes) -> bool:
    """Tell whether a PNG has more pixels to a side than readers take. Of others it is not known."""
    if mime_of(data) != "image/png":
        return False
    return max(int.from_bytes(data[at : at + 4], "big") for at in (16, 20)) > MAX_SIDE


def figure_png(figure: Any) -> Tuple[bytes, str]:
    """Draw a figure, as large as it was asked for; larger where labels would be cut off.

    Returns:
        It, and what is to be said of it.
    """
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        data = _saved(figure)
        # Only now: where things are is known then, which makes it quick.
        extent = _extent(figure)
        if extent is not None:
            data = _saved(figure, bbox_inches=extent)
    missing: Dict[str, None] = {}
    for warning in caught:
        glyph = re.match(r"Glyph (\d+) ", str(warning.message))
        if glyph:
            # Once for each letter, and from a line that is none of the program's.
            missing[chr(int(glyph.group(1)))] = None
        else:
            warnings.showwarning(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    letters = "".join(missing)[:MAX_LETTERS]
    return data, "the font has nothing for %s" % letters if letters else ""


def _saved(figure: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", **how)
    return buffer.getvalue()


def _extent(figure: Any) -> Any:
    """Return what is to be drawn, in inches; None for the figure as it is."""
    try:
        box = figure.get_tightbbox()
        width, height = (float(size) for size in figure.get_size_inches())
    except Exception:
        # Of an older make, which cannot tell.
        return None
    pad = 0.08
    left, bottom = min(0.0, box.x0 - pad), min(0.0, box.y0 - pad)
    right, top = max(width, box.x1 + pad), max(height, box.y1 + pad)
    over = max(-box.x0, -box.y0, box.x1 - width, box.y1 - height)
    # `not <` also for what is no number.
    if over < 0.02 or not ((right - left) < MAX_OVERHANG * width):
        return None
    if not ((top - bottom) < MAX_OVERHANG * height):
        return None
    return type(figure.bbox_inches.frozen()).from_extents(left, bottom, right, top)


def pil_png(image: Any) -> bytes:
    """Return an image of PIL's as PNG."""
    if image.mode not in _PNG_MODES:
        image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def shrink(data: bytes, limit: int) -> Tuple[bytes, str]:
    """Return a picture of the same that takes no more than `limit` bytes, and what was done to it.

    Empty and why, if it cannot be done.
    """
    try:
        # By name: nothing but the image's own packages says where it would come from.
        pil = importlib.import_module("PIL.Image")
    except ImportError:
        return b"", "not shown: it is too large, and there is no PIL here to make it smaller"
    try:
        return _shrunk(pil, data, limit)
    except Exception as error:
        problem = type(error).__name__
        return b"", "not shown: it is too large, and cannot be made smaller (%s)" % problem


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
    for _ in range(STEPS):
        if max(image.size) > side:
            image.thumbnail((side, side))
        for form in ("PNG",) if image.mode == "RGBA" else ("PNG", "JPEG"):
            buffer = io.BytesIO()
            # What is about JPEG only is passed over for PNG.
            image.save(buffer, format=form, quality=_JPEG_QUALITY)
            small = buffer.getvalue()
            if len(small) <= limit:
                return small, _shown_as(whole, image.size, known_as, form)
        side = max(image.size) * 7 // 10
        if side < MIN_SIDE:
            break
    return b"", "not shown: it is too large, and small enough nothing is left of it"


def _shown_as(
    whole: Tuple[int, int], size: Tuple[int, int], known_as: Optional[str], form: str
) -> str:
    if whole == size:
        return "%dx%d shown as %s" % (*whole, form)
    told = "%dx%d shown as %dx%d" % (*whole, *size)
    return told if known_as == form else "%s %s" % (told, form)


def prepare_matplotlib() -> None:
    """Give matplotlib, which is being imported, the list of fonts that it would have to make."""
    directory = os.environ.get("MPLCONFIGDIR", "")
    if not directory:
        return
    try:
        os.makedirs(directory, exist_ok=True)
        for name in os.listdir(FONT_LISTS):
            os.symlink(os.path.join(FONT_LISTS, name), os.path.join(directory, name))
    except OSError:
        # Not our image, or it is there: without, it takes a while longer.
        return


def prepare_pyplot() -> None:
    """Have `show` show: the library's own is for windows, and leaves the figures open here."""
    pyplot: Any = sys.modules["matplotlib.pyplot"]

    def show(*args: Any, **kwargs: Any) -> None:
        """Show all open figures, and close them."""
        from bridge.guest import surroundings

        surroundings.shower().show_figures()

    pyplot.show = show
