"""Which OCI runtime containers are started with.

Owns the choice among those that isolate alike, and the memory of what worked here. One that the
user named is never replaced. Trying is the backend's part: the choice made here is a guess until a
container has run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

EQUALS = ("crun", "runc")
"""Runtimes that give the same isolation, so that one may stand in for another. Which of them works
depends on the host: crun refuses mixed cgroups, runc may lack the kernel's newest."""

_MEMORY_FILE = "oci-runtime.json"
MEMORY_BYTES = 4096
"""A few short entries; more is not ours."""


class RuntimeChoice:
    """The runtime to ask the engine for, and what to try when it does not work.

    Attributes:
        named: The one the user demands; None when any of `EQUALS` will do.
        current: What to ask for now; None means the engine's own default.
    """

    def __init__(self, named: str | None, memory: RuntimeMemory) -> None:
        self.named = named
        self.current = named or memory.recall()
        self._memory = memory
        self._failed: set[str] = set()

    def worked(self, runtime: str) -> None:
        """Note that a container ran; remembered when it is not the engine's own default."""
        if self.named is None and self.current is not None:
            self._memory.keep(runtime)

    def replace(self, broken: str, offered: Sequence[str] | None = None) -> bool:
        """Choose another than `broken`; False when there is none.

        Args:
            offered: Names the engine knows; None when only trying tells.
        """
        # An engine set up to use gVisor or a virtual machine is not talked out of it either.
        if self.named is not None or broken not in EQUALS:
            return False
        self._memory.forget()
        self._failed.add(broken)
        for name in EQUALS:
            if name not in self._failed and (offered is None or name in offered):
                logger.warning("OCI runtime %s does not work here, trying %s", broken, name)
                self.current = name
                return True
        return False


class RuntimeMemory:
    """A small file that saves the next bridge from trying what is known not to work.

    A wrong memory costs one failed attempt, after which it is forgotten.

    Args:
        directory: Where the file is; need not exist.
        key: Names the engine, its configuration and the boot that the memory is about.
    """

    def __init__(self, directory: Path, key: str) -> None:
        self._path = directory / _MEMORY_FILE
        self._key = key

    def recall(self) -> str | None:
        """Return what worked, if it is one of `EQUALS`."""
        name = self._load().get(self._key)
        return name if name in EQUALS else None

    def keep(self, runtime: str) -> None:
        """Remember what worked."""
        if runtime in EQUALS and self.recall() != runtime:
            self._store({self._key: runtime})

    def forget(self) -> None:
        """Forget it."""
        if self.recall() is not None:
            self._store({})

    def _load(self) -> dict[str, str]:
        try:
            with self._path.open("rb") as file:
                data = json.loads(file.read(MEMORY_BYTES))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _store(self, data: dict[str, str]) -> None:
        # Losing it costs a retry, so a full or read-only disk is no reason to fail a run.
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.write_text(json.dumps(data), encoding="utf-8")
