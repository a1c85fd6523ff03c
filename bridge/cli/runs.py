"""`runs` and `sessions`: lists recorded runs and saved sessions, and shows a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread

from bridge.cli.audit import audit_lines, duration, local_time, moment, read_log
from bridge.cli.options import AsJson, arg, complete_runs, count
from bridge.cli.output import (
    terminal_width,
    visible,
    write_cut,
    write_json,
    write_list,
    write_out,
)
from bridge.gate.audit.reading import about
from bridge.model import Json
from bridge.render.text import SHORT_ID, size_text
from bridge.settings import Settings, store_of

if TYPE_CHECKING:
    from bridge.runs.records import RunRecords

_WORDS = {"success": "ok", "validation_error": "refused"}


async def list_runs(
    settings: Settings,
    *,
    number: Annotated[int, count("how many")] = 20,
    as_json: AsJson = False,
) -> int:
    """List the last runs.

    The newest comes first. The list keeps a run for 14 days. It includes programs that the bridge
    refused to run.
    """
    records = await anyio.to_thread.run_sync(_records(settings).listed, None, number)
    off = " MCP_BRIDGE_RUN_RECORDS is off." if settings.run_records == "off" else ""
    return write_list(records, _COLUMNS, f"No runs are recorded.{off}", as_json=as_json)


async def show_run(
    settings: Settings,
    run: Annotated[str, arg("RUN", "its id, or the beginning of it", complete_runs)],
    *,
    as_json: AsJson = False,
) -> int:
    """Show a run's program, calls and output.

    The calls come from the audit log, each with its time, outcome and approval. Only the first
    4 KiB of the output are recorded.
    """
    record = await anyio.to_thread.run_sync(_records(settings).find, None, run)
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
    # Imported here: it imports the engine, which help does not need.
    from bridge.runs.records import RunRecords

    return RunRecords(settings)


def _program(record: Mapping[str, Json]) -> str:
    plan = f"(applies plan {record['plan']})" if record.get("plan") else "(empty)"
    first, _, more = str(record.get("program") or plan).strip().partition("\n")
    # The other columns take 48 characters.
    width = max((terminal_width() or 120) - 48, 20)
    return first if len(first) <= width and not more else f"{first[: width - 2]} …"


_COLUMNS: dict[str, Callable[[dict[str, Json]], str]] = {
    "RUN": lambda each: str(each["run"])[:SHORT_ID],
    "WHEN": lambda each: local_time(each.get("time"), "%b %d %H:%M"),
    "STATUS": lambda each: _WORDS.get(str(each["status"]), str(each["status"])),
    "TIME": lambda each: duration(each.get("wallMs")),
    "CALLS": lambda each: str(each.get("calls", 0)),
    "PROGRAM": _program,
}


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
        **{name: record.get(name) for name in ("session", "retryOf", "plan", "name")},
    }


def _write_part(name: str, text: Json) -> None:
    if text:
        lines = "".join(f"  {line}\n" for line in str(text).splitlines())
        write_out(visible(f"\n{name}\n{lines}"))


async def list_sessions(settings: Settings, *, as_json: AsJson = False) -> int:
    """List saved sessions.

    The last saved session comes first. A bridge saves idle sessions, and all sessions when it
    ends. `run --session NAME --end-session` removes a session of the terminal.
    """
    # Imported here: it imports the engine, which help does not need.
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
