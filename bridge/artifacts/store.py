"""The store of what runs left."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from bridge.artifacts.entries import Wanted, is_run_id, new_id, uri_of, wanted
from bridge.artifacts.parts import Content, translated
from bridge.artifacts.tidying import (
    MAX_ENTRIES,
    Bounds,
    Coming,
    Held,
    Refused,
    judge,
)
from bridge.artifacts.writing import Label, Origin, Quota, RunArtifacts, of_nothing
from bridge.errors import ArtifactQuotaError, ArtifactStoreError, UnknownArtifactError
from bridge.model import Artifact, Provenance
from bridge.settings import Settings
from bridge.store import Store, Transaction, owner_digest
from bridge.store.blobs import Unfinished
from bridge.text import counted

if TYPE_CHECKING:
    from sqlalchemy import Row, Select, Table

logger = logging.getLogger(__name__)

TIDY_SECONDS = 6 * 3600.0
"""Between looks for what has expired, in a bridge that lives long and keeps nothing."""

SWEEP_EVERY = 500
"""Things kept after which everything is looked through again, and not only what is added up."""

SWEEP_SECONDS = 3600.0
"""After which it is looked through as well, when something is kept."""

_DAY = 24 * 3600.0

_BURST = 1000
"""Milliseconds by which what is kept quickly may be dated ahead."""

_DELETED = 500
"""Entries that one statement removes: databases have a bound on its length."""


@dataclass(frozen=True)
class _Found:
    """An entry: what it is known by here, and what is told of it."""

    held: Held
    artifact: Artifact


class ArtifactStore:
    """Files by their content, listed for whoever's run left them.

    Several bridges may use one store at once. What goes when there is too much is the oldest of
    the owner who has most.

    Args:
        total_bytes: Of all that is kept.
        run_bytes: Of what one run may leave.
        days: For how long.
        now: Seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        *,
        total_bytes: int,
        run_bytes: int,
        days: int,
        now: Callable[[], float] = time,
    ) -> None:
        self._store = store
        self._seconds = days * _DAY
        self._total_bytes = total_bytes
        # A run that may leave more than the store has room for would make its own files go.
        self._run_bytes = min(run_bytes, total_bytes)
        self._quotas: WeakValueDictionary[tuple[str, str], Quota] = WeakValueDictionary()
        self._now = now
        self._last = 0
        self._swept = now()
        self._kept = 0
        self._refused = Refused()
        self._changing = threading.Lock()

    @property
    def root(self) -> Path:
        """Where it is, for messages."""
        return self._store.directory

    def of_run(self, owner: str, run_id: str, origin: Origin = of_nothing) -> RunArtifacts:
        """Return where one run's go. No I/O.

        Args:
            owner: Who alone may have them; see `RunRequest.owner`.
            origin: Returns what the run has read by then; asked when something is finished.
        """
        if not is_run_id(run_id):
            raise ValueError(f"no run is called {run_id!r:.80}")
        quota = self._quotas.get((owner, run_id))
        if quota is None:
            quota = self._quotas.setdefault((owner, run_id), Quota(self._run_bytes))
        return RunArtifacts(self, quota, owner, run_id, origin)

    # --- reading ----------------------------------------------------------------------------------

    def listed(self, owner: str | None, run_id: str = "") -> tuple[Artifact, ...]:
        """Return what is kept for an owner, the newest first; for None, of all owners.

        Raises:
            ArtifactStoreError: It cannot be read.
        """
        with translated("listed", self.root), self._store.reading() as kept:
            return tuple(one.artifact for one in self._select(kept, owner, run_id=run_id))

    def page(
        self, owner: str | None, size: int, after: str = ""
    ) -> tuple[tuple[Artifact, ...], str]:
        """Return a part of the list, the newest first, and where the next begins; "" at the end.

        Reads no more than it returns.

        Args:
            after: What the part before came with.

        Raises:
            ArtifactStoreError: It cannot be read.
        """
        with translated("listed", self.root), self._store.reading() as kept:
            found = self._select(kept, owner, before=after, newest=size + 1)
        more = ""
        if len(found) > size:
            last = found[size - 1].held
            more = f"{last.created:012x}.{last.id}"
        return tuple(one.artifact for one in found[:size]), more

    def find(self, owner: str | None, uri: str) -> Artifact:
        """Return what a URI (or the beginning of an id or a digest) stands for.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
            ArtifactStoreError: It cannot be read.
        """
        return self._find(owner, uri).artifact

    def read(self, owner: str | None, uri: str, start: int = 0, size: int | None = None) -> bytes:
        """Return content, or a part of it. The whole is checked against its digest.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
            ArtifactStoreError: It cannot be read, or is not what was kept.
        """
        with self.opened(owner, uri) as content:
            if start == 0 and (size is None or size >= content.artifact.size):
                return content.whole()
            return content.read(start, content.artifact.size if size is None else size)

    @contextmanager
    def opened(self, owner: str | None, uri: str) -> Iterator[Content]:
        """Hold content open, to be read in parts while it may be removed.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner, or not any more.
            ArtifactStoreError: It cannot be read, or is not what was kept.
        """
        artifact = self.find(owner, uri)
        with translated("read", self.root):
            try:
                descriptor = self._store.blobs.open(artifact.digest)
            except FileNotFoundError:
                raise _unknown(uri) from None
        with Content(artifact, descriptor, self.root) as content:
            yield content

    def _find(self, owner: str | None, uri: str) -> _Found:
        want = wanted(uri)
        if want is None:
            raise _unknown(uri)
        with translated("read", self.root), self._store.reading() as kept:
            found = self._select(kept, owner, want=want)
        if want.beginning and len({one.held.digest for one in found}) > 1:
            message = f"{len(found):,} things that are kept begin with {uri!r:.80}."
            raise UnknownArtifactError(message, remedy="Give more of it.")
        if not found:
            raise _unknown(uri)
        # Of one content that was kept several times, or a stream of that run, the newest.
        return found[0]

    def _select(
        self,
        kept: Transaction,
        owner: str | None,
        *,
        run_id: str = "",
        want: Wanted | None = None,
        before: str = "",
        newest: int = 0,
        expired: bool = False,
    ) -> list[_Found]:
        """Return what is kept, the newest first."""
        if kept.connection is None:
            return []
        table = _artifacts()
        chosen: Select[Any] = table.select()
        if not expired:
            chosen = chosen.where(table.c.created > self._oldest())
        if owner is not None:
            chosen = chosen.where(table.c.owner == owner_digest(owner))
        if run_id:
            chosen = chosen.where(table.c.run_id == run_id)
        if want is not None:
            chosen = _where(chosen, table, want)
        if before:
            moment, _, last = before.partition(".")
            created = int(moment, 16)
            chosen = chosen.where(
                (table.c.created < created) | ((table.c.created == created) & (table.c.id < last))
            )
        chosen = chosen.order_by(table.c.created.desc(), table.c.id.desc())
        rows = kept.connection.execute(chosen.limit(newest) if newest else chosen)
        return [self._found(row) for row in rows]

    def _found(self, row: Row[Any]) -> _Found:
        provenance = None
        if row.provenance is not None:
            try:
                provenance = Provenance.of(json.loads(row.provenance))
            except (ValueError, RecursionError):
                provenance = Provenance(anything=True)
        created = row.created / 1000
        artifact = Artifact(
            uri=uri_of(row.id, row.run_id, row.kind),
            name=row.name,
            mime_type=row.mime_type,
            size=row.size,
            digest=row.digest,
            run_id=row.run_id,
            kind=row.kind,
            created=created,
            expires=created + self._seconds,
            provenance=provenance,
        )
        return _Found(Held(row.owner, row.id, row.created, row.digest, row.size), artifact)

    # --- removing ---------------------------------------------------------------------------------

    def remove(self, owner: str | None, uri: str) -> Artifact:
        """Forget it; its content goes with the last that has it.

        Raises:
            UnknownArtifactError: There is no such, or not for this owner.
            ArtifactStoreError: It cannot be written.
        """
        found = self._find(owner, uri)
        with translated("removed", self.root):
            with self._store.writing() as kept:
                _delete(kept, [found.held])
            self._store.drop([found.held.digest])
        return found.artifact

    def remove_all(self, owner: str | None, run_id: str = "") -> int:
        """Forget all that is kept for an owner, or of one run; return how many.

        Raises:
            ArtifactStoreError: It cannot be written.
        """
        with translated("removed", self.root):
            with self._store.reading() as kept:
                if not self._select(kept, owner, run_id=run_id, newest=1, expired=True):
                    return 0
            with self._store.writing() as kept:
                found = self._select(kept, owner, run_id=run_id, expired=True)
                _delete(kept, [one.held for one in found])
            self._store.drop(one.held.digest for one in found)
        return len(found)

    def tidy(self) -> int:
        """Remove what has expired, is too much, or was left unfinished; return how many.

        Raises:
            ArtifactStoreError: It cannot be written.
        """
        with translated("tidied", self.root), self._changing:
            if not self._store.blobs.root.is_dir():
                return 0
            removed = self._store.blobs.remove_unfinished()
            contents = self._store.blobs.all()
            with self._store.writing() as kept:
                # What came since is not among the contents, and is no reason to go.
                goes = [one for one in self._gone(kept, contents) if not self._there(one)]
                goes += self._sweep(kept)
                _delete(kept, goes)
            with self._store.reading() as kept:
                strays = contents - kept.used_of_all()
            self._store.drop({one.digest for one in goes} | strays)
            # For `_is_due`.
            os.utime(self._store.blobs.root)
        return removed + len(set(goes))

    async def tidying(self) -> None:
        """Tidy from time to time, until it is cancelled. Does not block; not for threads.

        What cannot be tidied is said in the log, and fails nobody.
        """
        while True:
            try:
                due = await anyio.to_thread.run_sync(self._is_due)
                removed = await anyio.to_thread.run_sync(self.tidy) if due else 0
            except ArtifactStoreError as error:
                logger.warning("what runs left cannot be tidied: %s", error)
            else:
                if removed:
                    logger.info("removed %s that runs had left", counted(removed, "thing"))
            await anyio.sleep(TIDY_SECONDS)

    def _is_due(self) -> bool:
        """Tell whether there is something to tidy, and no bridge has lately."""
        try:
            tidied = self._store.blobs.root.stat().st_mtime
        except OSError:
            return False
        return not 0 <= time() - tidied < TIDY_SECONDS

    # --- writing ----------------------------------------------------------------------------------

    def begin(self) -> Unfinished:
        """Begin a file that nobody sees; see `RunArtifacts.writer`."""
        return self._store.blobs.begin()

    def discard(self, unfinished: Unfinished) -> None:
        """Let go of a file that is not to be kept."""
        self._store.blobs.discard(unfinished)

    def keep(self, unfinished: Unfinished, label: Label) -> Artifact:
        """Give a finished file its place and its entry; its descriptor stays open.

        Raises:
            ArtifactQuotaError: It is more than its owner's share.
            OSError: It cannot be written. What there was is as it was.
        """
        coming = Coming(owner=owner_digest(label.owner), digest=label.digest, size=label.size)
        with self._changing:
            goes: list[Held] = []
            try:
                with self._store.writing() as kept:
                    goes = self._make_room(kept, coming)
                    _delete(kept, goes)
                    row = self._insert(kept, coming.owner, label)
                    self._store.blobs.place(unfinished, label.digest)
            except OSError:
                # It may have got its name, and be nobody's.
                with suppress(OSError):
                    self._store.drop([label.digest])
                raise
            self._kept += 1
            # What cannot be removed now goes with the next tidying.
            with suppress(OSError):
                self._store.drop(one.digest for one in goes)
            return row

    def _insert(self, kept: Transaction, owner: str, label: Label) -> Artifact:
        assert kept.connection is not None
        now = int(self._now() * 1000)
        # Two of one millisecond stay in their order; a clock that was put back is believed.
        self._last = self._last + 1 if now <= self._last < now + _BURST else now
        told = None if label.provenance is None else json.dumps(label.provenance.document())
        values = {
            "id": new_id(),
            "owner": owner,
            "created": self._last,
            "run_id": label.run_id,
            "kind": label.kind,
            "name": label.name,
            "mime_type": label.mime_type,
            "size": label.size,
            "digest": label.digest,
            "provenance": told,
        }
        table = _artifacts()
        kept.connection.execute(table.insert().values(**values))
        row = kept.connection.execute(table.select().where(table.c.id == values["id"])).one()
        return self._found(row).artifact

    def _make_room(self, kept: Transaction, coming: Coming) -> list[Held]:
        """Return what has to go for what comes.

        Raises:
            ArtifactQuotaError: It is more than its owner's share.
        """
        size, count = _totals(kept)
        new = not _is_kept(kept, coming.digest)
        idle = self._now() - self._swept
        if new and self._refused.holds(coming, (size, count), idle):
            raise self._too_much()
        if (
            self._kept >= SWEEP_EVERY
            or not 0 <= idle < SWEEP_SECONDS
            or (new and size + coming.size > self._total_bytes)
            or count >= MAX_ENTRIES
        ):
            return self._sweep(kept, coming)
        return []

    def _sweep(self, kept: Transaction, coming: Coming | None = None) -> list[Held]:
        """Look through everything; return what has to go.

        Raises:
            ArtifactQuotaError: What is coming is more than its owner's share.
        """
        self._swept, self._kept = self._now(), 0
        bounds = Bounds(total_bytes=self._total_bytes, oldest=self._oldest())
        verdict = judge(_held(kept), bounds, coming)
        if coming is not None and verdict.refused:
            self._refused.add(coming, _totals(kept))
            raise self._too_much()
        return list(verdict.goes)

    def _gone(self, kept: Transaction, contents: set[str]) -> list[Held]:
        return [one for one in _held(kept) if one.digest not in contents]

    def _there(self, one: Held) -> bool:
        try:
            os.close(self._store.blobs.open(one.digest))
        except OSError:
            return False
        return True

    def _too_much(self) -> ArtifactQuotaError:
        message = (
            f"What programs left takes up the {self._total_bytes:,} bytes there are for all "
            "callers, and with this, yours would be more than your share."
        )
        remedy = "Leave less at once. MCP_BRIDGE_ARTIFACT_BYTES sets how much there may be."
        return ArtifactQuotaError(message, remedy=remedy)

    def _oldest(self) -> int:
        return int((self._now() - self._seconds) * 1000)


def store_for(settings: Settings) -> ArtifactStore:
    """Return the store that settings speak of."""
    return ArtifactStore(
        Store(settings.state_dir),
        total_bytes=settings.artifact_bytes,
        run_bytes=settings.artifact_run_bytes,
        days=settings.artifact_days,
    )


def _artifacts() -> Table:
    from bridge.store.schema import artifacts

    return artifacts


def _where(chosen: Select[Any], table: Table, want: Wanted) -> Select[Any]:
    if want.id:
        return chosen.where(table.c.id == want.id)
    if want.run_id:
        return chosen.where(table.c.run_id == want.run_id, table.c.kind == want.kind)
    return chosen.where(
        table.c.id.startswith(want.beginning) | table.c.digest.startswith(want.beginning)
    )


def _held(kept: Transaction) -> list[Held]:
    assert kept.connection is not None
    table = _artifacts()
    columns = (table.c.owner, table.c.id, table.c.created, table.c.digest, table.c.size)
    rows = kept.connection.execute(table.select().with_only_columns(*columns))
    return [Held(*row) for row in rows]


def _totals(kept: Transaction) -> tuple[int, int]:
    """Return the bytes of all contents, each counted once, and the number of entries."""
    from sqlalchemy import func, select

    assert kept.connection is not None
    table = _artifacts()
    contents = select(table.c.digest, table.c.size).distinct().subquery()
    size = kept.connection.execute(select(func.sum(contents.c.size))).scalar()
    count = kept.connection.execute(select(func.count()).select_from(table)).scalar()
    return int(size or 0), int(count or 0)


def _is_kept(kept: Transaction, digest: str) -> bool:
    assert kept.connection is not None
    table = _artifacts()
    chosen = table.select().where(table.c.digest == digest)
    return kept.connection.execute(chosen.limit(1)).first() is not None


def _delete(kept: Transaction, goes: Sequence[Held]) -> None:
    assert kept.connection is not None
    table, ids = _artifacts(), [one.id for one in goes]
    for start in range(0, len(ids), _DELETED):
        some = ids[start : start + _DELETED]
        kept.connection.execute(table.delete().where(table.c.id.in_(some)))


def _unknown(uri: str) -> UnknownArtifactError:
    message = f"Nothing is kept as {uri!r:.200}, or not any more."
    return UnknownArtifactError(message)
