"""What became of a run's session, in a few lines. Pure."""

from __future__ import annotations

from bridge.model import RunResult, SessionReport, Variable
from bridge.text import counted

MAX_HELD = 8
"""Names in text; the record has more."""

FEW = 3
"""Names that are listed after every run."""

LARGE = 10_000
"""Bytes from which on a value's size is worth saying."""

THOUSAND = 1000


def session_section(result: RunResult) -> str:
    """Return the section on a run's session; empty if it had none."""
    report = result.session
    if report is None:
        return ""
    if report.state == "ended":
        return f'[session "{report.name}"] ended.'
    label = f'[session "{report.name}", run {report.run}]'
    if report.state == "lost":
        # What that means is in the error.
        lines = [f"{label} lost its state."]
    else:
        # What went wrong may have left less than was meant; else the rest has been told before.
        brief = result.status == "success" and report.fresh is not None
        lines = [f"{label} holds {_changed(report) if brief else _held(report)}."]
        if report.note:
            lines.append(report.note)
    if report.lost:
        lost = [f"{loss.name} ({loss.why})" for loss in report.lost[:MAX_HELD]]
        lines.append(f"Not restored: {_listed(lost, len(report.lost) - len(lost))}.")
    if not report.named:
        lines.append(f'Go on with session="{report.session_id}".')
    return "\n".join(lines)


def _changed(report: SessionReport) -> str:
    """Return what has come, and how much there is; everything where that is little."""
    count = report.more + len(report.holds)
    if count <= FEW:
        return _held(report)
    fresh = [_variable(held) for held in report.holds if held.name in (report.fresh or ())]
    if not fresh:
        return f"{count:,} names, as before"
    return f"{count:,} names, now also {_listed(fresh[:MAX_HELD], len(fresh[MAX_HELD:]))}"


def _held(report: SessionReport) -> str:
    if not report.holds:
        return counted(report.more, "name") if report.more else "nothing"
    names = [_variable(held) for held in report.holds[:MAX_HELD]]
    return _listed(names, report.more + len(report.holds) - len(names))


def _variable(held: Variable) -> str:
    size = f" ({size_text(held.size)})" if held.size is not None and held.size >= LARGE else ""
    return f"{held.name}: {held.kind}{size}"


def _listed(items: list[str], more: int) -> str:
    return ", ".join(items) + (f", and {more:,} more" if more else "")


def size_text(size: int) -> str:
    """Return a size as people say it."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB"):
        if amount < THOUSAND:
            return f"{amount:.0f} {unit}"
        amount /= THOUSAND
    return f"{amount:.1f} GB"
