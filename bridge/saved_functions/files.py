"""Skills as plain files in a folder, which may be a git repository, and their index.

`NAME.py` is the current skill; `NAME/1.py` and so on are its versions. A person may edit the folder
at any time; bridges lock it by the store. The store has the approvals, by digest: a file from a
`git pull` has none.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio.lowlevel
from anyio.to_thread import run_sync as in_thread

from bridge.atomic_files import read_regular, replace_file
from bridge.catalog.program.expected_calls import expected_calls
from bridge.catalog.program.references import References, references
from bridge.catalog.program.survey import Survey
from bridge.errors import InvalidRequestError, LibraryError, UnknownError
from bridge.gate.bridge_calls import ProvenanceTracker
from bridge.gate.pins import tool_digests
from bridge.inventory.guide import SKILLS_SERVER
from bridge.inventory.servers import Servers
from bridge.model import Json, Provenance, Tool
from bridge.saved_functions.documents import (
    MAX_VALUE_BYTES,
    SKILLS,
    add_read,
    forget_read,
    is_known_to_flow_rules,
    read_by_writers,
)
from bridge.saved_functions.source import (
    NAME,
    Header,
    Skill,
    SkillCode,
    Tools,
    decode_skill,
    encode_skill,
    read_skill,
    source_digest,
    text_digest,
    version_of,
)
from bridge.settings import Settings, parsers, store_of
from bridge.store import Store, Transaction

logger = logging.getLogger(__name__)

# Programs can save any number of skills.
MAX_SKILLS = 500
MAX_VERSIONS = 50  # Versions of one skill; the oldest are removed.

_APPROVED = "approved"

State = tuple[int, int, int]  # A file's modification time, size and inode.


class SkillFiles:
    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store

    def states(self) -> dict[str, State]:
        states: dict[str, State] = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    name, dot, end = entry.name.rpartition(".")
                    if len(states) >= MAX_SKILLS:
                        break
                    if not dot or end != "py" or not NAME.fullmatch(name):
                        continue
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            states[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise LibraryError(f"The folder of skills cannot be read: {_why(error)}.") from None
        return dict(sorted(states.items()))

    def text(self, name: str) -> str | None:
        try:
            data = read_regular(self._path(name), 2 * MAX_VALUE_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise LibraryError(f"Skill {name!r} cannot be read: {_why(error)}.") from None
        return data.decode("utf-8", "surrogateescape")

    def texts(self, names: Mapping[str, State]) -> dict[str, str]:
        texts: dict[str, str] = {}
        for name in names:
            with suppress(LibraryError):
                text = self.text(name)
                if text is not None:
                    texts[name] = text
        return texts

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
    ) -> tuple[str, bool]:
        """Save a source as a skill; return the file's text, and whether the source is new.

        The previous text stays as a version. Its expected digest, `only_if`, is empty for no text,
        and None for any.
        """
        with self._changing(name, "saved", provenance):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_unchanged(name, only_if)
            digest = source_digest(source)
            header = Header(description=description, digest=digest, tools=tools, updated=now)
            return self._write_version(
                name, source, replace(header, created=now, provenance=provenance)
            )

    @contextmanager
    def _changing(
        self, name: str, doing: str, provenance: Provenance | None = None
    ) -> Iterator[Transaction]:
        """Lock the skills against other bridges, after the run's provenance is recorded."""
        try:
            if is_known_to_flow_rules(provenance):
                with self._store.writing(durable=True) as kept:
                    add_read(kept, SKILLS, name, provenance)
            with self._store.writing(durable=True) as kept:
                yield kept
                # An approval since then has removed the record.
                add_read(kept, SKILLS, name, provenance)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            why = _why(error) if isinstance(error, OSError | ValueError) else str(error)
            raise LibraryError(f"Skill {name!r} cannot be {doing}: {why}.") from None

    def approve(self, name: str, digest: str) -> bool:
        """Approve a skill; return False if its text has another digest now."""
        with self._changing(name, "approved of") as kept:
            text = self.text(name)
            if text is None or text_digest(text) != digest:
                return False
            approvals = [*_approvals(kept.get(_APPROVED, SKILLS, "")), [name, digest]]
            kept.put(_APPROVED, SKILLS, "", json.dumps(approvals).encode())
            forget_read(kept, SKILLS, name)
            return True

    def approvals(self) -> set[tuple[str, str]]:
        try:
            data = self._store.documents(_APPROVED, [""], SKILLS).get("")
            return {(name, digest) for name, digest in _approvals(data)}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            logger.warning("approvals of skills cannot be read, so none counts: %s", error)
            return set()

    def _check_unchanged(self, name: str, digest: str | None) -> None:
        text = None if digest is None else self.text(name)
        if digest is not None and digest != ("" if text is None else text_digest(text)):
            message = f"The skill {name!r} was changed at the same moment by another writer."
            raise InvalidRequestError(message, remedy="Look at it, then try again.")

    def _write_version(self, name: str, source: str, new: Header) -> tuple[str, bool]:
        self._check_room(name)
        old = self.text(name)
        header, before = (None, "") if old is None else decode_skill(old)
        created = header.created if header is not None and header.created else new.created
        new = replace(new, created=created)
        changed = before != source
        if old is not None:
            _, edited = version_of(header, before)
            if not changed and header is not None and not edited:
                if (header.description, header.tools) == (new.description, dict(new.tools)):
                    return old, False
                if header.provenance is not None:
                    # Only the description changed, so the source has its old provenance.
                    theirs = header.provenance
                    new = replace(new, provenance=(new.provenance or theirs).together(theirs))
            self._keep_text(name, old)
        new = replace(new, version=max(self._versions(name), default=0) + 1)
        text = encode_skill(new, source)
        self._keep(name, new.version, text)
        replace_file(self._path(name), _bytes(text), durable=True)
        return text, changed

    def remove(
        self,
        name: str,
        provenance: Provenance | None = None,
        *,
        versions: bool,
        only_if: str | None = None,
    ) -> bool:
        """Remove a skill, or all its `versions`, and return whether it existed."""
        if not self.folder.is_dir():
            return False
        with self._changing(name, "removed", provenance) as kept:
            self._check_unchanged(name, only_if)
            existed = self._path(name).is_file()
            if existed and not versions:
                self._keep_text(name, self.text(name) or "")
            self._path(name).unlink(missing_ok=True)
            if versions:
                forget_read(kept, SKILLS, name)
                return self._remove_versions(name) or existed
            if existed:
                self._forget_removed(name)
            return existed

    def _remove_versions(self, name: str) -> bool:
        numbers = self._versions(name)
        for number in numbers:
            self._version(name, number).unlink(missing_ok=True)
        with suppress(OSError):
            # Fails if the user has other files in it.
            (self.folder / name).rmdir()
        return bool(numbers)

    def _forget_removed(self, last: str) -> None:
        folder = self.folder / last
        if folder.is_dir() and not folder.is_symlink():
            # The folder's time is the time of removal.
            os.utime(folder)
        removed: list[tuple[int, str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if not NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                    continue
                if not self._path(entry.name).exists():
                    removed.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        # A program can save and remove skills under any number of names.
        for _, name in sorted(removed)[:-100]:
            self._remove_versions(name)

    def _check_room(self, name: str) -> None:
        names = self.states()
        if name not in names and len(names) >= MAX_SKILLS:
            message = f"{MAX_SKILLS:,} skills are saved, which is the limit."
            raise InvalidRequestError(message, remedy="Remove unused ones.")
        for other in names:
            if other != name and other.lower() == name.lower():
                message = f"{name!r} differs only by case from the skill {other!r}."
                raise InvalidRequestError(message, remedy="Give it another name.")

    def _keep_text(self, name: str, text: str) -> None:
        number, _ = version_of(*decode_skill(text))
        with suppress(OSError, ValueError):
            if number in self._versions(name) and read_regular(
                self._version(name, number), 2 * MAX_VALUE_BYTES
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
        numbers = (each.removesuffix(".py") for each in names if each.endswith(".py"))
        return [
            int(each) for each in numbers if each.isascii() and each.isdigit() and len(each) < 9
        ]

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
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


class SkillIndex:
    def __init__(self, settings: Settings, servers: Servers) -> None:
        self._servers = servers
        self._store = store_of(settings)
        self.folder = settings.skills_dir or settings.state_dir / "skills"
        self.files = SkillFiles(self.folder, self._store)
        self._read: dict[str, tuple[State, Skill]] = {}
        self._turn = anyio.Lock()

    async def all(self) -> Mapping[str, Skill]:
        async with self._turn:
            states = await in_thread(self.files.states)
            changed = {
                name: state
                for name, state in states.items()
                if name not in self._read or self._read[name][0] != state
            }
            texts = await in_thread(self.files.texts, changed) if changed else {}
            for name in [name for name in self._read if name not in states or name in changed]:
                del self._read[name]
            for name, text in texts.items():
                await anyio.lowlevel.checkpoint()
                self._read[name] = (changed[name], read_skill(name, text))
            return {name: self._read[name][1] for name in sorted(self._read)}

    async def get(self, name: str, *, usable: bool = True) -> Skill:
        skills = await self.all()
        if name not in skills:
            raise unknown(name, skills)
        skill = skills[name]
        if usable and skill.problem:
            raise LibraryError(f"Skill {name!r} cannot be used as its file is: {skill.problem}")
        return skill

    async def read(self, name: str) -> Skill | None:
        text = await in_thread(self.files.text, name)
        return None if text is None else read_skill(name, text)

    async def save(
        self,
        code: SkillCode,
        description: str,
        provenance: Provenance | None = None,
        *,
        before: Skill | None,
    ) -> tuple[Skill, bool]:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        tools, only_if = self.tools_of(code), "" if before is None else before.digest
        save = partial(self.files.save, code.name, code.source, description, tools, now, provenance)
        text, changed = await self._store.run(partial(save, only_if=only_if))
        return read_skill(code.name, text), changed

    async def approve(self, skill: Skill) -> bool:
        return await self._store.run(self.files.approve, skill.name, skill.digest)

    async def approvals(self) -> set[tuple[str, str]]:
        return await self._store.run(self.files.approvals)

    async def remove(self, name: str) -> bool:
        return await self._store.run(partial(self.files.remove, name, versions=True))

    async def delete(self, skill: Skill, provenance: Provenance | None) -> bool:
        """Remove a skill if it is unchanged; its text stays as a version."""
        remove = partial(self.files.remove, skill.name, provenance, versions=False)
        return await self._store.run(partial(remove, only_if=skill.digest))

    async def add_provenance(self, tracker: ProvenanceTracker) -> None:
        """Add the provenance of all runs that saved or removed skills.

        Call it before a program learns which skills exist.
        """
        read = await self._store.run(read_by_writers, self._store, SKILLS)
        await tracker.add_store("the saved skills", read)

    def references(self, code: SkillCode) -> References:
        return references(Survey(code.tree), self._servers.aliases)

    def tools_of(self, code: SkillCode) -> Tools:
        entries = [self._servers.inventory.entry(name) for name in self.references(code).servers]
        used: dict[str, dict[str, str]] = {}
        for call in expected_calls(Survey(code.tree), entries).calls[:200]:
            if call.definition is not None:
                used.setdefault(call.server, {})[call.tool] = tool_digests(call.definition).schema
        return {server: dict(sorted(tools.items())) for server, tools in sorted(used.items())}

    def stale(self, skill: Skill) -> str:
        """Return which inventory tools of a skill have changed since it was saved; "" for none."""
        inventory = self._servers.inventory
        changes: list[str] = []
        for server, tools in skill.header.tools.items():
            if server not in inventory.aliases:
                changes.append(f"there is no server {server!r:.80} any more")
                continue
            if inventory.tools(server) is None:
                continue
            for name, digest in tools.items():
                tool = inventory.tool(server, name)
                if tool is None:
                    changes.append(f"{server}.{name:.80} is gone")
                elif tool_digests(tool).schema != digest:
                    changes.append(f"{server}.{name:.80} has changed")
        if len(changes) > 5:
            changes = [*changes[:5], f"and {len(changes) - 5} more"]
        since = f"since it was saved (version {skill.version}): "
        return f"{since}{'; '.join(changes)}" if changes else ""

    def peek(self, name: str) -> Skill | None:
        return self._read[name][1] if name in self._read else None

    async def search_entries(self) -> tuple[Tool, ...]:
        try:
            skills = await self.all()
        except LibraryError:
            return ()
        return tuple(
            Tool(
                server=SKILLS_SERVER,
                name=skill.name,
                description=f"{skill.description}\n{skill.code.docstring}" if skill.code else "",
            )
            for skill in skills.values()
            if not skill.problem
        )

    def docs(self, name: str) -> dict[str, Json] | None:
        skill = self.peek(name)
        if skill is None:
            return None
        stale = self.stale(skill)
        return {
            "server": "skills",
            "serverAlias": "skills",
            "tool": name,
            "toolAlias": name,
            "kind": "skill",
            "signature": f"from skills import {name}; {skill.signature}",
            "description": f"{skill.description}{f' (Stale: {stale})' if stale else ''}".strip(),
            **({"stale": stale} if stale else {}),
        }


def unknown(name: str, names: Mapping[str, object]) -> UnknownError:
    near = parsers.nearest(name[:100], names)
    message = f"No skill is called {name!r:.80}."
    listed = ", ".join(list(names)[:10]) or "none yet; runtime.save_skill(function) saves one"
    hint = f"Did you mean {near!r}?" if near else f"Saved: {listed}."
    return UnknownError(f"{message} {hint}", code="unknown_skill")
