"""A `RunResult` as plain text for a model.

Owns the compact form: standard output exactly as it was written, then a labelled section for each
other thing there is to say, and nothing about what went as it should. That output was cut stands
before all of it: of what clients find too long they show their model the beginning. The text is not
meant to be parsed: a program can print whatever a label looks like. Programs read the record.
"""

from __future__ import annotations

from bridge.model import FindingSource, RunResult
from bridge.render.kept import kept_sections, whole_output
from bridge.render.plan import plan_text
from bridge.render.receipt import call_lines
from bridge.render.value import value_text
from bridge.settings import OutputMode
from bridge.text import valid_text

NOTHING = (
    "The program finished without output. Print what you need, or end with an expression to get "
    "its value."
)

MAX_FINDINGS = 5
"""Of what one reader found: enough to see what is meant, too few to bury the output."""

_SOURCES: tuple[tuple[str, FindingSource], ...] = (
    ("[guard: advice; nothing was stopped]", "guard"),
    ("[preflight: noticed before the run, not certain]", "preflight"),
)


def compact(result: RunResult, mode: OutputMode = "compact") -> str:
    """Return the text; of a run that succeeded and only printed, exactly what it printed.

    Args:
        mode: How the value of its last expression is written.
    """
    sections = _sections(result, mode)
    cut = f"[truncated] {cuts_text(result)}" if result.truncated else ""
    if not sections and not cut:
        return valid_text(result.stdout) or NOTHING
    parts = [part for part in (cut, result.stdout, *sections) if part]
    return valid_text("".join(_ended(part) for part in parts[:-1]) + parts[-1])


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
    """Return what of the output is not there, and what can be done about it."""
    whole = whole_output(result)
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
    lines = [str(item) for item in found[:MAX_FINDINGS]]
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


def _ended(part: str) -> str:
    return part if part.endswith("\n") else f"{part}\n"
