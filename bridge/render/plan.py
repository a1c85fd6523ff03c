"""Renders a plan as a list of its calls, for a person or a model.

A group of consecutive calls of one tool shows the common arguments once, the others in a table, and
the first calls in full. Values come from programs and servers, so `printable` escapes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from bridge.model import HeldCall, Json, Plan
from bridge.text import (
    counted,
    cut_middle,
    escape_look_alikes,
    is_hidden,
    look_alikes,
    mark_gaps,
    readable_json,
)

# A program makes any number of calls, with any arguments.
MAX_CHARACTERS = 16_000  # Characters of the list; it only counts the calls beyond.
MAX_VALUE = 1_000  # Characters of an argument in full.
MAX_NAME = 80  # Characters of a tool's or an argument's name.
MAX_ROWS = 40  # Rows of a table.
MAX_COLUMNS = 6
MAX_CELL = 48  # Characters of a cell.

DIGEST = "sha256"
DIGEST_CHARS = 16  # Of an arguments' digest; the audit log has the whole.

UNLISTED = " (the tool describes no such argument)"

_PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")

_cut = partial(cut_middle, more="more")


def plan_summary(plan: Plan) -> str:
    count = len(plan.calls)
    held = f"{counted(count, 'call')} held, none of them made"
    if plan.plan_id:
        text = f'{held}; apply with run_python(apply="{plan.plan_id}").'
        return f"{text} The program stopped there." if plan.stopped else text
    if not count:
        if plan.stopped:
            return "No call is held: the program stopped before any."
        return "No call had to be held back: the program would change nothing."
    return f"{held}, and there is nothing to apply."


def plan_text(plan: Plan, *, how: bool = True, characters: int = MAX_CHARACTERS) -> str:
    """Return the list of a plan's calls. With `how` it says how to apply the plan."""
    return "\n".join(_list_calls(plan, how, characters).lines)


def plan_question(plan: Plan, characters: int) -> tuple[str, Sequence[int]]:
    """Return the list for a question, and the last line of each call that it shows in full."""
    page = _list_calls(plan, how=False, characters=characters)
    # The question itself has the number of calls.
    head = 2 if plan.calls and not page.lines[1] else 1
    return "\n".join(page.lines[head:]), [end - head for end in page.whole]


def _list_calls(plan: Plan, how: bool, characters: int) -> _PlanPage:
    page = _PlanPage(characters)
    if plan.calls:
        page.add(f"{counted(len(plan.calls), 'call')} held, none of them made:")
        groups = _groups(plan.calls)
        for line in _overview(plan.calls) if len(groups) > 1 else ():
            page.add(line)
        left = len(plan.calls)
        for group in groups:
            shown = page.add_group(group)
            left -= shown
            if shown < len(group) and page.left <= 0:
                break
        if left:
            page.add_apart(f"{counted(left, 'call')} more: the audit log lists each.")
    else:
        page.add("No call is held, so there is nothing to apply.")
    if plan.stopped:
        page.add_apart(f"The program stopped: {printable(plan.stopped)[:MAX_VALUE]}")
    if plan.stale:
        page.add_apart(
            "Read after held calls to the same server, so without their changes: "
            f"{printable(plan.stale)[:MAX_VALUE]}."
        )
    if how and (why := unknown_effects(plan.calls)):
        page.add_apart(why)
    if how and plan.plan_id:
        minutes = f"{plan.seconds / 60:g} minutes"
        page.add_apart(
            f'run_python(apply="{plan.plan_id}") makes exactly these calls, in this order, once, '
            f"within {minutes}."
        )
        asking = list(dict.fromkeys(_name(each) for each in plan.calls if each.action == "ask"))
        if asking and not plan.askable:
            more = f" and {len(asking) - 5:,} more" if asking[5:] else ""
            page.add(
                f"The bridge refuses that until the user's rules allow {', '.join(asking[:5])}"
                f"{more}: no user can be asked over HTTP without authentication."
            )
    elif how and plan.calls and not plan.stopped:
        page.add_apart(
            "The program failed, so there is nothing to apply: correct it and plan again."
        )
    return page


def unknown_effects(calls: Sequence[HeldCall]) -> str:
    rules = {call.rule for call in calls}
    if "no policy" in rules:
        return (
            "Without a policy, a plan makes only calls that the user's servers mark as read-only, "
            "and holds all others. The user can run `mcp-code-bridge policy init`."
        )
    if any(rule.startswith("default for untrusted") for rule in rules):
        return (
            'Calls held by "default for untrusted tools" may only read: no trusted server marks '
            "their effect. The user can, as `mcp-code-bridge policy explain SERVER TOOL` shows."
        )
    return ""


def printable(text: str) -> str:
    """Return text with escapes for invisible, bidirectional, control and look-alike characters."""
    if text.isascii() and text.isprintable():
        return text
    alike = look_alikes(text)
    return "".join(
        character
        if not (is_hidden(character) or index in alike)
        else character.encode("unicode_escape").decode("ascii")
        for index, character in enumerate(text)
    )


def _group_title(calls: Sequence[HeldCall]) -> str:
    first, count = calls[0], len(calls)
    start, end = first.number, calls[-1].number
    between = "to" if end - start == count - 1 else "…"
    which = f"#{start}" if count == 1 else f"#{start} {between} #{end}: {count:,} ×"
    return f"{which} {_name(first)} ({_decision_text(first)})"


class _PlanPage:
    def __init__(self, characters: int) -> None:
        self.lines: list[str] = []
        self.whole: list[int] = []
        self.left = characters

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.left -= len(line) + 1

    def add_apart(self, line: str) -> None:
        self.add("")
        self.add(line)

    def add_block(self, lines: Sequence[str]) -> bool:
        if sum(len(line) + 1 for line in lines) > self.left:
            self.left = 0
            return False
        for line in lines:
            self.add(line)
        return True

    def add_group(self, calls: Sequence[HeldCall]) -> int:
        """Add as many calls of a group as fit; return their number."""
        first, common = calls[0], dict(calls[0].arguments)
        for call in calls[1:]:
            # As JSON, since Python's 1, 1.0 and True are equal.
            common = {
                key: value
                for key, value in common.items()
                if key in call.arguments
                and readable_json(call.arguments[key]) == readable_json(value)
            }
        lead = "  each with " if len(calls) > 1 else "  "
        head = ["", _group_title(calls)]
        head += [f"{lead}{line.strip()}" for line in _in_full(common, first.unlisted)]
        alike = all(len(call.arguments) == len(common) for call in calls)
        alike = alike and len({call.digest for call in calls}) == 1
        if alike and first.digest:
            head.append(f"  {DIGEST} of all arguments: {first.digest[:DIGEST_CHARS]}")
        if not self.add_block(head):
            return 0
        if alike:
            if _is_whole(first, common):
                self.whole += [len(self.lines)] * len(calls)
            return len(calls)
        columns = list(dict.fromkeys(n for c in calls for n in c.arguments if n not in common))
        rows = [_row(call, columns) for call in calls[:MAX_ROWS]]
        unlisted = first.unlisted
        titles = ["", *(_title(column, unlisted) for column in columns[:MAX_COLUMNS])]
        titles += [DIGEST] if first.digest else []
        shown = 0
        ends: dict[int, int] = {}
        for number, line in enumerate(_table([titles, *(row.cells for row in rows)])):
            if not self.add_block([line]):
                break
            shown = number
            if number and not rows[number - 1].is_cut:
                ends[number - 1] = len(self.lines)
        if shown < len(calls):
            self.add(f"  … and {counted(len(calls) - shown, 'call')} more")
        hidden = columns[MAX_COLUMNS:]
        if hidden:
            names = ", ".join(_title(column, unlisted) for column in hidden[:MAX_COLUMNS])
            more = len(hidden) - MAX_COLUMNS
            self.add(f"  not in the table: {names}{f' and {more:,} more' if more > 0 else ''}")
        seen: set[str] = set()
        for number, (call, row) in enumerate(zip(calls, rows, strict=False)):
            # Each hidden column appears in one call.
            if (row.is_cut and number < 3) or not seen.issuperset(row.hidden):
                seen.update(row.hidden)
                rest = {key: call.arguments[key] for key in columns if key in call.arguments}
                lines = _in_full(rest, call.unlisted, "    ")
                if self.add_block([f"  #{call.number} in full:", *lines]):
                    ends.setdefault(number, len(self.lines))
        self.whole += [end for n, end in ends.items() if _is_whole(calls[n], calls[n].arguments)]
        return shown


class _Row(NamedTuple):
    """The cells of a call, and the names of its arguments outside of the table."""

    cells: list[str]
    is_cut: bool
    hidden: list[str]


def _row(call: HeldCall, columns: Sequence[str]) -> _Row:
    hidden = [column for column in columns[MAX_COLUMNS:] if column in call.arguments]
    cells, cut = [f"#{call.number}"], bool(hidden)
    cut = cut or any(len(_plain_name(name, call.unlisted)) > MAX_CELL for name in columns)
    for column in columns[:MAX_COLUMNS]:
        text = _json(call.arguments[column]) if column in call.arguments else "–"
        cut = cut or len(text) > MAX_CELL
        cells.append(_cut(text, MAX_CELL))
    cells += [call.digest[:DIGEST_CHARS]] if call.digest else []
    return _Row(cells, cut, hidden)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield f"  {'  '.join(cells)}".rstrip()


def _in_full(
    arguments: Mapping[str, Json], unlisted: Sequence[str], indent: str = "  "
) -> list[str]:
    return [
        f"{indent}{_title(name, unlisted, MAX_NAME)} = {_cut(_json(value), MAX_VALUE)}"
        for name, value in arguments.items()
    ]


def _is_whole(call: HeldCall, arguments: Mapping[str, Json]) -> bool:
    name = f"{_plain_name(call.server)}.{_plain_name(call.tool)}"
    return (
        not call.cut
        and len(name) <= 2 * MAX_NAME
        and all(len(_plain_name(key, call.unlisted)) <= MAX_NAME for key in arguments)
        and all(len(_json(value)) <= MAX_VALUE for value in arguments.values())
    )


def _title(name: str, unlisted: Sequence[str], size: int = MAX_CELL) -> str:
    note = UNLISTED if name in unlisted else ""
    return f"{_cut(_plain_name(name, unlisted), size)}{note}"


def _plain_name(name: str, unlisted: Sequence[str] = ()) -> str:
    """Return a name on one line, in quotes unless it is plain, with look-alikes escaped."""
    if _PLAIN.fullmatch(name):
        return name
    return escape_look_alikes(_json(name), all_letters=name in unlisted)


def _groups(calls: Sequence[HeldCall]) -> list[list[HeldCall]]:
    runs = [list(run) for _, run in groupby(calls, _kind)]
    # If tools alternate, a group has all calls of a tool.
    return runs if len(runs) <= 25 else _by_kind(calls)


def _by_kind(calls: Sequence[HeldCall]) -> list[list[HeldCall]]:
    kinds: dict[tuple[str, ...], list[HeldCall]] = {}
    for call in calls:
        kinds.setdefault(_kind(call), []).append(call)
    return list(kinds.values())


def _overview(calls: Sequence[HeldCall]) -> Iterator[str]:
    kinds = _by_kind(calls)
    kinds.sort(key=lambda kind: (kind[0].effect != "destructive", kind[0].action != "ask"))
    for kind in kinds[:30]:
        yield f"  {len(kind):,} × {_name(kind[0])} ({_decision_text(kind[0])})"
    if kinds[30:]:
        yield f"  {sum(map(len, kinds[30:])):,} of {len(kinds) - 30:,} other kinds"


def _kind(call: HeldCall) -> tuple[str, ...]:
    return call.server, call.tool, call.effect, call.action, call.rule


def _name(call: HeldCall) -> str:
    return _cut(f"{_plain_name(call.server)}.{_plain_name(call.tool)}", 2 * MAX_NAME)


def _decision_text(call: HeldCall) -> str:
    rule = _cut(printable(call.rule), MAX_VALUE)
    verdict = f"needs approval: {rule}" if call.action == "ask" else f"allowed: {rule}"
    return f"{call.effect}; {verdict}"


def _json(value: Json) -> str:
    return mark_gaps(printable(readable_json(value)))
