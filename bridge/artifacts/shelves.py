"""The store on disk: where everything is, and in which order it is changed.

Owns the layout and what survives being killed: a content is complete before it has its name, and
has its name before an entry speaks of it; an entry is gone before its content is. Who may have
something, and how much, is decided above.

    lock                        whose turn it is to change anything below owners/ and blobs/
    totals                      size and number of what is kept, near enough until the next tidying
    writing/                    what is not finished; a bridge holds a lock on each of its own
    blobs/ab/<digest>           contents, each once
    owners/<owner>/<entry>      what there is of whom; see `entries`
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bridge.artifacts.clearing import (
    contents,
    remove_contents,
    remove_empty,
    remove_entries,
    remove_unfinished,
    set_totals,
    totals,
)
from bridge.artifacts.entries import Entry, describe, new_id, owner_folder, parse_file_name
from bridge.artifacts.folders import (
    file_size,
    folder,
    if_there,
    names,
    new_file,
    open_file,
    remove_file,
    root_folder,
    write_all,
)
from bridge.artifacts.tidying import MAX_ENTRIES, Bounds, Coming, Held, Refused, judge
from bridge.errors import ArtifactQuotaError
from bridge.model import ArtifactKind, Provenance
from bridge.saving import turn

TURN_SECONDS = 30.0
"""For which it is waited for the turn. Most take a millisecond; on a slow disk to look through a
full store, or to remove `BATCH` files, takes seconds."""

BATCH = 500
"""Things that are removed in one turn; between two of them others have theirs."""

SWEEP_EVERY = 500
"""Things kept after which everything is looked through again, and not only what is added up."""

SWEEP_SECONDS = 3600.0
"""After which it is looked through as well, when something is kept."""

_DAY = 24 * 3600.0

_BURST = 1000
"""Milliseconds by which what is kept quickly may be dated ahead."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A file that is being written, locked by the open descriptor."""

    descriptor: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Label:
    """What an entry is to say of a finished file."""

    owner: str
    run_id: str
    kind: ArtifactKind
    name: str
    mime_type: str
    size: int
    digest: str
    provenance: Provenance | None = None

    def description(self) -> bytes:
        """Return the text beside the entry's file name."""
        return describe(
            name=self.name,
            mime_type=self.mime_type,
            size=self.size,
            provenance=self.provenance,
        )


class Shelves:
    """The directories of one store. Everything here blocks, and raises OSError.

    What goes when there is too much is the oldest of the owner who has most.

    Args:
        root: Made when it is first written to.
        total_bytes: Of all that is kept.
        days: For how long.
        now: Seconds since the epoch.
    """

    def __init__(
        self, root: Path, *, total_bytes: int, days: int, now: Callable[[], float]
    ) -> None:
        self.root = root
        self.seconds = days * _DAY
        self.total_bytes = total_bytes
        self._now = now
        self._last = 0
        self._swept = now()
        self._kept = 0
        self._refused = Refused()
        self._changing = threading.Lock()

    # Reading

    def held(
        self,
        owner: str | None,
        *,
        like: str = "",
        before: str = "",
        newest: int = 0,
        expired: bool = False,
    ) -> list[Held]:
        """Return the entries of an owner, or of all, in no order.

        Args:
            like: What has to be in their files' names.
            before: What those names have to be less than.
            newest: How many of each owner are enough; 0 for all.
            expired: With those whose time is over.
        """
        found: list[Held] = []
        oldest = -1 if expired else self._oldest()
        with suppress(FileNotFoundError), self._inside("owners") as owners:
            folders = names(owners) if owner is None else [owner_folder(owner)]
            for name in folders:
                with if_there(), folder(owners, name) as one:
                    # Most names are never parsed: that takes longest where there are thousands.
                    files = [file for file in names(one) if like in file]
                    if before:
                        files = [file for file in files if file < before]
                    if newest:
                        files.sort(reverse=True)
                    parsed = (parse_file_name(file) for file in files)
                    valid = (entry for entry in parsed if entry and entry.created > oldest)
                    found += [(name, entry) for entry in islice(valid, newest or None)]
        return found

    @contextmanager
    def descriptions(self) -> Iterator[Callable[[Held, int], bytes]]:
        """Have a function that returns the text of an entry, up to a size; empty if there is none.

        One is for many: it holds the directories open that it was last asked for.
        """
        with ExitStack() as stack:
            try:
                owners = stack.enter_context(self._inside("owners"))
            except FileNotFoundError:
                yield lambda held, limit: b""
                return
            opened: dict[str, int] = {}
            current = stack.enter_context(ExitStack())

            def read(held: Held, limit: int) -> bytes:
                name, entry = held
                try:
                    if name not in opened:
                        current.close()
                        opened.clear()
                        opened[name] = current.enter_context(folder(owners, name))
                    descriptor = open_file(opened[name], entry.file_name)
                except OSError:
                    return b""
                try:
                    return os.read(descriptor, limit)
                finally:
                    os.close(descriptor)

            yield read

    def content(self, digest: str) -> int:
        """Open a content and return its descriptor.

        Raises:
            FileNotFoundError: There is no such.
        """
        with self._inside("blobs") as blobs, folder(blobs, digest[:2]) as part:
            return open_file(part, digest)

    # Writing

    def begin(self) -> Unfinished:
        """Begin a file that nobody sees."""
        with (
            root_folder(self.root, make=True) as root,
            folder(root, "writing", make=True) as writing,
        ):
            while True:
                name = secrets.token_hex(8)
                descriptor = new_file(writing, name)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    return Unfinished(descriptor=descriptor, name=name)
                # Somebody tidied between the two lines above and took it for a dead bridge's.
                os.close(descriptor)

    def discard(self, unfinished: Unfinished) -> None:
        """Let go of a file that is not to be kept."""
        try:
            with root_folder(self.root) as root, folder(root, "writing") as writing:
                remove_file(writing, unfinished.name)
        except OSError:
            # The next tidying finds it, once nobody holds its lock.
            pass
        finally:
            os.close(unfinished.descriptor)

    def keep(self, unfinished: Unfinished, label: Label) -> Entry:
        """Give a finished file its place and its entry; its descriptor stays open."""
        with (
            self._turn() as root,
            folder(root, "writing") as writing,
            folder(root, "blobs", make=True) as blobs,
            folder(blobs, label.digest[:2], make=True) as part,
        ):
            self._make_room(root, label, new=file_size(part, label.digest) is None)
            new = file_size(part, label.digest) is None
            size, count = totals(root) or (0, 0)
            # Ahead of it: a bridge that is killed here leaves a total that is too large, and the
            # next tidying puts it right.
            set_totals(root, size + (label.size if new else 0), count + 1)
            entry = self._entry(label)
            try:
                # Over one that is there, which may have been damaged since.
                os.replace(unfinished.name, label.digest, src_dir_fd=writing, dst_dir_fd=part)
                _add_entry(root, writing, label, entry)
            except OSError:
                if new:
                    remove_file(part, label.digest)
                set_totals(root, size, count)
                raise
        self._kept += 1
        return entry

    def remove(self, gone: list[Held]) -> int:
        """Remove entries, and the contents that nobody else has; return how many there were."""
        return sum(
            self._remove(gone[start : start + BATCH]) for start in range(0, len(gone), BATCH)
        )

    def _remove(self, gone: list[Held]) -> int:
        with self._turn() as root:
            count = remove_entries(root, gone)
            used = {entry.digest for _, entry in self.held(None, expired=True)}
            freed = remove_contents(root, {entry.digest for _, entry in gone} - used)
            size, kept = totals(root) or (0, 0)
            set_totals(root, max(size - freed, 0), max(kept - count, 0))
        return count

    def sweep(self) -> int:
        """Remove what has expired, is too much or was left unfinished; return how many."""
        try:
            with root_folder(self.root):
                pass
        except FileNotFoundError:
            return 0
        removed, more = 0, True
        while more:
            with self._turn() as root:
                count, more = self._sweep(root, most=BATCH)
            removed += count
        return removed

    # In turn

    @contextmanager
    def _turn(self) -> Iterator[int]:
        """Hold the store's directory open, and keep others from changing what is in it."""
        with (
            self._changing,
            root_folder(self.root, make=True) as root,
            turn(self.root / "lock", seconds=TURN_SECONDS),
        ):
            yield root

    def _inside(self, name: str) -> AbstractContextManager[int]:
        return _nested(self.root, name)

    def _entry(self, label: Label) -> Entry:
        now = int(self._now() * 1000)
        # Two of one millisecond stay in their order; a clock that was put back is believed.
        self._last = self._last + 1 if now <= self._last < now + _BURST else now
        return Entry(
            created=self._last,
            id=new_id(),
            run_id=label.run_id,
            kind=label.kind,
            digest=label.digest,
        )

    def _make_room(self, root: int, label: Label, *, new: bool) -> None:
        kept = totals(root)
        idle = self._now() - self._swept
        if new and self._refused.holds(owner_folder(label.owner), label.size, kept, idle):
            raise self._too_much()
        if (
            kept is None
            or self._kept >= SWEEP_EVERY
            or not 0 <= idle < SWEEP_SECONDS
            or (new and kept[0] + label.size > self.total_bytes)
            or kept[1] >= MAX_ENTRIES
        ):
            owner = owner_folder(label.owner)
            coming = Coming(owner=owner, digest=label.digest, size=label.size)
            self._sweep(root, coming=coming)

    def _sweep(
        self, root: int, *, coming: Coming | None = None, most: int | None = None
    ) -> tuple[int, bool]:
        """Look through everything; return how much was removed, and whether there is more to.

        Raises:
            ArtifactQuotaError: What is coming is more than its owner's share.
        """
        self._swept, self._kept = self._now(), 0
        removed = remove_unfinished(root)
        held, sizes = self.held(None, expired=True), contents(root)
        bounds = Bounds(total_bytes=self.total_bytes, oldest=self._oldest())
        verdict = judge(held, sizes, bounds, coming=coming, most=most)
        removed += remove_entries(root, verdict.goes)
        remove_contents(root, verdict.dead)
        set_totals(root, verdict.size, verdict.count)
        remove_empty(root)
        if coming is not None and verdict.refused:
            self._refused.add(coming, (verdict.size, verdict.count))
            raise self._too_much()
        return removed, verdict.more

    def _too_much(self) -> ArtifactQuotaError:
        message = (
            f"What programs left takes up the {self.total_bytes:,} bytes there are for all "
            "callers, and with this, yours would be more than your share."
        )
        remedy = "Leave less at once. MCP_BRIDGE_ARTIFACT_BYTES sets how much there may be."
        return ArtifactQuotaError(message, remedy=remedy)

    def _oldest(self) -> int:
        return int((self._now() - self.seconds) * 1000)


@contextmanager
def _nested(path: Path, name: str) -> Iterator[int]:
    with root_folder(path) as root, folder(root, name) as inside:
        yield inside


def _add_entry(root: int, writing: int, label: Label, entry: Entry) -> None:
    text = label.description()
    with (
        folder(root, "owners", make=True) as owners,
        folder(owners, owner_folder(label.owner), make=True) as own,
    ):
        descriptor = new_file(writing, entry.id)
        try:
            write_all(descriptor, text)
            os.replace(entry.id, entry.file_name, src_dir_fd=writing, dst_dir_fd=own)
        except OSError:
            remove_file(writing, entry.id)
            raise
        finally:
            os.close(descriptor)
