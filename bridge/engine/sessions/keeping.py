"""What is saved of sessions, as the table sees it: one value, and the disk beside the event loop.

Owns what a disk that fails means: it costs the state that was to be saved or read, and no run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio.to_thread

from bridge.engine.sessions.checkpoints import Checkpoint, Checkpoints
from bridge.model import Json, Loss

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One session's state, as it was saved.

    Attributes:
        run: After which run.
        data: For a guest to read; empty where only the rest was asked for.
        lost: What is not in it.
        facts: What the engine wants to know again; see `Record.facts`.
        moment: When it was saved, in seconds since the epoch.
    """

    session_id: str
    name: str
    run: int
    data: bytes = field(default=b"", repr=False)
    lost: tuple[Loss, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    moment: float = 0.0


class Keeping:
    """Saves, finds and forgets."""

    def __init__(self, directory: Path, *, days: int) -> None:
        self._checkpoints = Checkpoints(directory, days=days)

    async def find(self, owner: str, key: str) -> tuple[Saved | None, str]:
        """Return what is saved by that id or name, but for its data; or what may have been it."""
        try:
            found = await anyio.to_thread.run_sync(self._checkpoints.find, owner, key)
        except OSError as error:
            logger.warning("saved sessions cannot be read: %s", error)
            return None, ""
        return None if found.checkpoint is None else _saved(found.checkpoint), found.why

    async def load(self, owner: str, session_id: str) -> tuple[Saved | None, str]:
        """Return what is saved by that id, or why it is of no use; neither if there is nothing."""
        opened = await anyio.to_thread.run_sync(self._checkpoints.load, owner, session_id)
        if opened.checkpoint is None:
            return None, opened.why
        return _saved(opened.checkpoint, opened.data), ""

    async def save(self, owner: str, saved: Saved) -> str:
        """Save it in place of what was; return why that could not be done, empty if it was."""
        checkpoint = Checkpoint(
            session_id=saved.session_id,
            name=saved.name,
            run=saved.run,
            lost=saved.lost,
            facts=saved.facts,
        )
        save = partial(self._checkpoints.save, owner, checkpoint, saved.data)
        try:
            await anyio.to_thread.run_sync(save)
        except OSError as error:
            return f"the bridge could not write it down ({error.strerror or error})"
        return ""

    async def forget(self, owner: str, session_id: str) -> None:
        """Keep nothing of it."""
        try:
            await anyio.to_thread.run_sync(self._checkpoints.forget, owner, session_id)
        except OSError as error:
            logger.warning("what was saved of a session cannot be removed: %s", error)

    async def listed(self, owner: str) -> tuple[Saved, ...]:
        """Return what is saved of an owner's sessions, but for their data."""
        try:
            found = await anyio.to_thread.run_sync(self._checkpoints.listed, owner)
        except OSError as error:
            logger.warning("saved sessions cannot be read: %s", error)
            return ()
        return tuple(_saved(each) for each in found)


def _saved(found: Checkpoint, data: bytes = b"") -> Saved:
    return Saved(
        session_id=found.session_id,
        name=found.name,
        run=found.run,
        data=data,
        lost=found.lost,
        facts=found.facts,
        moment=found.saved,
    )
