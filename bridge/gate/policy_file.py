"""The policy in force: read from its file, and again whenever that changes.

While the file cannot be read, nothing runs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from bridge.errors import SettingsError
from bridge.gate.canonical import digest
from bridge.gate.flow import Flow
from bridge.gate.policy import Policy
from bridge.model import Json
from bridge.settings import Settings, reload_policy
from bridge.settings.policy import PolicySpec
from bridge.text import without_values

logger = logging.getLogger(__name__)


class PolicyFile:
    """The policy of a file, read again when the file changes.

    Args:
        changed: Called with the audit log's record of a change.

    Attributes:
        digest: Of the policy in force, as the audit log has it.
    """

    def __init__(self, settings: Settings, changed: Callable[[Mapping[str, Json]], None]) -> None:
        self._settings = settings
        self._changed = changed
        # Read once more at the first run: it may have changed since the settings were read.
        self._state: tuple[int, ...] | None = None
        self._policy = Policy(settings.policy)
        self._flow = Flow(settings.policy.flows)
        self._error: SettingsError | None = None
        self.digest = policy_digest(settings.policy)

    def now(self) -> tuple[Policy, Flow]:
        """Return the policy and its flow rules, read again if the file has changed.

        Raises:
            SettingsError: The file does not parse; nothing runs until it does.
        """
        state = _state(self._settings.policy.path)
        if state != self._state:
            self._state = state
            try:
                self._check_file(state)
                self._take(reload_policy(self._settings))
                self._error = None
            except SettingsError as error:
                logger.warning("the policy cannot be read: %s", error)
                # Models read this error.
                message, remedy = without_values(error.message), without_values(error.remedy)
                self._error = SettingsError(message, remedy=remedy)
        if self._error is not None:
            raise self._error
        return self._policy, self._flow

    def _check_file(self, state: tuple[int, ...] | None) -> None:
        """Refuse a file that is gone or empty: some editors leave one like that while they save."""
        if not self._policy.spec.present or (state and state[1] > 0):
            return
        message = f"{self._settings.policy.path} held a policy, and now is empty or gone."
        remedy = "Restore it; to go on without a policy, leave its [policy] out or start again."
        raise SettingsError(message, remedy=remedy)

    def _take(self, spec: PolicySpec) -> None:
        """Put a policy in force, and report the change."""
        if spec == self._policy.spec:
            return
        logger.info("the policy was read again")
        self._policy, self._flow = Policy(spec), Flow(spec.flows)
        was, self.digest = self.digest, policy_digest(spec)
        self._changed({"kind": "policy", "policy": self.digest, "was": was})


def policy_digest(spec: PolicySpec) -> str:
    """Return a digest of what a policy means; empty if there is none."""
    if not spec.present:
        return ""
    # The places of the file and its rules do not matter for their meaning.
    rules = tuple(replace(rule, place="") for rule in spec.rules)
    meant = asdict(replace(spec, path=None, rules=rules))
    return digest(json.dumps(meant, default=sorted, sort_keys=True).encode("ascii"))


def _state(path: Path | None) -> tuple[int, ...] | None:
    """Return what changes with a file; empty if it cannot be read, None without a file."""
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - a tenth of what it costs as a Path's method
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
