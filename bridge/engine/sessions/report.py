"""What is said of a session: what it holds, and what became of its state. Pure.

Owns the bounds on what a guest says of itself, and the sentences. A guest can only lie about its
own session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.guest.wire import Done
from bridge.model import Json, Loss, RunResult, SessionReport, Variable
from bridge.text import valid_text, visible

MAX_HELD = 40
"""Names told of; the others are counted."""

MAX_LOST = 40
"""Likewise of what a checkpoint lacks; the last says how many more there are."""

MAX_NAME_CHARS = 80
MAX_WHY_CHARS = 300

MAX_COUNT = 10**9
"""The most that is believed of a number of names."""

MAX_SIZE = 2**60
"""The most that is believed of a size."""

KEPT_AFTER_TIMEOUT = (
    "The session's state is kept: what the program had done until then is there for the next run."
)


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What a session has, as its guest says."""

    holds: tuple[Variable, ...] = ()
    more: int = 0

    def beside(self, before: Holdings) -> tuple[str, ...]:
        """Return the names that were not there before, or had another type."""
        had = {(variable.name, variable.kind) for variable in before.holds}
        return tuple(v.name for v in self.holds if (v.name, v.kind) not in had)

    def document(self) -> dict[str, Json]:
        """Return it as JSON."""
        return {"holds": [[v.name, v.kind, v.size] for v in self.holds], "more": self.more}


def holdings(done: Done) -> Holdings:
    """Return what a guest says that its session has."""
    return _holdings(done.holds, done.more)


def holdings_of(document: Mapping[str, Json]) -> Holdings:
    """Return what `Holdings.document` said; nothing of what says something else."""
    holds = document.get("holds")
    return _holdings(holds if isinstance(holds, list) else [], document.get("more", 0))


def _holdings(said: Sequence[Any], more: Any) -> Holdings:
    found = [variable for entry in said[:MAX_HELD] if (variable := _variable(entry)) is not None]
    untold = max(0, len(said) - MAX_HELD)
    counted = more if isinstance(more, int) and 0 <= more <= MAX_COUNT else 0
    return Holdings(holds=tuple(found), more=counted + untold)


def _variable(entry: Any) -> Variable | None:
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        return None
    name, kind, size = entry
    if not isinstance(name, str) or not isinstance(kind, str):
        return None
    known = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_SIZE
    return Variable(
        name=_line(name, MAX_NAME_CHARS),
        kind=_line(kind, MAX_NAME_CHARS),
        size=size if known else None,
    )


def losses(*said: Iterable[Any]) -> tuple[Loss, ...]:
    """Return what several parties say is missing, each name once."""
    found: dict[str, Loss] = {}
    more = 0
    for entry in (entry for each in said for entry in each):
        pair = (entry.name, entry.why) if isinstance(entry, Loss) else entry
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            continue
        if not isinstance(pair[0], str) or not isinstance(pair[1], str):
            continue
        name = _line(pair[0], MAX_NAME_CHARS)
        if name in found:
            continue
        if len(found) == MAX_LOST:
            more += 1
            continue
        found[name] = Loss(name=name, why=_line(pair[1], MAX_WHY_CHARS))
    if more:
        found["..."] = Loss(name="...", why=f"and {more:,} more")
    return tuple(found.values())


def _line(text: str, most: int) -> str:
    shown = visible(valid_text(text[: most + 1]), keep="")
    return shown if len(shown) <= most else f"{shown[:most]}..."


@dataclass(frozen=True, kw_only=True)
class Past:
    """What became of a session's earlier runs, when a run begins in a fresh sandbox.

    Attributes:
        runs: How many there were.
        saved: After which of them the state was saved that is restored; 0 for none.
        gone: Why there is no sandbox any more, in a clause; empty where nothing was lost by it.
        damaged: What is damaged and may have been its state, in a clause.
    """

    runs: int = 0
    saved: int = 0
    gone: str = ""
    damaged: str = ""


def note_on(past: Past) -> str:
    """Say what the session begins with, if that is not what its last run left."""
    if not past.runs:
        return past.damaged and f"It began anew, with nothing: {past.damaged}."
    why = f": {past.gone}" if past.gone else ""
    if not past.saved:
        return f"What the session held is lost{why}. It began anew, with nothing."
    if past.saved == past.runs:
        return f"Restored from what was saved after run {past.saved}{why}."
    later = _runs(past.saved + 1, past.runs)
    return f"Restored from what was saved after run {past.saved}; {later} lost{why}."


def _runs(first: int, last: int) -> str:
    if first == last:
        return f"what run {first} did is"
    return f"what runs {first} to {last} did is"


def lost_note(why: str, saved: int) -> str:
    """Say that a run took the state with it, and what the next one will begin with."""
    start = f"what was saved after run {saved}" if saved else "nothing"
    return f"The session's state is lost: {why}. The next run begins with {start}."


def with_session(result: RunResult, report: SessionReport) -> RunResult:
    """Return a result that says what became of its session, in its error too where that counts."""
    told = ""
    if report.state == "lost":
        told = report.note
    elif result.status == "timeout":
        told = "" if report.state == "ended" else KEPT_AFTER_TIMEOUT
    if told:
        result = replace(result, error=f"{result.error.rstrip()}\n{told}".strip())
    return replace(result, session=report)


def why_lost(result: RunResult, *, answered: bool) -> str:
    """Return the reason of a loss, in a clause.

    Args:
        answered: Its process had the last word. One that is interrupted and has all of its state
            stays, with that; so this one had not.
    """
    if answered and result.reason == "timeout":
        return "its time was over before all that was saved had been restored"
    return {
        "timeout": "the program did not react when its time was over, and was killed",
        "oom": "the program was killed for using too much memory",
        "crash": "the process that held it was killed",
        "exit": "the process that held it ended",
    }.get(result.reason or "", "the process that held it is gone")
