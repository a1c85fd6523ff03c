"""Histograms as SVG. Pure: samples in, text out.

Owns the drawing and nothing else. All colours are of middle brightness, so that a picture can be
read on white and on black, whatever the page around it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.figures import median, quantile

WIDTH = 720
PANEL_HEIGHT = 130
TITLE_HEIGHT = 40
LEFT, RIGHT = 16, 16
BARS_TOP, BARS_HEIGHT = 30, 68
BINS = 48

CLIPPED_SHARE = 0.99
"""The axis ends here, so that one outlier does not press everything else into one bar; what lies
beyond is counted in the last bar, and said."""

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TICKS = 6

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #727a83 }
.title { font-size: 14px; font-weight: 600 }
.axis { stroke: #8c959f; stroke-width: 1 }
.ours { fill: #2f81f7; fill-opacity: .75 }
.floor { fill: #d29922; fill-opacity: .65 }
"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Samples of one engine, and of its floor, to be drawn over each other."""

    label: str
    samples: Sequence[float]
    floor_samples: Sequence[float] = ()


def histogram(title: str, unit: str, floor_name: str, panels: Sequence[Panel]) -> str:
    """Return an SVG with one panel below the other, all on the same axis.

    Raises:
        ValueError: There is nothing to draw.
    """
    drawn = [panel for panel in panels if panel.samples]
    if not drawn:
        message = "no samples, so no histogram"
        raise ValueError(message)
    end = _axis_end(drawn)
    height = TITLE_HEIGHT + PANEL_HEIGHT * len(drawn)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(title)}">'
        ),
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="18">{escape(title)}</text>',
        *_legend(floor_name, drawn),
    ]
    for place, panel in enumerate(drawn):
        parts.append(f'<g transform="translate(0 {TITLE_HEIGHT + place * PANEL_HEIGHT})">')
        parts += _panel(panel, end, unit)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(floor_name: str, panels: Sequence[Panel]) -> list[str]:
    found = [("ours", "bridge")]
    if floor_name and any(panel.floor_samples for panel in panels):
        found.append(("floor", f"floor: {floor_name}"))
    parts = []
    x = LEFT
    for kind, name in found:
        parts.append(f'<rect class="{kind}" x="{x}" y="26" width="10" height="10"/>')
        parts.append(f'<text x="{x + 15}" y="35">{escape(name)}</text>')
        x += 90
    return parts


def _axis_end(panels: Sequence[Panel]) -> float:
    """Return where the axis ends: a round number beyond nearly all samples."""
    lists = [values for panel in panels for values in (panel.samples, panel.floor_samples)]
    reach = max(quantile(values, CLIPPED_SHARE) for values in lists if values)
    if reach <= 0:
        return 1.0
    step = _step(reach)
    return math.ceil(reach / step + 1e-9) * step


def _step(reach: float) -> float:
    power = 10.0 ** math.floor(math.log10(reach / _TICKS))
    return next(factor * power for factor in _STEPS if factor * power * _TICKS >= reach)


def bins(samples: Sequence[float], end: float) -> list[int]:
    """Return how many samples fall into each of `BINS` equal parts of 0 to `end`.

    Those beyond the end are in the last one.
    """
    found = [0] * BINS
    for value in samples:
        found[max(0, min(int(value / end * BINS), BINS - 1))] += 1
    return found


def _panel(panel: Panel, end: float, unit: str) -> list[str]:
    ours, floor = bins(panel.samples, end), bins(panel.floor_samples, end)
    # Shares, not counts: floors are often measured fewer times.
    tallest = max(max(ours) / len(panel.samples), max(floor) / max(1, len(panel.floor_samples)))
    said = f"{panel.label}: p50 {median(panel.samples):.3g} {unit}, "
    said += f"p99 {quantile(panel.samples, 0.99):.3g} {unit}, n {len(panel.samples)}"
    if panel.floor_samples:
        said += f"; floor p50 {median(panel.floor_samples):.3g} {unit}"
    beyond = sum(value > end for value in (*panel.samples, *panel.floor_samples))
    said += f"; {beyond} beyond the axis, in the last bar" if beyond else ""
    parts = [f'<text x="{LEFT}" y="20">{escape(said)}</text>']
    if panel.floor_samples:
        parts.append(_bars("floor", floor, len(panel.floor_samples) * tallest))
    parts.append(_bars("ours", ours, len(panel.samples) * tallest))
    return [*parts, *_axis(end, unit)]


def _bars(kind: str, counts: Sequence[int], full: float) -> str:
    """Return all bars of a series as one path, which keeps files small."""
    width = (WIDTH - LEFT - RIGHT) / len(counts)
    bottom = BARS_TOP + BARS_HEIGHT
    path = []
    for place, count in enumerate(counts):
        if count:
            height = max(1.0, count / full * BARS_HEIGHT)
            x = LEFT + place * width
            path.append(f"M{x:.1f} {bottom}v-{height:.1f}h{width - 1:.1f}v{height:.1f}z")
    return f'<path class="{kind}" d="{"".join(path)}"/>'


def _axis(end: float, unit: str) -> list[str]:
    bottom = BARS_TOP + BARS_HEIGHT
    parts = [f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>']
    step = _step(end)
    for number in range(round(end / step) + 1):
        value = number * step
        x = LEFT + value / end * (WIDTH - LEFT - RIGHT)
        anchor = "start" if number == 0 else "end" if value >= end * 0.999 else "middle"
        label = f"{value:g} {unit}" if anchor == "end" else f"{value:g}"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="{anchor}">{label}</text>')
    return parts
