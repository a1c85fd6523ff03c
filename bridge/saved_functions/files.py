"""Skills as plain files in a folder, which may be a git repository. Blocks: call it in threads.

`NAME.py` is the current skill, `NAME/1.py` and so on are its saved versions. A person may edit, add
and remove files at any time; bridges take turns by the store. Approvals are in the store, by
digest: a file that gets into the folder, for example by `git pull`, brings none along.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.atomic_files import read_regular, replace_file
from bridge.errors import InvalidRequestError, LibraryError
from bridge.model import Provenance
from bridge.saved_functions.provenance import SKILLS, add_read, forget_read, is_known_to_flow_rules
from bridge.saved_functions.source import (
    MAX_SOURCE_BYTES,
    NAME,
    Header,
    Tools,
    decode_skill,
    encode_skill,
    source_digest,
    text_digest,
    version_of,
)
from bridge.store import Store, Transaction

logger = logging.getLogger(__name__)

# Programs may save without end.
MAX_SKILLS = 500
MAX_VERSIONS = 50  # Of one skill that stay; the oldest go.

_APPROVED = "approved"

State = tuple[int, int, int]  # What tells a file from what it was before: time, size, number.


@dataclass(frozen=True, kw_only=True)
class SavedSkill:
    text: str
    version: int
    changed: bool


class SkillFiles:
    """The files of one folder, which need not be there."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store

    def states(self) -> dict[str, State]:
        """Return the existing skills by name, each with its file's state."""
        found: dict[str, State] = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    name, dot, end = entry.name.rpartition(".")
                    if len(found) >= MAX_SKILLS:
                        break
                    if not dot or end != "py" or not NAME.fullmatch(name):
                        continue
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise LibraryError(f"The folder of skills cannot be read: {_why(error)}.") from None
        return dict(sorted(found.items()))

    def text(self, name: str) -> str | None:
        try:
            data = read_regular(self._path(name), 2 * MAX_SOURCE_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise LibraryError(f"Skill {name!r} cannot be read: {_why(error)}.") from None
        return data.decode("utf-8", "surrogateescape")

    def texts(self, names: Mapping[str, State]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in names:
            with suppress(LibraryError):
                text = self.text(name)
                if text is not None:
                    found[name] = text
        return found

    def save(
        self,
        name: str,
        source: str,
        description: str,
        tools: Tools,
        now: str,
        provenance: Provenance | None = None,
        *,
        only_if: str | None = None,
    ) -> SavedSkill:
        """Save a source as a skill. The previous text stays as a version.

        Args:
            only_if: The digest of the previous text; empty for no text, None for any.

        Raises:
            InvalidRequestError: There is no room, or another of nearly that name, or the text is
                not what `only_if` says.
            LibraryError: It cannot be written. The skill is unchanged.
        """
        header = Header(
            description=description,
            created=now,
            updated=now,
            digest=source_digest(source),
            tools=tools,
            provenance=provenance,
        )
        with self._changing(name, "saved", provenance):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_unchanged(name, only_if)
            return self._saved(name, source, header)

    @contextmanager
    def _changing(
        self, name: str, doing: str, provenance: Provenance | None = None
    ) -> Iterator[Transaction]:
        """Lock the skills against other bridges; record first what the run had read."""
        try:
            if is_known_to_flow_rules(provenance):
                with self._store.writing(durable=True) as kept:
                    add_read(kept, SKILLS, name, provenance)
            with self._store.writing(durable=True) as kept:
                yield kept
                # The previous text may have been approved meanwhile: forget that.
                add_read(kept, SKILLS, name, provenance)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            why = _why(error) if isinstance(error, OSError | ValueError) else str(error)
            raise LibraryError(f"Skill {name!r} cannot be {doing}: {why}.") from None

    def approve(self, name: str, digest: str) -> bool:
        """Approve a skill if its text is still the one that was shown; return whether it is."""
        with self._changing(name, "approved of") as kept:
            text = self.text(name)
            if text is None or text_digest(text) != digest:
                return False
            found = [*_approvals(kept.get(_APPROVED, SKILLS, "")), [name, digest]]
            kept.put(_APPROVED, SKILLS, "", json.dumps(found).encode())
            forget_read(kept, SKILLS, name)
            return True

    def approved(self) -> set[tuple[str, str]]:
        """Return the names and digests that a person approved."""
        try:
            found = self._store.documents(_APPROVED, [""], SKILLS).get("")
            return {(name, digest) for name, digest in _approvals(found)}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            logger.warning("approvals of skills cannot be read, and do not count: %s", error)
            return set()

    def _check_unchanged(self, name: str, digest: str | None) -> None:
        text = None if digest is None else self.text(name)
        if digest is not None and digest != ("" if text is None else text_digest(text)):
            message = f"The skill {name!r} was changed at the same moment by another writer."
            raise InvalidRequestError(message, remedy="Look at it, then try again.")

    def _saved(self, name: str, source: str, new: Header) -> SavedSkill:
        self._check_room(name)
        old = self.text(name)
        header, before = (None, "") if old is None else decode_skill(old)
        created = header.created if header is not None and header.created else new.created
        new = replace(new, created=created)
        changed = before != source
        if old is not None:
            number, edited = version_of(header, before)
            if not changed and header is not None and not edited:
                if (header.description, header.tools) == (new.description, dict(new.tools)):
                    return SavedSkill(text=old, version=number, changed=False)
                if header.provenance is not None:
                    # The source is still from there, also if its description changed.
                    theirs = header.provenance
                    new = replace(new, provenance=(new.provenance or theirs).together(theirs))
            self._keep_text(name, old)
        new = replace(new, version=max(self._versions(name), default=0) + 1)
        text = encode_skill(new, source)
        self._keep(name, new.version, text)
        replace_file(self._path(name), _bytes(text), durable=True)
        return SavedSkill(text=text, version=new.version, changed=changed)

    def remove(
        self,
        name: str,
        provenance: Provenance | None = None,
        *,
        versions: bool,
        only_if: str | None = None,
    ) -> bool:
        """Remove a skill; return whether it existed.

        Args:
            versions: Whether its versions go too. Otherwise the last text stays as one.
            only_if: The digest of the text; the error is that of `save`.
        """
        if not self.folder.is_dir():
            return False
        with self._changing(name, "removed", provenance) as kept:
            self._check_unchanged(name, only_if)
            there = self._path(name).is_file()
            if there and not versions:
                self._keep_text(name, self.text(name) or "")
            self._path(name).unlink(missing_ok=True)
            if versions:
                forget_read(kept, SKILLS, name)
                return self._remove_versions(name) or there
            if there:
                self._forget_removed(name)
            return there

    def _remove_versions(self, name: str) -> bool:
        numbers = self._versions(name)
        for number in numbers:
            self._version(name, number).unlink(missing_ok=True)
        with suppress(OSError):
            # Fails if other files are in it, which are the user's.
            (self.folder / name).rmdir()
        return bool(numbers)

    def _forget_removed(self, last: str) -> None:
        folder = self.folder / last
        if folder.is_dir() and not folder.is_symlink():
            # The time of removal.
            os.utime(folder)
        removed: list[tuple[int, str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                    continue
                if not self._path(entry.name).exists():
                    removed.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        # A program may save one and remove it under one name after the other.
        for _, name in sorted(removed)[:-100]:
            self._remove_versions(name)

    def _check_room(self, name: str) -> None:
        names = self.states()
        if name not in names and len(names) >= MAX_SKILLS:
            message = f"{MAX_SKILLS:,} skills are saved, which is all there is room for."
            raise InvalidRequestError(message, remedy="Remove some that are not used.")
        for other in names:
            if other != name and other.lower() == name.lower():
                message = f"There is a skill {other!r}, which some systems cannot tell from {name}."
                raise InvalidRequestError(message, remedy="Give it another name.")

    def _keep_text(self, name: str, text: str) -> None:
        number, _ = version_of(*decode_skill(text))
        with suppress(OSError, ValueError):
            if number in self._versions(name) and read_regular(
                self._version(name, number), 2 * MAX_SOURCE_BYTES
            ) == _bytes(text):
                return
        self._keep(name, max(number, max(self._versions(name), default=0) + 1), text)

    def _keep(self, name: str, number: int, text: str) -> None:
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "the directory of its versions is a link")
        replace_file(self._version(name, number), _bytes(text), durable=True)
        for old in sorted(self._versions(name))[:-MAX_VERSIONS]:
            self._version(name, old).unlink(missing_ok=True)

    def _versions(self, name: str) -> list[int]:
        folder = self.folder / name
        if folder.is_symlink():
            return []
        try:
            names = [entry.name for entry in folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = (each.removesuffix(".py") for each in names if each.endswith(".py"))
        return [int(each) for each in found if each.isascii() and each.isdigit() and len(each) < 9]

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            # Names of files come from here alone.
            raise InvalidRequestError(f"{name!r:.80} cannot be the name of a skill.")
        return self.folder / f"{name}.py"

    def _version(self, name: str, number: int) -> Path:
        return self.folder / name / f"{number}.py"


def _approvals(data: bytes | None) -> list[list[str]]:
    return [[str(name), str(digest)] for name, digest in json.loads(data or b"[]")]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "it is a link"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
