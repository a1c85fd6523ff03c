"""`sessions`: the saved sessions, listed."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio.to_thread

from bridge.cli.audit_lines import local_time
from bridge.cli.options import AsJson
from bridge.cli.output import write_err, write_json, write_table
from bridge.model import Json
from bridge.render.text import size_text
from bridge.settings import Settings, store_of


async def list_sessions(settings: Settings, *, as_json: AsJson = False) -> int:
    """List saved sessions.

    The last saved comes first. A bridge saves a session when no run has used it for a while, and
    when the bridge ends. `run --session NAME --end-session` removes one of the terminal's.
    """
    # Imported here: it brings the engine, and help does without.
    from bridge.sessions.checkpoints import Checkpoints

    saved = Checkpoints(store_of(settings), days=settings.session_days)
    found = await anyio.to_thread.run_sync(saved.all, None)
    facts: list[dict[str, Json]] = [
        {
            "name": each.name,
            "id": each.session_id,
            "saved": _moment(each.moment),
            "expires": _moment(each.moment + settings.session_days * 86_400),
            "runs": each.run,
            "bytes": each.size,
        }
        for each in found
    ]
    if as_json:
        write_json(list(facts), indent=2)
    elif facts:
        rows = [
            (
                each["name"],
                str(each["id"])[:8],
                *(local_time(each[name], "%b %d %H:%M") for name in ("saved", "expires")),
                str(each["runs"]),
                size_text(each["bytes"]),
            )
            for each in facts
        ]
        write_table(("NAME", "ID", "SAVED", "EXPIRES", "RUNS", "SIZE"), rows)
    else:
        write_err("No sessions are saved.\n")
    return 0


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
