"""Audit records as lines to read: one for each call, with its outcome. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime

from bridge.model import Json

_HOLDS = {"call": "once", "run": "for this run", "session": "for 12 hours"}

_FRAME = {"time", "run", "kind", "seq", "prev", "hash", "previous", "call", "policy", "owner"}
_OF_CALLS = _FRAME | {"server", "tool", "arguments", "decision", "rule", "effect", "reason", "why"}
_OF_CALLS |= {"approval", "waitedMs", "led", "cut", "outcome", "bytes", "ms"}


def local_time(text: Json, layout: str = "%m-%d %H:%M:%S") -> str:
    """Return the time of a record in this machine's time zone."""
    return datetime.fromisoformat(str(text)).astimezone().strftime(layout) if text else "?"


def moment(seconds: float) -> str:
    """Return a time as JSON has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def duration(milliseconds: Json) -> str:
    """Return a time such as "5 ms" or "2.3 s"; empty for none."""
    value = milliseconds if isinstance(milliseconds, int | float) else 0
    return f"{value / 1000:,.1f} s" if value >= 1000 else f"{value:.0f} ms" if value else ""


def audit_lines(records: Collection[Mapping[str, Json]], *, ids: bool = True) -> Iterator[str]:
    """Yield a line for each record; a call and its outcome share the call's.

    Args:
        ids: Whether each line has the short id of its run.
    """
    calls = {_key(each) for each in records if each.get("kind") == "call"}
    outcomes = {_key(each): each for each in records if each.get("kind") == "outcome"}
    for record in records:
        if record.get("kind") != "outcome" or _key(record) not in calls:
            run = str(record.get("run") or "-")[:8] if ids else ""
            parts = _parts(record, outcomes.get(_key(record), {}))
            yield "  ".join(filter(None, (local_time(record.get("time")), run, *parts)))


def _key(record: Mapping[str, Json]) -> tuple[str, str]:
    return str(record.get("run")), str(record.get("call"))


def _parts(record: Mapping[str, Json], outcome: Mapping[str, Json]) -> tuple[str, ...]:
    kind = state = str(record.get("kind", "?"))
    if "call" not in record:
        return kind, _facts(record, _FRAME)
    if kind in ("call", "outcome"):
        end = record if kind == "outcome" else outcome
        state = f"{end.get('outcome', 'no answer')} {duration(end.get('ms'))}".rstrip()
    elif kind == "refused":
        decision, rule = record.get("decision", "?"), record.get("rule", "")
        state = f"refused  {decision} ({rule}) {record.get('why', '')}"
    name = f"{record.get('server')}.{record.get('tool')}" if "tool" in record else ""
    arguments = record.get("arguments", {})
    given = _facts(arguments, ()) if isinstance(arguments, dict) else str(arguments)
    return f"#{record['call']}", name, state, _approval(record), given, _facts(record, _OF_CALLS)


def _approval(record: Mapping[str, Json]) -> str:
    """Return how long a call waited for an answer, and what was allowed; empty if none was."""
    found = record.get("approval")
    approval = found if isinstance(found, dict) else {}
    waited = "" if approval.get("earlier") else approval.get("waitedMs", record.get("waitedMs"))
    holds = str(approval.get("holds", ""))
    allowed = f"allowed {_HOLDS.get(holds, holds)}" if holds else ""
    asked = f"asked {duration(waited)}" if waited else "earlier" if holds else ""
    return "; ".join(filter(None, (asked, allowed, str(approval.get("note", "")))))


def _facts(record: Mapping[str, Json], hidden: Collection[str]) -> str:
    """Return names and values, without digests."""
    shown = {name: value for name, value in record.items() if name not in hidden}
    texts = {name: _short(value) for name, value in shown.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items() if text[:7] != "sha256:")


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.isprintable() and value and " " not in value:
        text = value
    # --json has all that was recorded.
    more = len(text) - 120
    return text if more <= 0 else f"{text[:120]}… ({more:,} more characters)"
