"""`bridge://sessions`: a caller's own sessions, as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bridge.engine.sessions import Listed
from bridge.model import Json


def sessions_json(sessions: Sequence[Listed]) -> str:
    """Return the sessions, those used last first."""
    return json.dumps({"sessions": [_fields(session) for session in sessions]}, ensure_ascii=False)


def _fields(session: Listed) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "id": session.session_id,
        "name": session.name,
        "state": session.state,
        "runs": session.runs,
        "idleSeconds": round(session.idle_seconds),
        "memoryLimitBytes": session.memory_bytes or None,
        "holds": [
            {"name": held.name, "type": held.kind, "size": held.size}
            for held in session.holdings.holds
        ],
        "more": session.holdings.more or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
