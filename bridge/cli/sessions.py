"""`sessions`: the saved sessions, listed."""

from __future__ import annotations

import anyio.to_thread

from bridge.cli.audit import local_time, moment
from bridge.cli.options import AsJson
from bridge.cli.output import write_list
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
    found: list[dict[str, Json]] = [
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

    def cells(each: dict[str, Json]) -> list[str]:
        times = [local_time(each[name], "%b %d %H:%M") for name in ("saved", "expires")]
        return [each["name"], each["id"][:8], *times, str(each["runs"]), size_text(each["bytes"])]

    headings = ("NAME", "ID", "SAVED", "EXPIRES", "RUNS", "SIZE")
    write_list(found, headings, cells, "No sessions are saved.", as_json=as_json)
    return 0
