"""A `RunResult` as plain text for a model.

Owns the compact form: standard output exactly as it was written, then a labelled section for each
other thing there is to say, and nothing about what went as it should. That output was cut stands
before all of it: of what clients find too long they show their model the beginning. The text is not
meant to be parsed: a program can print whatever a label looks like. Programs read the record.
"""

from __future__ import annotations

import json

from bridge.model import (
    Artifact,
    FindingSource,
    Json,
    RunResult,
    SessionReport,
    ShownContent,
    Variable,
)
from bridge.render.plan import plan_text
from bridge.render.receipt import call_lines
from bridge.render.structured import output_links, to_json
from bridge.settings import OutputMode
from bridge.text import counted, valid_text, visible


def value_text(value: Json, mode: OutputMode = "compact") -> str:
    """Return a value as text that has a UTF-8 form.

    Args:
        mode: "json" and "toon" always write it so; "compact" is JSON but for a text of several
            lines, which reads better as it is; "auto" is "compact", or TOON where that costs less.
    """
    plain = to_json(value)
    if isinstance(plain, str) and "\n" in plain and mode in ("compact", "auto"):
        return plain
    as_json = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    if mode in ("compact", "json") or (mode == "auto" and not isinstance(plain, dict | list)):
        return as_json
    as_toon = _toon(plain)
    if as_toon is None:
        return as_json
    share = len(as_toon.encode()) / len(as_json.encode())
    # To tokenizers JSON's rows of marks are one token: TOON that is hardly shorter costs more.
    return as_toon if mode == "toon" or share <= 0.8 else as_json


def _toon(value: Json) -> str | None:
    # Only the modes that ask for it pay for its import: 5 ms of the bridge's first answer.
    import toon_format

    try:
        return toon_format.dumps(value)
    except (TypeError, ValueError, RecursionError):
        # `to_json` leaves nothing that it refuses, but this must not fail.
        return None


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
        lost = [f"{loss.name} ({loss.why})" for loss in report.lost]
        lines.append(f"Not restored: {_listed(lost)}.")
    if not report.named:
        lines.append(f'Continue with session="{report.session_id}".')
    return "\n".join(lines)


def _changed(report: SessionReport) -> str:
    count = report.more + len(report.holds)
    if count <= 3:
        return _held(report)
    fresh = [_variable(held) for held in report.holds if held.name in (report.fresh or ())]
    if not fresh:
        return f"{count:,} names, as before"
    return f"{count:,} names, now also {_listed(fresh)}"


def _held(report: SessionReport) -> str:
    if not report.holds:
        return counted(report.more, "name") if report.more else "nothing"
    return _listed(list(map(_variable, report.holds)), report.more)


def _variable(held: Variable) -> str:
    size = f" ({size_text(held.size)})" if held.size is not None and held.size >= 10_000 else ""
    return f"{held.name}: {held.kind}{size}"


def _listed(items: list[str], more: int = 0) -> str:
    """Return the first eight items; the record has more."""
    more += len(items[8:])
    return ", ".join(items[:8]) + (f", and {more:,} more" if more else "")


def size_text(size: int) -> str:
    amount = float(size)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def kept_sections(result: RunResult) -> list[str]:
    sections = [shown_section(result), files_section(result), missing_section(result)]
    sections.append(session_section(result))
    return [section for section in sections if section]


def shown_section(result: RunResult) -> str:
    """Return the section on shown pictures and texts; empty if there is none."""
    lines = [shown_line(shown) for shown in result.shown if not shown.text or shown.note]
    if result.shown and not lines:
        lines = [f"{counted(len(result.shown), 'text')}, below"]
    return _section("shown", lines) if lines else ""


def shown_line(shown: ShownContent, *, where: bool = False) -> str:
    """Return a line on something that was shown.

    Args:
        where: Whether it is said where that is kept in any case.
    """
    size = f"{shown.width}x{shown.height}" if shown.data else ""
    # A picture that is shown unchanged needs no second copy.
    uri = shown.artifact.uri if shown.artifact is not None and (where or shown.note) else ""
    told = [shown.mime_type, size, f"({visible(shown.note, keep='')})" if shown.note else "", uri]
    return " ".join(part for part in told if part)


def files_section(result: RunResult) -> str:
    """Return the section on the program's files, one line each; empty if there are none."""
    files = [artifact for artifact in result.artifacts if artifact.kind == "file"]
    if not files:
        return ""
    return _section("files", list(map(_file_line, files)))


def _file_line(artifact: Artifact) -> str:
    size = counted(artifact.size, "byte")
    path = visible(artifact.path or artifact.name, keep="")
    return f"{path} ({artifact.mime_type}, {size}) {artifact.uri}"


def missing_section(result: RunResult) -> str:
    """Return the section on files that could not be read or stored; empty if there are none."""
    lines = [
        f"{visible(loss.name, keep='')}: {visible(loss.why, keep='')}" for loss in result.missing
    ]
    return _section("missing", lines) if lines else ""


def _section(label: str, lines: list[str]) -> str:
    """Return at most 25 lines under a label; a single line follows it."""
    lines = [*lines[:25], *([f"and {len(lines) - 25:,} more"] if lines[25:] else ())]
    return f"[{label}] {lines[0]}" if len(lines) == 1 else "\n".join((f"[{label}]", *lines))


NOTHING = (
    "The program finished without output. Print what you need, or end with an expression to get "
    "its value."
)

SHORT_ID = 8  # Characters of a run's id that tell it from the others of two weeks.

_SOURCES: tuple[tuple[str, FindingSource], ...] = (
    ("[guard: advice; nothing was stopped]", "guard"),
    ("[preflight: noticed before the run, not certain]", "preflight"),
)


def compact(result: RunResult, mode: OutputMode = "compact") -> str:
    """Return the text; of a run that succeeded and only printed, exactly what it printed.

    Of a run with a record another line follows, with the short id of that.

    Args:
        mode: How the value of its last expression is written.
    """
    text = _text(result, mode)
    return f"{text}\n[run {result.run_id[:SHORT_ID]}]" if result.recorded else text


def _text(result: RunResult, mode: OutputMode) -> str:
    sections = _sections(result, mode)
    cut = f"[truncated] {cuts_text(result)}" if result.truncated else ""
    if not sections and not cut:
        return valid_text(result.stdout) or NOTHING
    parts = [part for part in (cut, result.stdout, *sections) if part]
    ended = [part if part.endswith("\n") else f"{part}\n" for part in parts[:-1]]
    return valid_text("".join(ended) + parts[-1])


def _sections(result: RunResult, mode: OutputMode) -> list[str]:
    sections = []
    if result.stderr:
        sections.append(f"[stderr]\n{result.stderr}")
    if result.has_result:
        sections.append(f"[result]\n{value_text(result.result, mode)}")
    elif result.result_repr:
        sections.append(f"[result, as text]\n{result.result_repr}")
    if result.error:
        sections.append(f"[error]\n{result.error}")
    if result.plan is not None:
        sections.append(f"[plan]\n{plan_text(result.plan)}")
    sections += kept_sections(result)
    notes = call_lines(result)
    notes += [f"[{found.message}]" for found in result.findings if found.source == "reader"]
    for label, source in _SOURCES:
        if lines := finding_lines(result, source):
            notes.append("\n".join((label, *lines)))
    if notes and not sections and not result.stdout and result.status == "success":
        sections.append(NOTHING)
    sections += notes
    if result.status != "success":
        sections.append(_status(result))
    return sections


def cuts_text(result: RunResult) -> str:
    """Return a note on omitted output, and how to read it."""
    whole = output_links(result)
    kept = {name: count for name, count in result.truncated.items() if name in whole}
    lost = {name: count for name, count in result.truncated.items() if name not in whole}
    told = []
    if kept:
        cuts = "; ".join(f"{count:,} bytes of {name} are not shown" for name, count in kept.items())
        stream = "" if "stdout" in kept else ', "stderr"'
        told.append(
            f'{cuts}. Another run reads it: await runtime.read_output("{result.run_id}"{stream}, '
            'find="..."), or lines=(1, 50).'
        )
    if lost:
        cuts = "; ".join(f"{count:,} bytes of {name} were dropped" for name, count in lost.items())
        told.append(
            f"{cuts}. Run again and let the program filter, count or slice before it prints."
        )
    return " ".join(told)


def finding_lines(result: RunResult, source: FindingSource = "guard") -> list[str]:
    """Return what one reader found, a line each, and how much more; nothing that is said already.

    What was left out of the list counts as the guard's.
    """
    if result.status == "validation_error":
        # The refusal names them.
        return []
    found = [
        item
        for item in result.findings
        # The program's own traceback shows the line.
        if item.source == source and (item.rule != "syntax" or result.reason != "exception")
    ]
    lines = [str(item) for item in found[:5]]  # More would bury the output.
    more = len(found) - len(lines) + (result.findings_omitted if source == "guard" else 0)
    return [*lines, f"and {more} more"] if more else lines


def _status(result: RunResult) -> str:
    label: str = result.status
    if result.reason is not None and result.reason != result.status:
        # That the engine could not is less than what the error calls itself.
        told = result.code if result.reason == "engine" and result.code else result.reason
        label = f"{result.status}: {told}"
    if result.exit_code:
        label = f"{label}, exit code {result.exit_code}"
    # A traceback ends with what the summary says, and a refusal begins so; once is enough.
    said = result.summary.removeprefix("The program raised ")
    refused = result.status == "validation_error" and result.error
    summary = "" if refused or said in result.error else result.summary
    return f"[{label}] {summary}".rstrip()
