"""The output, displayed items, files and state of a program, as its guest sends them.

The guest may be hostile: each part bounds what it keeps, and no frame can fail the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.model import Artifact, Loss, ShownContent


@dataclass(kw_only=True)
class Collected:
    """The outputs of a run, as its result has them.

    Attributes:
        dropped: For each cut stream, the number of bytes that `stdout` or `stderr` leaves out.
        missing: The outputs that could not be stored.
    """

    stdout: str = ""
    stderr: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[ShownContent, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()
