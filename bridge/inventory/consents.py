"""The approvals of a project's servers, saved or for this bridge's lifetime.

A client's own approvals count only if they existed when this bridge started. A program may have
written later ones, so the user has to approve their servers.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from bridge.discovery.consents import PERSON, Consent, ConsentFile, Consents
from bridge.discovery.documents import MalformedError
from bridge.discovery.finder import Discovery, DiscoveryContext, discover
from bridge.discovery.report import ConfigWarning, Definition
from bridge.settings import Settings

logger = logging.getLogger(__name__)


FILE_NAME = "project-servers.json"  # In the state directory.


class ProjectConsents:
    """The approvals that count for one bridge. All methods except `allow_for_now` access files.

    Attributes:
        changes: Grows with each approval that is not saved.

    Args:
        file: Stores the approvals that outlive the bridge.
    """

    def __init__(self, file: ConsentFile) -> None:
        self._file = file
        self._now: frozenset[Definition] = frozenset()
        self._seen: frozenset[Consent] | None = None
        self.changes = 0

    def discover(self, context: DiscoveryContext) -> Discovery:
        warnings: tuple[ConfigWarning, ...] = ()
        try:
            kept = self._file.read()
        except MalformedError as error:
            kept = ()
            warnings = (ConfigWarning(path=str(self._file.path), key="", reason=str(error)),)
        by_person = frozenset(each.definition for each in kept if each.by == PERSON)
        first = self._seen is None and not warnings
        if self._seen is None:
            self._seen = frozenset(each for each in kept if each.by != PERSON)
        consents = Consents(by_person=by_person | self._now, seen=self._seen, first=first)
        found = discover(replace(context, consents=consents))
        if found.first_seen and not self._keep(found.first_seen):
            # If they are not saved, the next bridge would accept changed ones.
            found = discover(replace(context, consents=replace(consents, first=False)))
        self._seen |= frozenset(found.first_seen)
        return replace(
            found,
            warnings=(*warnings, *found.warnings),
            references=(*found.references, self._file.path),
        )

    def allow(self, definition: Definition) -> None:
        self._file.add([Consent(definition=definition)])

    def allow_for_now(self, definition: Definition) -> None:
        self._now |= {definition}
        self.changes += 1

    def _keep(self, seen: tuple[Consent, ...]) -> bool:
        try:
            self._file.add(seen)
        except MalformedError as error:
            logger.warning("approvals of clients do not count: %s", error)
            return False
        return True


def consents_of(settings: Settings) -> ProjectConsents:
    return ProjectConsents(ConsentFile(settings.state_dir / FILE_NAME))
