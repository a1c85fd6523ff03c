"""`sessions`: the saved sessions, listed and removed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread

from bridge.cli.audit_lines import local_time
from bridge.cli.options import AsJson, arg
from bridge.cli.output import write_err, write_json, write_table
from bridge.errors import UnknownSessionError
from bridge.model import Json
from bridge.render.text import size_text
from bridge.settings import Settings, store_of

if TYPE_CHECKING:
    from bridge.sessions.checkpoints import Checkpoints, Saved


async def list_sessions(settings: Settings, *, as_json: AsJson = False) -> int:
    """List or remove saved sessions.

    The last saved comes first. A bridge saves a session when no run has used it for a while, and
    when the bridge ends.
    """
    found = await anyio.to_thread.run_sync(_checkpoints(settings).all, None)
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


async def remove(
    settings: Settings,
    names: Annotated[list[str], arg("NAME", "a name, or the beginning of an id")],
) -> int:
    """Remove saved sessions."""
    checkpoints = _checkpoints(settings)
    saved = await anyio.to_thread.run_sync(checkpoints.all, None)
    # All are looked for first: of a list with a slip in it nothing is removed.
    for each in [_named(name, saved) for name in names]:
        await anyio.to_thread.run_sync(checkpoints.drop, each.owner, each.session_id)
        write_err(f"Removed session {each.name!r}.\n")
    return 0


def _checkpoints(settings: Settings) -> Checkpoints:
    # Imported here: it brings the engine, and help does without.
    from bridge.sessions.checkpoints import Checkpoints

    return Checkpoints(store_of(settings), days=settings.session_days)


def _named(name: str, saved: tuple[Saved, ...]) -> Saved:
    ids = [each for each in saved if each.session_id.startswith(name)]
    found = [each for each in saved if each.name == name] or ids
    if len(found) == 1:
        return found[0]
    if found:
        message = f"{len(found)} sessions match {name!r:.80}."
        raise UnknownSessionError(message, remedy="Give an id: `sessions --json` has them.")
    message = f"No session {name!r:.80} is saved."
    raise UnknownSessionError(message, remedy="`sessions` lists them.")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
