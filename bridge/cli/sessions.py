"""`sessions`: the saved sessions, listed and removed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import anyio.to_thread

from bridge.cli.audit_lines import local_time
from bridge.cli.options import AsJson, arg
from bridge.cli.output import write_err, write_json, write_table
from bridge.errors import UnknownSessionError
from bridge.render.text import size_text
from bridge.sessions.checkpoints import Checkpoints, Saved
from bridge.settings import Settings, store_of

_HEADINGS = ("NAME", "ID", "SAVED", "KEPT UNTIL", "RUNS", "SIZE")
_SHORT = 8  # Characters of an id in the table.


async def list_sessions(settings: Settings, *, as_json: AsJson = False) -> int:
    """List saved sessions, the last saved first.

    A bridge saves a session when no run has used it for a while, and when the bridge ends.
    """
    found = await _saved(settings)
    seconds = settings.session_days * 86_400
    if as_json:
        records = [
            {
                "name": each.name,
                "id": each.session_id,
                "saved": _moment(each.moment),
                "keptUntil": _moment(each.moment + seconds),
                "runs": each.run,
                "bytes": each.size,
            }
            for each in found
        ]
        write_json(records, indent=2)
    elif found:
        write_table(_HEADINGS, [_row(each, seconds) for each in found])
    else:
        write_err("No sessions are saved. A bridge saves a session when it is idle or ends.\n")
    return 0


async def remove(
    settings: Settings,
    names: Annotated[list[str], arg("NAME", "a name, or the beginning of an id")],
) -> int:
    """Remove saved sessions."""
    saved = await _saved(settings)
    # All are looked for first: of a list with a slip in it nothing is removed.
    chosen = [_named(name, saved) for name in names]
    checkpoints = _checkpoints(settings)
    for each in chosen:
        work = partial(checkpoints.drop, each.owner, each.session_id)
        await anyio.to_thread.run_sync(work)
        write_err(f"Removed session {each.name!r}.\n")
    return 0


def _checkpoints(settings: Settings) -> Checkpoints:
    return Checkpoints(store_of(settings), days=settings.session_days)


async def _saved(settings: Settings) -> Sequence[Saved]:
    return await anyio.to_thread.run_sync(_checkpoints(settings).all, None)


def _named(name: str, saved: Sequence[Saved]) -> Saved:
    ids = [each for each in saved if each.session_id.startswith(name)]
    found = [each for each in saved if each.name == name] or ids
    if len(found) == 1:
        return found[0]
    several = f"{len(found)} sessions match {name!r:.80}."
    message = several if found else f"No session {name!r:.80} is saved."
    remedy = "Give an id: `sessions --json` has them." if found else "`sessions` lists them."
    raise UnknownSessionError(message, remedy=remedy)


def _row(saved: Saved, seconds: float) -> Sequence[str]:
    return (
        saved.name,
        saved.session_id[:_SHORT],
        local_time(_moment(saved.moment), "%b %d %H:%M"),
        local_time(_moment(saved.moment + seconds), "%b %d %H:%M"),
        str(saved.run),
        size_text(saved.size),
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
