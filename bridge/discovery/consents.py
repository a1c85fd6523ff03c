"""Stores the approvals of definitions in project files, by the user or a client. Blocks.

An approval covers one entry of one file, exactly as written, in one working directory: `./run.sh`
is another program in another checkout. Clients approve by name or folder, so a client's approval
covers the definition that existed when a bridge first saw the approval.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

from bridge.atomic_files import exclusive_lock, replace_file
from bridge.discovery.documents import MalformedError
from bridge.discovery.files import read_own
from bridge.discovery.report import Definition
from bridge.private_files import make_directory

MAX_CONSENTS = 2000
"""Maximum approvals of the user, and of clients. The user's oldest ones are removed. A client's are
never removed: a program could add many, so that an old one would count as first seen.
"""

PERSON = "person"

APPEARED = ""
"""Replaces a digest if the approved definition appeared while a bridge ran. A program may have
written it, so the user must approve it.
"""

_FORM = 1


@dataclass(frozen=True, kw_only=True)
class Consent:
    definition: Definition
    by: str = PERSON


@dataclass(frozen=True, kw_only=True)
class Consents:
    """All valid approvals."""

    by_person: frozenset[Definition] = frozenset()
    # Definitions that clients had approved when a bridge first read the approval.
    seen: frozenset[Consent] = frozenset()
    first: bool = True  # Whether an approval counts that no bridge has seen before.

    def seen_digest(self, definition: Definition, by: str) -> str | None:
        """Return the digest under which a client's approval was first seen; None if it is new.

        Searches all directories; otherwise a changed file would count as new in the next directory.
        `APPEARED` if two bridges saw different definitions.
        """
        place = (by, definition.path, definition.name)
        found = {
            each.definition.digest
            for each in self.seen
            if (each.by, each.definition.path, each.definition.name) == place
        }
        return APPEARED if len(found) > 1 else next(iter(found), None)

    def is_first_look(self, directory: str, client: str) -> bool:
        """Return whether no bridge has read a client's approvals here or above before.

        True only when a bridge starts: a program may write approvals that appear later.
        """
        if not self.first:
            return False
        places = (directory, *map(str, PurePath(directory).parents))
        return not any(look_record(place, client) in self.seen for place in places)


def look_record(directory: str, client: str) -> Consent:
    """Return the record that a bridge has read a client's approvals in a directory."""
    return Consent(
        definition=Definition(directory=directory, path="", name="", digest=""), by=client
    )


def digest_of(written: str) -> str:
    return f"sha256:{hashlib.sha256(written.encode('utf-8', 'surrogatepass')).hexdigest()}"


@dataclass(frozen=True)
class ConsentFile:
    """The file of approvals. The first write creates its directory."""

    path: Path

    def read(self) -> tuple[Consent, ...]:
        """Return every approval, oldest first. Raises `MalformedError` if the file is damaged."""
        try:
            document = read_own(self.path, form=_FORM)
            found = []
            for fields in document["approved"] if document else ():
                if not all(isinstance(text, str) for text in fields.values()):
                    raise ValueError("an approval has a field that is not text")
                by = fields.pop("by")
                found.append(Consent(definition=Definition(**fields), by=by))
            return tuple(found)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise MalformedError(
                f"{self.path} cannot be read ({error!s:.200}), so no server of a project counts "
                "as approved; remove the file to approve them again"
            ) from None

    def add(self, new: Iterable[Consent]) -> None:
        """Add approvals. Raises `MalformedError` if the file is full or cannot be written."""
        new = tuple(new)
        try:
            make_directory(self.path.parent)
            with exclusive_lock(self.path.with_name(f"{self.path.name}.lock")):
                kept = [each for each in self.read() if each not in new]
                persons = [each for each in (*kept, *new) if each.by == PERSON][-MAX_CONSENTS:]
                clients = [each for each in (*kept, *new) if each.by != PERSON]
                if len(clients) > MAX_CONSENTS:
                    message = f"{self.path} holds more than {MAX_CONSENTS} approvals of clients"
                    raise MalformedError(message)
                entries = [
                    {"by": each.by, **asdict(each.definition)} for each in (*persons, *clients)
                ]
                text = json.dumps({"form": _FORM, "approved": entries}, indent=1)
                replace_file(self.path, text.encode(), durable=True)
        except OSError as error:
            raise MalformedError(f"{self.path} cannot be written: {error}") from None
