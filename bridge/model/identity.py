"""Whose skills and memories a run has. Pure."""

from __future__ import annotations

from bridge.model import PERSON_OWNERS, RunRequest

PERSON = "user"


def owner_of(request: RunRequest) -> str:
    """Return whose memories a run has; empty for a caller that cannot be told from others.

    Over HTTP that is one who shows nothing to be known by.
    """
    known = request.owner or request.principal
    return PERSON if known in PERSON_OWNERS else known


def principal_of(request: RunRequest) -> str:
    """Return who may have to do with the user's skills, and review them; empty for anybody.

    What a caller over HTTP shows by itself says nothing of who that is.
    """
    return PERSON if request.principal in PERSON_OWNERS else request.principal
