"""Which of a project's servers the user accepts or rejects, by Claude Code's own lists: pure.

Owns `enabledMcpjsonServers`, `disabledMcpjsonServers` and `enableAllProjectMcpServers`. Does not
read files and does not decide what an absent answer means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bridge.discovery.documents import kind
from bridge.discovery.report import ConfigWarning

ENABLED_KEY = "enabledMcpjsonServers"
DISABLED_KEY = "disabledMcpjsonServers"
ENABLE_ALL_KEY = "enableAllProjectMcpServers"
TRUSTED_KEY = "hasTrustDialogAccepted"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class Approvals:
    """The user's answers about a project's servers.

    Attributes:
        approved: Names, folded as Claude Code folds them.
        rejected: Folded name to the file that rejects it.
        all_approved: Whether every server of the project is.
        trusted: Whether the user trusts the folder, in which its own files may approve.
    """

    approved: frozenset[str] = frozenset()
    rejected: Mapping[str, str] = field(default_factory=dict)
    all_approved: bool = False
    trusted: bool = False

    def approves(self, name: str) -> bool:
        return self.all_approved or _folded(name) in self.approved

    def rejected_in(self, name: str) -> str:
        """The file that rejects a server; empty when none does."""
        return self.rejected.get(_folded(name), "")


def read_approvals(
    lists: Mapping[str, object], *, path: str, prefix: str, may_approve: bool
) -> tuple[Approvals, tuple[ConfigWarning, ...]]:
    """The answers that one object of one file holds.

    Args:
        prefix: The dotted place of `lists` in the file; empty at its top.
        may_approve: Whether approvals count here; rejections always do.
    """
    warnings: list[ConfigWarning] = []

    def names(key: str) -> frozenset[str]:
        value = lists.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return frozenset(_folded(item) for item in value)
        where = f"{prefix}.{key}" if prefix else key
        reason = f"must be a list of server names, not {kind(value)}"
        if isinstance(value, list):
            reason = "must be a list of server names; it has members that are not strings"
        warnings.append(ConfigWarning(path=path, key=where, reason=reason))
        return frozenset()

    approved, rejected = names(ENABLED_KEY), names(DISABLED_KEY)
    found = Approvals(
        approved=approved if may_approve else frozenset(),
        rejected=dict.fromkeys(rejected, path),
        all_approved=may_approve and lists.get(ENABLE_ALL_KEY) is True,
    )
    return found, tuple(warnings)


def join(found: Iterable[Approvals]) -> Approvals:
    """All answers together; a rejection anywhere stands."""
    approved: set[str] = set()
    rejected: dict[str, str] = {}
    all_approved = trusted = False
    for one in found:
        trusted = trusted or one.trusted
        approved |= one.approved
        rejected = {**one.rejected, **rejected}
        all_approved = all_approved or one.all_approved
    return Approvals(
        approved=frozenset(approved),
        rejected=rejected,
        all_approved=all_approved,
        trusted=trusted,
    )


def _folded(name: str) -> str:
    return _UNSAFE.sub("_", name)
