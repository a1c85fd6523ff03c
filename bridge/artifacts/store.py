"""The store of artifacts: files, whole outputs and pictures that runs left."""

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
from dataclasses import dataclass
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from bridge.artifacts.content import HEAD, Content, mime_type, translated
from bridge.errors import ArtifactStoreError, UnknownError
from bridge.model import STREAMS, Artifact, ArtifactKind, Provenance
from bridge.settings import Settings, store_of
from bridge.store import Store, StoreError, Transaction, owner_digest
from bridge.store.blobs import Unfinished
from bridge.store.retention import RetentionLimits, StoredItem, items_to_remove
from bridge.text import counted, valid_text, visible

if TYPE_CHECKING:
    from sqlalchemy import Row, Table


# A program can leave any number of files, with any names.
MAX_RUN_ENTRIES = 1_000
MAX_NAME = 255  # Characters, as of a file's name.

Origin = Callable[[], Provenance | None]
"""Returns what a run has read so far; None if nothing needs to be recorded. Called in threads."""


class Quota:
    """The remaining number and bytes of a run's artifacts. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._count = 0
        self._changing = threading.Lock()

    def begin(self) -> None:
        with self._changing:
            if self._count >= MAX_RUN_ENTRIES:
                message = (
                    f"A run may leave {MAX_RUN_ENTRIES:,} files and outputs, and this one has."
                )
                remedy = "Put many small files into an archive."
                raise ArtifactStoreError(message, remedy=remedy, code="artifact_quota")
            self._count += 1

    def take(self, size: int) -> None:
        with self._changing:
            if self._used + size > self._total:
                message = f"A run may leave {self._total:,} bytes, and this one would leave more."
                remedy = (
                    "MCP_BRIDGE_ARTIFACT_RUN_BYTES sets how much, within MCP_BRIDGE_ARTIFACT_BYTES."
                )
                raise ArtifactStoreError(message, remedy=remedy, code="artifact_quota")
            self._used += size

    def give_back(self, size: int) -> None:
        """Return the bytes of an artifact that was not stored."""
        with self._changing:
            self._used -= size
            self._count -= 1


@dataclass(frozen=True)
class RunArtifacts:
    """The artifacts of one run, with its quota. Made by `ArtifactStore.of_run`."""

    store: ArtifactStore
    quota: Quota
    owner: str
    run_id: str
    origin: Origin

    def writer(self, name: str, mime_type: str = "", kind: ArtifactKind = "file") -> ArtifactWriter:
        """Begin an artifact, which is listed only once it is finished.

        Args:
            mime_type: The claimed type; the first bytes and the name override it.
        """
        self.quota.begin()
        try:
            with translated("kept", self.store.root):
                unfinished = self.store.blobs.begin()
        except ArtifactStoreError:
            self.quota.give_back(0)
            raise
        return ArtifactWriter(self, unfinished, name, mime_type, kind)

    def add(
        self, name: str, data: bytes, mime_type: str = "", kind: ArtifactKind = "file"
    ) -> Artifact:
        with self.writer(name, mime_type, kind) as writer:
            writer.write(data)
            return writer.finish()


class ArtifactWriter:
    """An unfinished artifact. Leaving the context without `finish` discards it."""

    def __init__(
        self, run: RunArtifacts, unfinished: Unfinished, name: str, claimed: str, kind: ArtifactKind
    ) -> None:
        self._run = run
        self._unfinished: Unfinished | None = unfinished
        self._name = name
        self._claimed = claimed
        self._kind: ArtifactKind = kind
        self._size = 0
        self._head = b""
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append data. Fast enough for the event loop with pieces of up to a megabyte.

        Raises:
            ArtifactStoreError: It cannot be written. The artifact is discarded, except at the code
                `artifact_quota`: then the data written before stays.
        """
        unfinished = self._open()
        self._run.quota.take(len(data))
        self._size += len(data)
        try:
            with translated("kept", self._run.store.root):
                unfinished.write(data)
        except ArtifactStoreError:
            self.discard()
            raise
        self._digest.update(data)
        if len(self._head) < HEAD:
            self._head += data[: HEAD - len(self._head)]

    def finish(self) -> Artifact:
        unfinished, run = self._open(), self._run
        name = visible(valid_text(self._name[: 2 * MAX_NAME]), keep="")
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
        try:
            with translated("kept", run.store.root):
                artifact = run.store.keep(unfinished, run.owner, label)
        except ArtifactStoreError:
            self.discard()
            raise
        self._unfinished = None
        os.close(unfinished.descriptor)
        return artifact

    def discard(self) -> None:
        if self._unfinished is None:
            return
        unfinished, self._unfinished = self._unfinished, None
        self._run.quota.give_back(self._size)
        self._run.store.blobs.discard(unfinished)

    def _open(self) -> Unfinished:
        if self._unfinished is None:
            raise ArtifactStoreError("This was finished, or could not be kept, before.")
        return self._unfinished

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


logger = logging.getLogger(__name__)

ARTIFACTS_URI = "bridge://artifacts/"
RUNS_URI = "bridge://runs/"

MAX_ENTRIES = 50_000  # Artifacts of all owners; programs leave any number.


_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ID = re.compile(r"[0-9a-f]{20}")
_LABEL = ("run_id", "kind", "name", "mime_type", "size", "digest")
_BEGINNING = re.compile("[0-9a-f]{4,64}")

_TOTALS = """
SELECT (SELECT sum(size) FROM (SELECT DISTINCT digest, size FROM artifacts) AS contents),
    (SELECT count(*) FROM artifacts),
    (SELECT count(*) FROM artifacts WHERE digest = :digest)
"""


class ArtifactStore:
    """Stores artifacts, and lists them for the owner of their run.

    Several bridges may use one store at once. Beyond the limits, the oldest artifacts of the owner
    with the most are removed.
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
        self._seconds = days * 24 * 3600.0
        self._total_bytes = total_bytes
        # A run that exceeds the whole store would cause its own files to be removed.
        self._run_bytes = min(run_bytes, total_bytes)
        self._quotas: WeakValueDictionary[tuple[str, str], Quota] = WeakValueDictionary()
        self._now = now
        self._last = 0
        # By owner: the size that was refused, the totals there were, and when.
        self._refused: dict[str, tuple[int, tuple[int, int], float]] = {}
        self._changing = threading.Lock()
        self.blobs = store.blobs

    @property
    def root(self) -> Path | str:
        return self._store.place

    def of_run(self, owner: str, run_id: str, origin: Origin = lambda: None) -> RunArtifacts:
        """Return the artifacts of one run, to add to. No I/O."""
        if not _RUN.fullmatch(run_id):
            raise ValueError(f"no run is called {run_id!r:.80}")
        quota = self._quotas.get((owner, run_id))
        if quota is None:
            quota = self._quotas.setdefault((owner, run_id), Quota(self._run_bytes))
        return RunArtifacts(self, quota, owner, run_id, origin)

    def listed(self, owner: str | None, run_id: str = "") -> tuple[Artifact, ...]:
        """Return an owner's artifacts, newest first; None for all owners."""
        with translated("listed", self.root), self._store.reading() as kept:
            found = self._select(kept, owner, run_id)
            return tuple(self._artifact(row) for row in found)

    def page(
        self, owner: str | None, size: int, after: str = ""
    ) -> tuple[tuple[Artifact, ...], str]:
        """Return a page of artifacts, newest first, and the cursor after it; "" at the end."""
        with translated("listed", self.root), self._store.reading() as kept:
            found = self._select(kept, owner, after=after, most=size + 1)
        more = ""
        if len(found) > size:
            more = f"{found[size - 1].created:012x}.{found[size - 1].id}"
        return tuple(self._artifact(row) for row in found[:size]), more

    def find(self, owner: str | None, uri: str) -> Artifact:
        """Return the artifact with a URI, or whose id or digest begins with the text."""
        return self._artifact(self._find(owner, uri))

    def read(self, owner: str | None, uri: str, start: int = 0, size: int | None = None) -> bytes:
        """Return a content, checked against its digest, or a part, unchecked."""
        with self.opened(owner, uri) as content:
            if start == 0 and (size is None or size >= content.artifact.size):
                return content.whole()
            return content.read(start, content.artifact.size if size is None else size)

    @contextmanager
    def opened(self, owner: str | None, uri: str) -> Iterator[Content]:
        """Open an artifact's content; raise UnknownError if this owner has no such artifact."""
        artifact = self.find(owner, uri)
        with translated("read", self.root):
            try:
                blob = self.blobs.open(artifact.digest)
            except FileNotFoundError:
                raise _unknown(uri) from None
        content = Content(artifact, blob, self.root)
        with closing(blob):
            with translated("read", self.root):
                size = blob.size
            if size != artifact.size:
                raise content.damaged()
            yield content

    def _find(self, owner: str | None, uri: str) -> Row[Any]:
        # The query selects a part of the content.
        uri = uri.partition("?")[0]
        with translated("read", self.root), self._store.reading() as kept:
            found = self._select(kept, owner, uri=uri)
        if _BEGINNING.fullmatch(uri) and len({row.digest for row in found}) > 1:
            message = f"{len(found):,} things that are kept begin with {uri!r:.80}."
            raise UnknownError(message, remedy="Give more of it.", code="unknown_artifact")
        if not found:
            raise _unknown(uri)
        # The newest, if one content or a run's stream was stored several times.
        return found[0]

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
        table = _artifacts()
        chosen = table.select().order_by(table.c.created.desc(), table.c.id.desc()).limit(most)
        if not expired:
            chosen = chosen.where(table.c.created > self._oldest())
        if owner is not None:
            chosen = chosen.where(table.c.owner == owner_digest(owner))
        if run_id:
            chosen = chosen.where(table.c.run_id == run_id)
        if uri is not None:
            chosen = chosen.where(_uri_condition(table, uri))
        if after:
            moment, _, last = after.partition(".")
            created = int(moment, 16)
            older = table.c.created < created
            chosen = chosen.where(older | ((table.c.created == created) & (table.c.id < last)))
        return kept.connection.execute(chosen).all()

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
        """Remove an artifact, and its content if no other artifact has the same."""
        found = self._find(owner, uri)
        with translated("removed", self.root):
            with self._store.writing() as kept:
                _delete(kept, [found.id])
            self._store.drop([found.digest])
        return self._artifact(found)

    def remove_all(self, owner: str | None, run_id: str = "") -> int:
        with translated("removed", self.root):
            with self._store.reading() as kept:
                if not self._select(kept, owner, run_id, most=1, expired=True):
                    return 0
            with self._store.writing() as kept:
                found = self._select(kept, owner, run_id, expired=True)
                _delete(kept, [row.id for row in found])
            self._store.drop(row.digest for row in found)
        return len(found)

    def tidy(self) -> int:
        with translated("tidied", self.root), self._changing:
            if not self.blobs.exist():
                return 0
            removed = self.blobs.remove_unfinished()
            contents = self.blobs.all()
            with self._store.writing() as kept:
                # Contents stored since are not among `contents`, but must stay: check each.
                missing = [one for one in _held(kept) if one.digest not in contents]
                goes = [one for one in missing if not self._exists(one)]
                goes += self._sweep(kept)
                _delete(kept, [one.id for one in goes])
            with self._store.reading() as kept:
                strays = contents - kept.used()
            self._store.drop({one.digest for one in goes} | strays)
            # For `_is_due`.
            with suppress(FileNotFoundError):
                os.utime(self.blobs.root)
        return removed + len(set(goes))

    async def tidying(self) -> None:
        """Call `tidy` periodically until cancelled. Runs on the event loop."""
        while True:
            try:
                due = await anyio.to_thread.run_sync(self._is_due)
                removed = await anyio.to_thread.run_sync(self.tidy) if due else 0
            except ArtifactStoreError as error:
                logger.warning("what runs left cannot be tidied: %s", error)
            else:
                if removed:
                    logger.info("removed %s that runs had left", counted(removed, "thing"))
            await anyio.sleep(600)

    def _is_due(self) -> bool:
        """Return whether the store exists and no bridge has tidied it for an hour."""
        try:
            tidied = self.blobs.root.stat().st_mtime
        except OSError:
            return self._store.shared
        return not 0 <= time() - tidied < 3600.0

    def keep(self, unfinished: Unfinished, owner: str, label: Artifact) -> Artifact:
        """Store a finished file; its descriptor stays open. On an error the store is unchanged.

        Args:
            label: Its description, without URI and times.
        """
        coming = StoredItem(owner_digest(owner), "", float("inf"), label.digest, label.size)
        with self._changing:
            with self._store.writing_blob(unfinished, label.digest) as kept:
                goes = self._make_room(kept, coming)
                _delete(kept, [one.id for one in goes])
                artifact = self._insert(kept, coming.owner, label)
            # Contents that cannot be removed now are removed by the next `tidy`.
            with suppress(OSError):
                self._store.drop(one.digest for one in goes)
            return artifact

    def _insert(self, kept: Transaction, owner: str, label: Artifact) -> Artifact:
        assert kept.connection is not None
        now = int(self._now() * 1000)
        # Artifacts of one millisecond keep their order; a clock that was set back is followed.
        # Artifacts stored at once are dated up to a second ahead.
        self._last = self._last + 1 if now <= self._last < now + 1000 else now
        told = None if label.provenance is None else json.dumps(label.provenance.document())
        # The id cannot be guessed.
        own = {"id": secrets.token_hex(10), "owner": owner, "created": self._last}
        values = {name: getattr(label, name) for name in _LABEL} | own | {"provenance": told}
        kept.connection.execute(_artifacts().insert(), values)
        return self._artifact(SimpleNamespace(**values))

    def _make_room(self, kept: Transaction, coming: StoredItem) -> list[StoredItem]:
        size, count, alike = _totals(kept, coming.digest)
        totals, new = (size, count), not alike
        refused, then, moment = self._refused.get(coming.owner, (0, (0, 0), 0.0))
        # Also a slightly smaller one: otherwise each byte less would check the whole store again.
        # Checking a full store takes a second, and a program can try again at once.
        lately = then == totals and 0 <= self._now() - moment < 10.0
        if new and lately and coming.size > refused // 2:
            raise self._too_much()
        if (new and size + coming.size > self._total_bytes) or count >= MAX_ENTRIES:
            return self._sweep(kept, coming)
        return []

    def _sweep(self, kept: Transaction, coming: StoredItem | None = None) -> list[StoredItem]:
        bounds = RetentionLimits(
            total_bytes=self._total_bytes,
            oldest=self._oldest(),
            entries=MAX_ENTRIES,
            owner_entries=10_000,
        )
        goes = items_to_remove(_held(kept), bounds, coming)
        if goes is None:
            assert coming is not None
            if len(self._refused) >= 100:
                self._refused.clear()
            self._refused[coming.owner] = coming.size, _totals(kept)[:2], self._now()
            raise self._too_much()
        return goes

    def _exists(self, one: StoredItem) -> bool:
        try:
            self.blobs.open(one.digest).close()
        except StoreError:
            # The store did not answer.
            raise
        except OSError:
            return False
        return True

    def _too_much(self) -> ArtifactStoreError:
        message = (
            f"What programs left takes up the {self._total_bytes:,} bytes there are for all "
            "callers, and with this, yours would be more than your share."
        )
        remedy = "Leave less at once. MCP_BRIDGE_ARTIFACT_BYTES sets how much there may be."
        return ArtifactStoreError(message, remedy=remedy, code="artifact_quota")

    def _oldest(self) -> int:
        return int((self._now() - self._seconds) * 1000)


def store_for(settings: Settings) -> ArtifactStore:
    return ArtifactStore(
        store_of(settings),
        total_bytes=settings.artifact_bytes,
        run_bytes=settings.artifact_run_bytes,
        days=settings.artifact_days,
    )


def _artifacts() -> Table:
    from bridge.store.schema import artifacts

    return artifacts


def _uri_condition(table: Table, uri: str) -> Any:
    """Return the SQL condition for a URI, or for the beginning of an id or digest."""
    from sqlalchemy import false

    if uri.startswith(ARTIFACTS_URI):
        own = uri.removeprefix(ARTIFACTS_URI)
        return table.c.id == own if _ID.fullmatch(own) else false()
    if uri.startswith(RUNS_URI):
        run_id, _, stream = uri.removeprefix(RUNS_URI).partition("/")
        if stream not in STREAMS or not _RUN.fullmatch(run_id):
            return false()
        return (table.c.run_id == run_id) & (table.c.kind == stream)
    if _BEGINNING.fullmatch(uri):
        return table.c.id.startswith(uri) | table.c.digest.startswith(uri)
    return false()


def _held(kept: Transaction) -> list[StoredItem]:
    assert kept.connection is not None
    table = _artifacts()
    columns = (table.c.owner, table.c.id, table.c.created, table.c.digest, table.c.size)
    rows = kept.connection.execute(table.select().with_only_columns(*columns))
    return [StoredItem(*row) for row in rows]


def _totals(kept: Transaction, digest: str = "") -> tuple[int, int, int]:
    """Return the bytes of all contents, and the numbers of entries and of those with a digest."""
    from sqlalchemy import text

    assert kept.connection is not None
    found = kept.connection.execute(text(_TOTALS), {"digest": digest}).one()
    return int(found[0] or 0), int(found[1]), int(found[2])


def _delete(kept: Transaction, ids: Sequence[str]) -> None:
    from sqlalchemy import text

    if kept.connection is not None and ids:
        gone = [{"own": own} for own in ids]
        kept.connection.execute(text("DELETE FROM artifacts WHERE id = :own"), gone)


def _unknown(uri: str) -> UnknownError:
    return UnknownError(
        f"No artifact matches {uri!r:.200}; it may have expired.", code="unknown_artifact"
    )
