"""The store of artifacts, with a quota for each run and limits for all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from time import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from bridge.artifacts.content import HEAD, Content, mime_type, translate_errors
from bridge.errors import ArtifactStoreError, UnknownError
from bridge.model import STREAMS, Artifact, ArtifactKind, Provenance, owner_digest
from bridge.settings import Settings, store_of
from bridge.store import Store, StoreError, Transaction
from bridge.store.blobs import Unfinished
from bridge.store.retention import RetentionLimits, StoredItem, items_to_remove, may_remove
from bridge.store.store import select, table
from bridge.text import counted, valid_text, visible

if TYPE_CHECKING:
    from sqlalchemy import Row


logger = logging.getLogger(__name__)

# A program can write any number of files, with any names.
MAX_RUN_ENTRIES = 1_000
MAX_NAME = 255  # Characters, as in a file's name.

Origin = Callable[[], Provenance | None]
"""Returns a run's provenance so far; None if none needs to be recorded. Called in threads."""


@dataclass(eq=False)
class RunArtifacts:
    """Adds artifacts to one run, within its quota of artifacts and bytes. Thread-safe."""

    store: ArtifactStore
    owner: str
    run_id: str
    origin: Origin = lambda: None
    _size: int = 0
    _count: int = 0
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def take(self, size: int, count: int = 0) -> None:
        """Use a part of the quota; negative numbers give it back."""
        # A run with more than the whole store would lose its own first files.
        most = min(self.store.run_bytes, self.store.total_bytes)
        with self._changing:
            if count > 0 and self._count >= MAX_RUN_ENTRIES:
                message = f"This run has stored {MAX_RUN_ENTRIES:,} files and outputs: the limit."
                remedy = "Put many small files into an archive."
            elif size > 0 and self._size + size > most:
                message = f"A run may store {most:,} bytes, and this one exceeds them."
                remedy = "MCP_BRIDGE_ARTIFACT_RUN_BYTES sets it, within MCP_BRIDGE_ARTIFACT_BYTES."
            else:
                self._size += size
                self._count += count
                return
        raise ArtifactStoreError(message, remedy=remedy, code="artifact_quota")

    def writer(self, name: str, mime_type: str = "", kind: ArtifactKind = "file") -> ArtifactWriter:
        """Begin an artifact; the store lists it once it is finished."""
        if not _RUN.fullmatch(self.run_id):
            raise ValueError(f"no run is called {self.run_id!r:.80}")
        self.take(0, 1)
        try:
            with translate_errors("stored", self.store.root):
                unfinished = self.store.blobs.begin()
        except ArtifactStoreError:
            self.take(0, -1)
            raise
        return ArtifactWriter(self, unfinished, name, mime_type, kind)

    def add(
        self, name: str, data: bytes, mime_type: str = "", kind: ArtifactKind = "file"
    ) -> Artifact:
        with self.writer(name, mime_type, kind) as writer:
            writer.write(data)
            return writer.finish()


@dataclass(eq=False)
class ArtifactWriter:
    """An unfinished artifact. Leaving the context without `finish` discards it."""

    _run: RunArtifacts
    _unfinished: Unfinished | None
    _name: str
    _claimed: str
    _kind: ArtifactKind
    _size: int = 0
    _head: bytes = b""
    _digest: Any = field(default_factory=hashlib.sha256)

    def write(self, data: bytes) -> None:
        """Append data; the event loop may write pieces of up to a megabyte.

        If that fails, the artifact is discarded, but beyond the quota the previous data stays.
        """
        self._run.take(len(data))
        self._size += len(data)
        with self._storing() as unfinished:
            unfinished.write(data)
        self._digest.update(data)
        if len(self._head) < HEAD:
            self._head += data[: HEAD - len(self._head)]

    async def keep(self) -> Artifact:
        """Call `finish` in a thread."""
        return await self._run.store.run(self.finish)

    def finish(self) -> Artifact:
        run, name = self._run, visible(valid_text(self._name[: 2 * MAX_NAME]), keep="")
        label = Artifact(
            uri="",
            name=name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…",
            mime_type=mime_type(self._name, self._head, self._claimed),
            size=self._size,
            digest=self._digest.hexdigest(),
            run_id=run.run_id,
            kind=self._kind,
            provenance=run.origin(),
        )
        with self._storing() as unfinished:
            artifact = run.store.keep(unfinished, run.owner, label)
        self._unfinished = None
        os.close(unfinished.descriptor)
        return artifact

    def discard(self) -> None:
        if self._unfinished is None:
            return
        unfinished, self._unfinished = self._unfinished, None
        self._run.take(-self._size, -1)
        self._run.store.blobs.discard(unfinished)

    @contextmanager
    def _storing(self) -> Iterator[Unfinished]:
        """Discard the artifact if it cannot be stored."""
        if self._unfinished is None:
            raise ArtifactStoreError("The artifact is finished or discarded.")
        try:
            with translate_errors("stored", self._run.store.root):
                yield self._unfinished
        except ArtifactStoreError:
            self.discard()
            raise

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


ARTIFACTS_URI = "bridge://artifacts/"
RUNS_URI = "bridge://runs/"

MAX_ENTRIES = 50_000  # Artifacts of all owners.

_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ARTIFACT_URI = re.compile(rf"{ARTIFACTS_URI}([0-9a-f]{{20}})")
_STREAM_URI = re.compile(rf"{RUNS_URI}({_RUN.pattern})/({'|'.join(STREAMS)})")
_LABEL = ("run_id", "kind", "name", "mime_type", "size", "digest")
_BEGINNING = re.compile("[0-9a-f]{4,64}")

_TOTALS = """
SELECT (SELECT sum(size) FROM (SELECT DISTINCT digest, size FROM artifacts) AS contents),
    (SELECT count(*) FROM artifacts),
    (SELECT count(*) FROM artifacts WHERE digest = :digest)
"""


@dataclass(eq=False, repr=False)
class ArtifactStore:
    """The artifacts of all runs; several bridges may use it at once.

    Beyond the limits it removes the oldest artifacts of the owner with the most.
    """

    _store: Store
    _: KW_ONLY
    total_bytes: int
    run_bytes: int
    days: int
    now: Callable[[], float] = time

    def __post_init__(self) -> None:
        self._seconds = self.days * 24 * 3600.0
        self.limits = {"bytes": self.total_bytes, "days": self.days}
        self._last = 0
        # By owner, the last refusal: its size, the totals and the time.
        self._refused: dict[str, tuple[int, tuple[int, int], float]] = {}
        self._changing = threading.Lock()
        self.root, self.blobs = self._store.place, self._store.blobs
        self.run = self._store.run  # For what blocks.

    def find_all(self, owner: str | None, run_id: str = "") -> tuple[Artifact, ...]:
        """Return the artifacts of an owner, or of all if None, newest first."""
        with translate_errors("listed", self.root), self._store.reading() as kept:
            return tuple(map(self._artifact, self._select(kept, owner, run_id)))

    def page(
        self, owner: str | None, size: int, after: str = ""
    ) -> tuple[tuple[Artifact, ...], str]:
        """Return a page of artifacts, newest first, and the cursor after it; "" at the end."""
        with translate_errors("listed", self.root), self._store.reading() as kept:
            rows = self._select(kept, owner, after=after, most=size + 1)
        more = ""
        if len(rows) > size:
            more = f"{rows[size - 1].created:012x}.{rows[size - 1].id}"
        return tuple(self._artifact(row) for row in rows[:size]), more

    def find(self, owner: str | None, uri: str) -> Artifact:
        """Return the artifact with a URI, or whose id or digest begins with the text."""
        return self._artifact(self._find(owner, uri))

    def read(self, owner: str | None, uri: str, start: int = 0, size: int | None = None) -> bytes:
        """Read a whole content, checked against its digest, or a part, unchecked."""
        with self.opened(owner, uri) as content:
            if start == 0 and (size is None or size >= content.artifact.size):
                return content.whole()
            return content.read(start, content.artifact.size if size is None else size)

    @contextmanager
    def opened(self, owner: str | None, uri: str) -> Iterator[Content]:
        artifact = self.find(owner, uri)
        with translate_errors("read", self.root):
            try:
                blob = self.blobs.open(artifact.digest)
            except FileNotFoundError:
                raise _unknown(uri) from None
        content = Content(artifact, blob, self.root)
        with closing(blob):
            if blob.size != artifact.size:
                raise content.damage_error()
            yield content

    def _find(self, owner: str | None, uri: str) -> Row[Any]:
        # The query selects a part of the content.
        uri = uri.partition("?")[0]
        with translate_errors("read", self.root), self._store.reading() as kept:
            rows = self._select(kept, owner, uri=uri)
        if _BEGINNING.fullmatch(uri) and len({row.digest for row in rows}) > 1:
            message = f"{len(rows):,} artifacts begin with {uri!r:.80}."
            raise UnknownError(message, remedy="Give more characters.", code="unknown_artifact")
        if not rows:
            raise _unknown(uri)
        # Several have one digest, or one stream: take the newest.
        return rows[0]

    def _select(
        self,
        kept: Transaction,
        owner: str | None,
        run_id: str = "",
        *,
        uri: str | None = None,
        after: str = "",
        most: int | None = None,
        expired: bool = False,
    ) -> Sequence[Row[Any]]:
        if kept.connection is None or (run_id and not _RUN.fullmatch(run_id)):
            return ()
        columns = table("artifacts").c
        query = table("artifacts").select().limit(most)
        query = query.order_by(columns.created.desc(), columns.id.desc())
        if not expired:
            query = query.where(columns.created > self._oldest(kept))
        if owner is not None:
            query = query.where(columns.owner == owner_digest(owner))
        if run_id:
            query = query.where(columns.run_id == run_id)
        if uri is not None:
            query = query.where(_uri_condition(uri))
        if after:
            moment, _, last = after.partition(".")
            created = int(moment, 16)
            older = columns.created < created
            query = query.where(older | ((columns.created == created) & (columns.id < last)))
        return kept.execute(query)

    def _artifact(self, row: Row[Any] | SimpleNamespace) -> Artifact:
        provenance = None
        if row.provenance is not None:
            try:
                provenance = Provenance.of(json.loads(row.provenance))
            except (ValueError, RecursionError):
                provenance = Provenance(anything=True)
        created, stream = row.created / 1000, row.kind in STREAMS
        return Artifact(
            uri=f"{RUNS_URI}{row.run_id}/{row.kind}" if stream else ARTIFACTS_URI + row.id,
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

    def remove(self, owner: str | None, uri: str) -> Artifact:
        """Remove an artifact, and its content unless another artifact has it."""
        row = self._find(owner, uri)
        self._remove([row])
        return self._artifact(row)

    def remove_all(self, owner: str | None, run_id: str = "") -> int:
        with translate_errors("removed", self.root), self._store.reading() as kept:
            rows = self._select(kept, owner, run_id, expired=True)
        if rows:
            self._remove(rows)
        return len(rows)

    def _remove(self, rows: Sequence[Row[Any]]) -> None:
        with translate_errors("removed", self.root):
            with self._store.writing() as kept:
                _delete(kept, rows)
            self._store.drop(row.digest for row in rows)

    def tidy(self) -> int:
        with translate_errors("tidied", self.root), self._changing:
            if not self.blobs.exist():
                return 0
            removed = self.blobs.remove_unfinished()
            contents = self.blobs.all()
            with self._store.writing() as kept:
                # `contents` lacks what was stored since, so check each.
                missing = [one for one in _held(kept) if one.digest not in contents]
                goes = [one for one in missing if not self._exists(one)]
                if may_remove(kept, "artifacts", self.limits):
                    goes += self._sweep(kept)
                _delete(kept, goes)
            with self._store.reading() as kept:
                strays = contents - kept.used()
            self._store.drop({one.digest for one in goes} | strays)
            with suppress(FileNotFoundError):
                os.utime(self.blobs.root)
        return removed + len(set(goes))

    async def tidy_periodically(self) -> None:
        """Call `tidy` periodically until cancelled, from the event loop."""
        while True:
            try:
                due = await anyio.to_thread.run_sync(self._is_due)
                removed = await self.run(self.tidy) if due else 0
            except ArtifactStoreError as error:
                logger.warning("artifacts cannot be tidied: %s", error)
            else:
                if removed:
                    level = logging.WARNING if self._store.shared else logging.INFO
                    logger.log(level, "removed %s", counted(removed, "artifact"))
            await anyio.sleep(600)

    def _is_due(self) -> bool:
        """Return whether the store exists and `tidy` last ran an hour ago; the mtime shows it."""
        try:
            tidied = self.blobs.root.stat().st_mtime
        except OSError:
            return self._store.shared
        return not 0 <= time() - tidied < 3600.0

    def keep(self, unfinished: Unfinished, owner: str, label: Artifact) -> Artifact:
        """Store a finished file as `label`, without URI and times; its descriptor stays open."""
        coming = StoredItem(owner_digest(owner), "", float("inf"), label.digest, label.size)
        with self._changing:
            with self._store.writing_blob(unfinished, label.digest) as kept:
                goes = self._make_room(kept, coming)
                _delete(kept, goes)
                artifact = self._insert(kept, coming.owner, label)
            # The next `tidy` removes contents that remain.
            with suppress(OSError):
                self._store.drop(one.digest for one in goes)
            return artifact

    def _insert(self, kept: Transaction, owner: str, label: Artifact) -> Artifact:
        now = int(kept.now(self.now) * 1000)
        # Dates keep the order of artifacts of one millisecond: they run up to a second ahead. A
        # clock that was set back by more counts.
        self._last = self._last + 1 if now <= self._last < now + 1000 else now
        provenance = None if label.provenance is None else json.dumps(label.provenance.document())
        # An id that no one can guess.
        own = {"id": secrets.token_hex(10), "owner": owner, "created": self._last}
        values = {name: getattr(label, name) for name in _LABEL} | own | {"provenance": provenance}
        kept.execute(table("artifacts").insert(), values)
        return self._artifact(SimpleNamespace(**values))

    def _make_room(self, kept: Transaction, coming: StoredItem) -> list[StoredItem]:
        size, count, alike = _totals(kept, coming.digest)
        totals, new = (size, count), not alike
        refused, then, moment = self._refused.get(coming.owner, (0, (0, 0), 0.0))
        # Checking a full store takes a second, and a program can retry at once, with a byte less.
        lately = then == totals and 0 <= self.now() - moment < 10.0
        if new and lately and coming.size > refused // 2:
            raise self._too_much()
        if (new and size + coming.size > self.total_bytes) or count >= MAX_ENTRIES:
            if not may_remove(kept, "artifacts", self.limits):
                raise self._too_much()
            return self._sweep(kept, coming)
        return []

    def _sweep(self, kept: Transaction, coming: StoredItem | None = None) -> list[StoredItem]:
        bounds = RetentionLimits(
            total_bytes=self.total_bytes,
            oldest=self._oldest(kept),
            entries=MAX_ENTRIES,
            owner_entries=10_000,
        )
        goes = items_to_remove(_held(kept), bounds, coming)
        if goes is None:
            assert coming is not None
            if len(self._refused) >= 100:
                self._refused.clear()
            self._refused[coming.owner] = coming.size, _totals(kept)[:2], self.now()
            raise self._too_much()
        return goes

    def _exists(self, one: StoredItem) -> bool:
        try:
            self.blobs.open(one.digest).close()
        except StoreError:
            raise
        except OSError:
            return False
        return True

    def _too_much(self) -> ArtifactStoreError:
        message = (
            f"The artifacts of all callers take up the limit of {self.total_bytes:,} bytes, and "
            "with this one, yours would exceed your share."
        )
        remedy = "Store less. MCP_BRIDGE_ARTIFACT_BYTES sets the limit."
        return ArtifactStoreError(message, remedy=remedy, code="artifact_quota")

    def _oldest(self, kept: Transaction) -> int:
        return int((kept.now(self.now) - self._seconds) * 1000)


def store_for(settings: Settings) -> ArtifactStore:
    return ArtifactStore(
        store_of(settings),
        total_bytes=settings.artifact_bytes,
        run_bytes=settings.artifact_run_bytes,
        days=settings.artifact_days,
    )


def _uri_condition(uri: str) -> Any:
    """Return the SQL condition for a URI, or for the beginning of an id or digest."""
    from sqlalchemy import false

    columns = table("artifacts").c
    if artifact := _ARTIFACT_URI.fullmatch(uri):
        return columns.id == artifact[1]
    if stream := _STREAM_URI.fullmatch(uri):
        return (columns.run_id == stream[1]) & (columns.kind == stream[2])
    if _BEGINNING.fullmatch(uri):
        return columns.id.startswith(uri) | columns.digest.startswith(uri)
    return false()


def _held(kept: Transaction) -> list[StoredItem]:
    return list(map(StoredItem._make, kept.execute(select("artifacts", *StoredItem._fields))))


def _totals(kept: Transaction, digest: str = "") -> tuple[int, int, int]:
    """Return the bytes of all contents, the entries, and the entries with the digest."""
    from sqlalchemy import text

    totals: Any = kept.execute(text(_TOTALS), {"digest": digest})[0]
    return int(totals[0] or 0), int(totals[1]), int(totals[2])


def _delete(kept: Transaction, items: Sequence[StoredItem | Row[Any]]) -> None:
    from sqlalchemy import text

    if items:
        gone = [{"own": item.id} for item in items]
        kept.execute(text("DELETE FROM artifacts WHERE id = :own"), gone)


def _unknown(uri: str) -> UnknownError:
    return UnknownError(
        f"No artifact matches {uri!r:.200}; it may have expired.", code="unknown_artifact"
    )
