"""Audit records as lines to read: one for each call, with its outcome. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from bridge.model import Json
from bridge.text import visible

MAX_ARGUMENT = 120  # Characters of one value in a line; --json has all that was recorded.

_HOLDS = {"call": "once", "run": "this run", "session": "12 hours", "always": "always"}

_FRAME = frozenset({"time", "run", "kind", "seq", "prev", "hash", "previous", "call"})
_OF_CALLS = _FRAME | {"server", "tool", "arguments", "digest", "decision", "rule", "effect"}
_OF_CALLS |= {"reason", "why", "approval", "waitedMs", "led", "cut"}


def local_time(text: Json, layout: str = "%m-%d %H:%M:%S") -> str:
    """Return the time of a record in this machine's time zone."""
    try:
        return datetime.fromisoformat(str(text)).astimezone().strftime(layout)
    except ValueError:
        return "?"


def duration(milliseconds: Json) -> str:
    """Return a time such as "5 ms" or "2.3 s"; empty for none."""
    if not isinstance(milliseconds, int | float):
        return ""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def audit_lines(records: Iterable[Mapping[str, Json]], *, ids: bool = True) -> Iterator[str]:
    """Yield a line for each record; a call and its outcome share the call's.

    Args:
        ids: Whether each line has the short id of its run.
    """
    records = list(records)
    calls = {_key(each) for each in records if each.get("kind") == "call"}
    outcomes = {_key(each): each for each in records if each.get("kind") == "outcome"}
    for record in records:
        if record.get("kind") != "outcome" or _key(record) not in calls:
            parts = _parts(record, outcomes.get(_key(record), {}))
            run = str(record.get("run") or "-")[:8] if ids else ""
            words = [local_time(record.get("time")), run, *parts]
            yield visible("  ".join(word for word in words if word), keep="")


def _key(record: Mapping[str, Json]) -> tuple[str, str]:
    return str(record.get("run")), str(record.get("call"))


def _parts(record: Mapping[str, Json], outcome: Mapping[str, Json]) -> Iterator[str]:
    kind = str(record.get("kind", "?"))
    if "call" not in record:
        yield kind
        yield " ".join(_facts(record, _FRAME))
        return
    yield f"#{record['call']}"
    if kind == "outcome":
        yield f"{record.get('outcome', '?')} {duration(record.get('ms'))}"
        return
    yield f"{record.get('server', '?')}.{record.get('tool', '?')}"
    if kind == "call":
        yield f"{outcome.get('outcome', 'no answer')} {duration(outcome.get('ms'))}".rstrip()
    else:
        yield kind
    if kind == "refused":
        yield f"{record.get('decision', '?')} ({record.get('rule', '')}) {record.get('why', '')}"
    yield _approval(record)
    arguments = record.get("arguments")
    yield " ".join(_facts(arguments, ())) if isinstance(arguments, dict) else _short(arguments)
    yield " ".join(_facts(record, _OF_CALLS))


def _approval(record: Mapping[str, Json]) -> str:
    """Return how long a call waited for an answer, and what was allowed; empty if none was."""
    found = record.get("approval")
    approval = found if isinstance(found, dict) else {}
    holds = str(approval.get("holds", ""))
    waited = duration(approval.get("waitedMs", record.get("waitedMs")))
    words = f"asked {waited}" if waited and not approval.get("earlier") else ""
    if holds:
        answer = f"allowed {_HOLDS.get(holds, holds)}"
        words = f"{words or 'earlier'}: {answer}"
    note = str(approval.get("note") or "")
    return f"{words}; {note}" if note else words


def _facts(record: Mapping[str, Json], hidden: Iterable[str]) -> Iterator[str]:
    """Yield what else there is, without digests and the owner that is its principal."""
    for name, value in record.items():
        digest = isinstance(value, str) and value.startswith("sha256:")
        own = name == "owner" and value == record.get("principal")
        if name not in hidden and name != "policy" and not digest and not own:
            yield f"{name}={_short(value)}"


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.isprintable() and value and " " not in value:
        text = value
    more = len(text) - MAX_ARGUMENT
    return text if more <= 0 else f"{text[:MAX_ARGUMENT]}… ({more:,} more characters)"
