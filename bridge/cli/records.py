"""Prints the records of runs and of their calls: `runs`, `sessions` and `audit`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

import anyio.to_thread
from typer import Option

from bridge.cli.options import AsJson, AsJsonLines, arg, complete_runs, count, flag, opt
from bridge.cli.output import (
    terminal_width,
    visible,
    write_cut,
    write_err,
    write_json,
    write_list,
    write_out,
)
from bridge.errors import AuditError, UnknownError, UsageError
from bridge.gate.audit.log import CallKind
from bridge.gate.audit.reading import (
    LogReport,
    Tampering,
    about,
    last_records,
    read,
    records_since,
    verify,
)
from bridge.gate.fates import Fates
from bridge.model import Json
from bridge.render.text import SHORT_ID, size_text
from bridge.settings import Settings, store_of
from bridge.text import counted

if TYPE_CHECKING:
    from bridge.runs.records import RunRecords

T = TypeVar("T")

_HASH = re.compile("[0-9a-f]{16,64}")
_ID = re.compile(r"[0-9A-Za-z_-]{4,64}")

_COUNTS = {
    "made": "CALLS", "ok": "OK", "failed": "FAILED", "unknown": "UNKNOWN", "refused": "REFUSED",
    "held": "HELD", "replayed": "REPLAYED", "size": "BYTES", "ms": "MS",
}  # fmt: skip

_HOLDS = {"call": "once", "run": "for this run", "session": "for 12 hours"}

_FRAME = {"time", "run", "kind", "seq", "prev", "hash", "previous", "call", "policy", "owner"}
_OF_CALLS = _FRAME | {"server", "tool", "arguments", "decision", "rule", "effect", "reason", "why"}
_OF_CALLS |= {"approval", "waitedMs", "led", "cut", "outcome", "bytes", "ms"}


async def verify_log(
    settings: Settings,
    *,
    expect: Annotated[str | None, opt("HASH", "fail unless the log contains this hash")] = None,
    as_json: AsJson = False,
) -> int:
    """The exit status is 1 if a record was changed or removed, or the expected hash is missing. A
    result's receipt has a hash to expect.
    """
    wanted = (expect or "").lower().removeprefix("sha256:")
    if wanted and not _HASH.fullmatch(wanted):
        message = f"--expect: {expect!r:.80} is not a hash, or at least 16 digits of one."
        raise UsageError(message, remedy="A result's receipt has it as `audit`.")
    report = await read_log(settings, partial(verify, expect=wanted)) or LogReport()
    ok = not report.problems and (not wanted or report.expected is not None)
    if as_json:
        names = ("files", "records", "head", "omitted")
        document = {"ok": ok, **{name: getattr(report, name) for name in names}}
        document["problems"] = list(map(_plain, report.problems))
        document["notes"] = list(map(_plain, report.notes))
        if wanted:
            document["expected"] = {"hash": wanted, "found": _plain(report.expected)}
        write_json(document, indent=2)
    else:
        _write_report(report, _directory(settings))
        if wanted:
            where = "nowhere in the log" if report.expected is None else str(report.expected)
            write_out(visible(f"Expected hash {wanted}: {where}\n"))
    return 0 if ok else 1


async def tail(
    settings: Settings,
    *,
    number: Annotated[int, count("number of records")] = 20,
    follow: Annotated[bool, flag("-f", "keep printing new records")] = False,
    as_json: AsJsonLines = False,
) -> int:
    """Examples: audit tail -n 100 -f"""
    last = await read_log(settings, partial(last_records, count=number))
    if last is None and not follow:
        write_err(_no_records(_directory(settings)))
    records, places = last or ([], {})
    _write_records(records, as_json=as_json)
    while follow:
        await anyio.sleep(0.25)
        records = await read_log(settings, partial(records_since, places=places)) or []
        _write_records(records, as_json=as_json)
    return 0


async def show(
    settings: Settings,
    *,
    run: Annotated[str, arg("RUN", "a run's or plan's id, or its beginning", complete_runs)],
    as_json: AsJsonLines = False,
) -> int:
    if not _ID.fullmatch(run):
        message = f"{run!r:.80} is not the id of a run or plan, or its beginning."
        remedy = "Results have it as `runId`; `audit tail` shows the last ones."
        raise UsageError(message, remedy=remedy)
    records = await read_log(settings, partial(about, wanted=run))
    if not records:
        write_err(visible(f"No run or plan {run!r} in the audit log ({_directory(settings)}).\n"))
        return 1
    _write_records(records, as_json=as_json)
    return 0


async def stats(
    settings: Settings,
    *,
    by: Annotated[str, opt("WHAT", "any of day, server, tool, decision, outcome")] = "server",
    since: Annotated[
        datetime | None,
        Option(metavar="DAY", formats=["%Y-%m-%d"], help="first day to count: 2026-12-31"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Examples: audit stats --by day,server --since 2026-12-31"""
    columns = tuple(dict.fromkeys(by.split(",")))
    if not set(columns) <= {"day", "server", "tool", "decision", "outcome"}:
        names = "day, server, tool, decision, outcome"
        raise UsageError(f"--by: {by!r:.80} is not a comma-separated list of {names}.")
    # The log's files have the day in their names.
    first = since.date().isoformat() if since else ""
    counting = await read_log(
        settings, lambda directory: count_calls(read(directory, since=first), columns)
    )
    counting = counting or CallCounts()
    groups = [
        (key, {name: round(count[name]) for name in _COUNTS})
        for key, count in sorted(counting.groups.items())
    ]
    if as_json:
        counts = [{**dict(zip(columns, key, strict=True)), **count} for key, count in groups]
        write_json({"runs": counting.runs, "records": counting.records, "groups": counts}, indent=2)
        return 0
    if not counting.records:
        write_err(f"No calls since {first}.\n" if since else _no_records(_directory(settings)))
        return 0
    headings = [*map(str.upper, columns), *_COUNTS.values()]
    rows = [[*key, *(f"{value:,}" for value in count.values())] for key, count in groups]
    if rows:
        cells = {heading: itemgetter(at) for at, heading in enumerate(headings)}
        narrow = ("REPLAYED", "HELD", "UNKNOWN", "BYTES", "MS")
        write_list(rows, cells, "", as_json=False, drop=narrow)
    else:
        write_out("No calls.\n")
    runs, records = counted(counting.runs, "run"), counted(counting.records, "record")
    write_out(f"\n{runs}, {records}.\n")
    return 0


@dataclass(kw_only=True)
class CallCounts:
    """Counts of runs, of records, and of calls and results by group."""

    runs: int = 0
    records: int = 0
    groups: dict[tuple[str, ...], Counter[str]] = field(default_factory=dict)


def count_calls(records: Iterable[Mapping[str, Json]], by: Sequence[str]) -> CallCounts:
    """Count calls by group. A call without a record of its outcome is unknown."""
    counts, open_calls = CallCounts(), dict[tuple[str, str], Mapping[str, Json]]()

    def add(call: Mapping[str, Json], end: Mapping[str, Json]) -> None:
        server, outcome = str(call.get("server", "")), str(call["kind"])
        numbers = {outcome: call.get("times", 1)}
        if outcome == "call":
            outcome = str(end.get("outcome", "unknown"))
            state = outcome if outcome in ("ok", "unknown") else "failed"
            numbers = {"made": 1, state: 1, "size": end.get("bytes"), "ms": end.get("ms")}
        facts = {
            "day": str(call.get("time", ""))[:10],
            "server": server,
            "tool": f"{server}.{call.get('tool', '')}",
            "decision": f"{call.get('decision', '-')}: {call.get('rule', '-')}",
            "outcome": outcome,
        }
        group = counts.groups.setdefault(tuple(facts[name] for name in by), Counter())
        group.update({name: n if type(n) in (int, float) else 0 for name, n in numbers.items()})

    for record in records:
        counts.records += 1
        kind = record.get("kind")
        counts.runs += kind in ("run", "apply")
        if kind == "call":
            open_calls[_key(record)] = record
        elif kind == "outcome" and _key(record) in open_calls:
            add(open_calls.pop(_key(record)), record)
        elif kind in get_args(CallKind):
            add(record, {})
    for call in open_calls.values():
        add(call, {})
    return counts


def _directory(settings: Settings) -> Path:
    return settings.state_dir / "audit"


async def read_log(settings: Settings, read: Callable[[Path], T]) -> T | None:
    """Return the result of `read` on the log's directory; None if there is no log."""
    directory = _directory(settings)
    if not directory.is_dir():
        return None
    try:
        return await anyio.to_thread.run_sync(read, directory, abandon_on_cancel=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise AuditError(f"The audit log in {directory} cannot be read: {reason}.") from error


def _write_report(report: LogReport, directory: Path) -> None:
    if not report.files:
        write_out(_no_records(directory))
        return
    for word, findings in (("WRONG", report.problems), ("note ", report.notes)):
        write_out(visible("".join(f"{word}  {finding}\n" for finding in findings)))
    if report.omitted:
        write_out(f"and {report.omitted:,} more\n")
    changed = "the log is NOT as it was written"
    verdict = changed if report.problems else "nothing was changed or removed"
    records, files = counted(report.records, "record"), counted(report.files, "file")
    write_out(f"{records} in {files}: {verdict}.\n")
    if report.head:
        write_out(f"Head: {report.head}\n")


def _plain(finding: Tampering | None) -> Json:
    return finding and {name: value for name, value in finding._asdict().items() if value}


def _write_records(records: Sequence[Mapping[str, Json]], *, as_json: bool) -> None:
    if as_json:
        for record in records:
            write_json(record)
    else:
        write_cut(audit_lines(records))


def _no_records(directory: Path) -> str:
    return visible(f"Nothing has been recorded in {directory}.\n")


def local_time(text: Json, layout: str = "%m-%d %H:%M:%S") -> str:
    return datetime.fromisoformat(str(text)).astimezone().strftime(layout) if text else "?"


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def duration(milliseconds: Json) -> str:
    """Format a duration: "5 ms", "2.3 s"; empty for zero or no number."""
    value = milliseconds if isinstance(milliseconds, int | float) else 0
    return f"{value / 1000:,.1f} s" if value >= 1000 else f"{value:.0f} ms" if value else ""


def audit_lines(records: Collection[Mapping[str, Json]], *, ids: bool = True) -> Iterator[str]:
    """Yield a line for each record; a call and its outcome share one."""
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
    """Return how long a call waited for approval and what the user allowed; empty for none."""
    value = record.get("approval")
    approval = value if isinstance(value, dict) else {}
    waited = "" if approval.get("earlier") else approval.get("waitedMs", record.get("waitedMs"))
    holds = str(approval.get("holds", ""))
    allowed = f"allowed {_HOLDS.get(holds, holds)}" if holds else ""
    asked = f"asked {duration(waited)}" if waited else "earlier" if holds else ""
    return "; ".join(filter(None, (asked, allowed, str(approval.get("note", "")))))


def _facts(record: Mapping[str, Json], hidden: Collection[str]) -> str:
    shown = {name: value for name, value in record.items() if name not in hidden}
    texts = {name: _short(value) for name, value in shown.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items() if text[:7] != "sha256:")


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.isprintable() and value and " " not in value:
        text = value
    # --json prints the whole value.
    more = len(text) - 120
    return text if more <= 0 else f"{text[:120]}… ({more:,} more characters)"


_WORDS = {"success": "ok", "validation_error": "refused"}


async def list_runs(
    settings: Settings, *, number: Annotated[int, count("how many")] = 20, as_json: AsJson = False
) -> int:
    """The newest comes first. The list keeps a run for 14 days. It includes programs that the
    bridge refused to run.
    """
    records = await anyio.to_thread.run_sync(_records(settings).listed, None, number)
    off = " MCP_BRIDGE_RUN_RECORDS is off." if settings.run_records == "off" else ""
    columns: dict[str, Callable[[dict[str, Json]], str]] = {
        "RUN": lambda each: str(each["run"])[:SHORT_ID],
        "WHEN": lambda each: local_time(each.get("time"), "%b %d %H:%M"),
        "STATUS": lambda each: _WORDS.get(str(each["status"]), str(each["status"])),
        "TIME": lambda each: duration(each.get("wallMs")),
        "CALLS": lambda each: str(each.get("calls", 0)),
        "PROGRAM": _program,
    }
    return write_list(records, columns, f"No runs are recorded.{off}", as_json=as_json)


async def show_run(
    settings: Settings,
    run: Annotated[str, arg("RUN", "its id, or the beginning of it", complete_runs)],
    *,
    as_json: AsJson = False,
) -> int:
    """The calls come from the audit log, each with its time, outcome and approval. Only the first 4
    KiB of the output are recorded.
    """
    try:
        record = await anyio.to_thread.run_sync(_records(settings).find, None, run)
    except UnknownError:
        fate = await Fates(store_of(settings), settings.replica or "-").find(run, None)
        if fate is None:
            raise
        record = {**fate.record}
    since = str(record.get("time", ""))[:10]
    events = await read_log(settings, partial(about, wanted=str(record["run"]), since=since)) or []
    if as_json:
        write_json({**record, "events": list(events)}, indent=2)
        return 0
    for name, value in _head(record).items():
        write_out(visible(f"{name:<8} {value}", keep="") + "\n" if value else "")
    _write_part("program", record.get("program"))
    shown = [each for each in events if each.get("kind") not in ("run", "apply", "end")]
    if shown or settings.audit == "off":
        write_out("\ncalls" + ("\n" if shown else " are not recorded: MCP_BRIDGE_AUDIT is off.\n"))
        write_cut(f"  {line}" for line in audit_lines(shown, ids=False))
    for name in ("stdout", "stderr", "value", "error"):
        _write_part(name, record.get(name))
    return 0


def _records(settings: Settings) -> RunRecords:
    from bridge.runs.records import RunRecords

    return RunRecords(settings)


def _program(record: Mapping[str, Json]) -> str:
    plan = f"(applies plan {record['plan']})" if record.get("plan") else "(empty)"
    first, _, more = str(record.get("program") or plan).strip().partition("\n")
    # The other columns take 48 characters.
    width = max((terminal_width() or 120) - 48, 20)
    return first if len(first) <= width and not more else f"{first[: width - 2]} …"


def _head(record: Mapping[str, Json]) -> Mapping[str, Json]:
    status, reason = str(record["status"]), record.get("reason")
    words = "lost: its bridge ended first" if status == "lost" else _WORDS.get(status, status)
    waited, refused = duration(record.get("waitingMs")), record.get("refused")
    return {
        "run": record["run"],
        "began": local_time(record.get("time"), "%Y-%m-%d %H:%M:%S"),
        "by": f"{record.get('owner', '')} {record.get('client', '')}".strip(),
        "status": f"{words} ({reason})" if reason else words,
        "time": duration(record.get("wallMs")) + (f", {waited} of waiting" if waited else ""),
        "calls": f"{record.get('calls', 0)}" + (f", {refused} refused" if refused else ""),
        **{name: record.get(name) for name in ("session", "retryOf", "plan", "name", "fate")},
    }


def _write_part(name: str, text: Json) -> None:
    if text:
        lines = "".join(f"  {line}\n" for line in str(text).splitlines())
        write_out(visible(f"\n{name}\n{lines}"))


async def list_sessions(settings: Settings, *, as_json: AsJson = False) -> int:
    """The last saved session comes first. A bridge saves idle sessions, and all sessions when it
    ends. `run --session NAME --end-session` removes a session of the terminal.
    """
    from bridge.sessions.checkpoints import Checkpoints

    saved = Checkpoints(store_of(settings), days=settings.session_days)
    sessions: list[dict[str, Json]] = [
        {
            "name": each.name,
            "id": each.session_id,
            "saved": moment(each.moment),
            "expires": moment(each.moment + settings.session_days * 86_400),
            "runs": each.run,
            "bytes": each.size,
        }
        for each in await anyio.to_thread.run_sync(saved.all, None)
    ]

    columns: dict[str, Callable[[dict[str, Json]], str]] = {
        "NAME": lambda each: each["name"],
        "ID": lambda each: each["id"][:8],
        "SAVED": lambda each: local_time(each["saved"], "%b %d %H:%M"),
        "EXPIRES": lambda each: local_time(each["expires"], "%b %d %H:%M"),
        "RUNS": lambda each: str(each["runs"]),
        "SIZE": lambda each: size_text(each["bytes"]),
    }
    return write_list(sessions, columns, "No sessions are saved.", as_json=as_json)
