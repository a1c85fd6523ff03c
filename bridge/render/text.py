"""Renders a result as plain text for a model.

The text has the unchanged standard output, then a labelled section for each other part. No code
may parse it, since a program can print any label.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from bridge.errors import SandboxLostError
from bridge.model import (
    CallCount,
    CommandResult,
    FindingSource,
    Json,
    Receipt,
    RunResult,
    SessionReport,
    ShownContent,
    Variable,
)
from bridge.render.plan import plan_text
from bridge.render.structured import output_links, to_json
from bridge.settings import OutputMode
from bridge.text import counted, valid_text, visible


def value_text(value: Json, mode: OutputMode = "compact") -> str:
    """Return a value as text that has a UTF-8 form.

    Args:
        mode: "compact" is JSON, except for strings of several lines; "auto" is "compact", or TOON
            if that costs fewer tokens.
    """
    plain = to_json(value)
    if isinstance(plain, str) and "\n" in plain and mode in ("compact", "auto"):
        return plain
    as_json = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    if mode in ("compact", "json") or (mode == "auto" and not isinstance(plain, dict | list)):
        return as_json
    # The import takes 5 ms, which only these modes need.
    import toon_format

    try:
        as_toon = toon_format.dumps(plain)
    except (TypeError, ValueError, RecursionError):
        # Not known to happen with values from `to_json`, but a result must not fail.
        return as_json
    share = len(as_toon.encode()) / len(as_json.encode())
    # Tokenizers read rows of JSON's punctuation as one token, so TOON must be much shorter.
    return as_toon if mode == "toon" or share <= 0.8 else as_json


def session_section(result: RunResult) -> str:
    report = result.session
    if report is None:
        return ""
    if report.state == "ended":
        return f'[session "{report.name}"] ended.'
    label = f'[session "{report.name}", run {report.run}]'
    if report.state == "lost":
        lines = [f"{label} lost its state."]
    else:
        # After a success, the model knows the other variables; a failed run may have lost some.
        brief = result.status == "success" and report.fresh is not None
        lines = [f"{label} holds {_describe_change(report) if brief else _held(report)}."]
        if report.note:
            lines.append(report.note)
    if report.lost:
        lost = [f"{loss.name} ({loss.why})" for loss in report.lost]
        lines.append(f"Not restored: {_join_some(lost)}.")
    if not report.named:
        lines.append(f'Continue with session="{report.session_id}".')
    return "\n".join(lines)


def _describe_change(report: SessionReport) -> str:
    count = report.more + len(report.holds)
    if count <= 3:
        return _held(report)
    fresh = [_variable(held) for held in report.holds if held.name in (report.fresh or ())]
    if not fresh:
        return f"{count:,} names, as before"
    return f"{count:,} names, now also {_join_some(fresh)}"


def _held(report: SessionReport) -> str:
    if not report.holds:
        return counted(report.more, "name") if report.more else "nothing"
    return _join_some(list(map(_variable, report.holds)), report.more)


def _variable(held: Variable) -> str:
    size = f" ({size_text(held.size)})" if held.size is not None and held.size >= 10_000 else ""
    return f"{held.name}: {held.kind}{size}"


def _join_some(items: list[str], more: int = 0) -> str:
    more += len(items[8:])
    return ", ".join(items[:8]) + (f", and {more:,} more" if more else "")


def size_text(size: int) -> str:
    amount = float(size)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def shown_line(shown: ShownContent, *, where: bool = False) -> str:
    """Return a line on what the program displayed; `where` adds the URI of unchanged pictures."""
    size = f"{shown.width}x{shown.height}" if shown.data else ""
    # A client has an unchanged picture already, so it needs no URI.
    uri = shown.artifact.uri if shown.artifact is not None and (where or shown.note) else ""
    parts = [shown.mime_type, size, f"({visible(shown.note, keep='')})" if shown.note else "", uri]
    return " ".join(part for part in parts if part)


def files_section(result: RunResult) -> str:
    lines = []
    for one in result.artifacts:
        if one.kind == "file":
            path, size = visible(one.path or one.name, keep=""), counted(one.size, "byte")
            lines.append(f"{path} ({one.mime_type}, {size}) {one.uri}")
    return _section("files", lines)


def missing_section(result: RunResult) -> str:
    return _section("missing", [visible(f"{o.name}: {o.why}", keep="") for o in result.missing])


def _section(label: str, lines: list[str]) -> str:
    """Return at most 25 lines under a label, or a single line behind it."""
    if not lines:
        return ""
    lines = [*lines[:25], *([f"and {len(lines) - 25:,} more"] if lines[25:] else ())]
    return f"[{label}] {lines[0]}" if len(lines) == 1 else "\n".join((f"[{label}]", *lines))


NOTHING = (
    "The program finished without output. Print what you need, or end with an expression to get "
    "its value."
)

SHORT_ID = 8  # Characters of a run's id that are unique within two weeks.

_SOURCES: tuple[tuple[str, FindingSource], ...] = (
    ("[guard: advice; nothing was stopped]", "guard"),
    ("[preflight: noticed before the run, not certain]", "preflight"),
)


def compact(result: RunResult, mode: OutputMode = "compact") -> str:
    """Return a result as text: the standard output alone if there is nothing else to say."""
    # First, since clients show their model only the beginning of a long text.
    cut = f"[truncated] {_cuts(result)}" if result.truncated else ""
    text = _join_lines([cut, result.stdout, *_sections(result, mode)]) or NOTHING
    return f"{text}\n[run {result.run_id[:SHORT_ID]}]" if result.recorded else text


def _join_lines(parts: Iterable[str]) -> str:
    """Join the parts that are not empty, each on lines of its own."""
    *others, last = [part for part in parts if part] or [""]
    return valid_text("".join(one if one.endswith("\n") else f"{one}\n" for one in others) + last)


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
    shown = [shown_line(one) for one in result.shown if not one.text or one.note]
    if result.shown and not shown:
        shown = [f"{counted(len(result.shown), 'text')}, below"]
    kept = (_section("shown", shown), files_section(result), missing_section(result))
    sections += filter(None, (*kept, session_section(result)))
    notes = _call_lines(result)
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


def _cuts(result: RunResult) -> str:
    whole = output_links(result)
    kept = {name: count for name, count in result.truncated.items() if name in whole}
    lost = {name: count for name, count in result.truncated.items() if name not in whole}
    sentences = []
    if kept:
        cuts = "; ".join(f"{count:,} bytes of {name} are not shown" for name, count in kept.items())
        stream = "" if "stdout" in kept else ', "stderr"'
        sentences.append(
            f'{cuts}. Another run reads it: await runtime.read_output("{result.run_id}"{stream}, '
            'find="..."), or lines=(1, 50).'
        )
    if lost:
        cuts = "; ".join(f"{count:,} bytes of {name} were dropped" for name, count in lost.items())
        sentences.append(
            f"{cuts}. Run again and let the program filter, count or slice before it prints."
        )
    return " ".join(sentences)


def finding_lines(result: RunResult, source: FindingSource = "guard") -> list[str]:
    """Return a source's findings as lines, without those that the result shows elsewhere."""
    if result.status == "validation_error":
        # The error names them.
        return []
    findings = [
        item
        for item in result.findings
        # The program's own traceback shows the line.
        if item.source == source and (item.rule != "syntax" or result.reason != "exception")
    ]
    lines = [str(item) for item in findings[:5]]  # More would bury the output.
    more = len(findings) - len(lines) + (result.findings_omitted if source == "guard" else 0)
    return [*lines, f"and {more} more"] if more else lines


def _status(result: RunResult) -> str:
    label: str = result.status
    if result.reason is not None and result.reason != result.status:
        # The error's code says more than "engine".
        reason = result.code if result.reason == "engine" and result.code else result.reason
        label = f"{result.status}: {reason}"
    if result.exit_code:
        label = f"{label}, exit code {result.exit_code}"
    # Tracebacks and refusals already have the summary's text.
    ending = result.summary.removeprefix("The program raised ")
    refused = result.status == "validation_error" and result.error
    summary = "" if refused or ending in result.error else result.summary
    return f"[{label}] {summary}".rstrip()


MAX_KINDS = 5  # Kinds of calls in one line; a program can call any number.


def receipt_line(result: RunResult) -> str:
    """Return a line like "3 tool calls (1 refused), 0.41 s"."""
    calls = result.usage.tool_calls
    text = counted(calls, "tool call") if calls else "no tool calls"
    account = result.receipt or Receipt()
    others = [
        f"{count:,} {word}"
        for count, word in (
            (account.replayed, "replayed"),
            (account.held, "held"),
            (account.refused, "refused"),
            (account.unknown, "of unknown outcome"),
            (len(account.unsent), "not sent"),
        )
        if count
    ]
    if others:
        text = f"{text} ({', '.join(others)})"
    seconds = f"{result.usage.wall_ms / 1000:.2f} s"
    if account.waiting_ms:
        # A question on a plan comes before the run's time starts.
        when = "of it" if account.waiting_ms <= result.usage.wall_ms else "after"
        seconds = f"{seconds}, {when} {account.waiting_ms / 1000:.2f} s waiting for an answer"
    return f"{text}, {seconds}"


def _call_lines(result: RunResult) -> list[str]:
    lines: list[str] = []

    def tell(counts: Sequence[CallCount], text: str) -> None:
        if counts:
            count = counted(sum(each.count for each in counts), "call")
            lines.append(text.format(count, list_calls(counts)))

    retry = f'retry_of="{result.run_id}"'
    failed = result.status in ("error", "timeout")
    # Reads may be repeated. The error on a plan has advice of its own.
    changed = failed and result.receipt and result.receipt.changing and retry not in result.error
    lost = result.code == SandboxLostError.code
    if result.receipt and (changed or result.silent or lost):
        # The model sees the whole id of the run only here.
        code = "The same code" if lost else "Corrected code"
        lines.append(
            f"[retry] {counted(sum(result.receipt.calls.values()), 'call')} went out. {code} with "
            f"{retry} does not repeat what was done."
        )
    tell(result.replayed, "[retry] {} answered from the journal: {}")
    # A program that ended early might have made them later.
    tell(
        result.unused if result.status == "success" else (),
        "[retry] {} of the previous run not repeated with the same arguments: {}. Their effects "
        "remain.",
    )
    tell(result.refused, "[gate] {} not made: {}")
    if result.receipt and (names := result.receipt.masked):
        more = [f"and {len(names) - MAX_KINDS:,} more"] if len(names) > MAX_KINDS else []
        lines.append(
            f"[secrets] masked: {', '.join([*map(_plain, names[:MAX_KINDS]), *more])}. Pass a mark "
            "on unchanged: the server that returned the secret gets the secret."
        )
    if result.unsent:
        lines.append(
            f"[unsent] The run ended without {', '.join(map(_plain, result.unsent))}. "
            "Await what has to finish."
        )
    tell(
        result.unknown,
        "[gate] {} of unknown outcome: {}. Check what happened before you repeat a call.",
    )
    return lines


def list_calls(counts: Sequence[CallCount]) -> str:
    """Return a list like "6 × github.create_issue, 1 × github.push (deny: rule 'no force')"."""
    ordered = sorted(counts, key=lambda call: -call.count)
    parts = []
    for call in ordered[:MAX_KINDS]:
        name = _plain(f"{call.server}.{call.tool}") if call.server else "other tools"
        parts.append(f"{call.count:,} × {name}" + (f" ({_plain(call.why)})" if call.why else ""))
    if left := sum(call.count for call in ordered[MAX_KINDS:]):
        parts.append(f"and {left:,} more")
    return ", ".join(parts)


def _plain(text: str) -> str:
    """Return a text without control and bidirectional characters."""
    cut = text if len(text) <= 120 else f"{text[:120]}…"
    return "".join(one if one.isprintable() else "?" for one in cut)


def compact_command(result: CommandResult) -> str:
    sections = [result.stdout] if result.stdout else []
    for number, stage in enumerate(result.stages, 1):
        if stage.stderr:
            which = f" of stage {number}" if len(result.stages) > 1 else ""
            sections.append(f"[stderr{which}]\n{stage.stderr}")
    if result.truncated:
        cuts = "; ".join(f"{count:,} bytes of {name}" for name, count in result.truncated.items())
        sections.append(f"[truncated] {cuts} were dropped. Filter or count in a later stage.")
    if result.error:
        sections.append(f"[{result.status}] {result.error}")
    return _join_lines(sections) or "The command succeeded without output."
