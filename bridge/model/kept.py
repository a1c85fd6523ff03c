"""Values that outlive a run: files, sessions, shown contents, and their provenance.

Every size is in bytes and every moment in seconds since the epoch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal

from bridge.model.names import Json

MAX_DOCUMENT = 4 * 1024
"""Characters of a provenance as JSON: a run may use any number of servers. A longer one counts as
having read everything."""

_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The labels and servers that a run had read when it stored something."""

    run_id: str = ""
    labels: frozenset[str] = frozenset()  # The labels of its tools, and of the things that it read.
    # The servers that it called, and those of the things that it read.
    servers: frozenset[str] = frozenset()
    anything: bool = False  # Whether it may have read any further label.

    def document(self) -> dict[str, Json]:
        told = {"run": self.run_id, "labels": sorted(self.labels), "servers": sorted(self.servers)}
        if self.anything or len(json.dumps(told)) > MAX_DOCUMENT:
            return {"run": self.run_id, "anything": True}
        return {**told, "anything": False}

    @classmethod
    def of(cls, document: Json) -> Provenance | None:
        """Return the provenance of a document; None for None.

        An invalid document counts as having read anything.
        """
        if document is None:
            return None
        if not isinstance(document, dict):
            return cls(anything=True)
        run_id = document.get("run")
        if not isinstance(run_id, str) or not _RUN.fullmatch(run_id):
            run_id = ""
        labels, servers = _texts(document.get("labels")), _texts(document.get("servers"))
        return cls(
            run_id=run_id,
            labels=labels or frozenset(),
            servers=servers or frozenset(),
            anything=document.get("anything") is not False or labels is None or servers is None,
        )

    def together(self, other: Provenance | None) -> Provenance:
        """Return the union with another provenance; the run stays this one."""
        if other is None:
            return self
        return Provenance(
            run_id=self.run_id,
            labels=self.labels | other.labels,
            servers=self.servers | other.servers,
            anything=self.anything or other.anything,
        )


def _texts(value: Json) -> frozenset[str] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return frozenset(value)


ArtifactKind = Literal["file", "stdout", "stderr", "result", "shown"]

STREAMS = ("stdout", "stderr", "result")  # Kinds that are read by their run's id.

SessionState = Literal["new", "kept", "restored", "unsaved", "lost", "ended"]


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file for the program."""

    name: str  # The path in the workspace, with "/" as separator.
    # The content; None if it has to be read from `uri`.
    data: bytes | None = field(default=None, repr=False)
    uri: str = ""  # An artifact of the caller, or a `data:` address.
    provenance: Provenance | None = None  # The artifact's provenance; None if unknown.


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A stored output of a run.

    Attributes:
        uri: `bridge://artifacts/...`, or `bridge://runs/<run>/stdout`.
        name: The program's name for it.
        path: The path of a file in the working directory of the run.
        mime_type, size: The type and the bytes of the content.
        kind: A file from `out/`, a whole stream, a result that its client did not receive, or the
            original of a shown content.
        digest: SHA-256 of the content, hexadecimal.
        expires: The time after which it may be removed.
        provenance: The run's provenance; None if unknown.
    """

    uri: str
    name: str
    mime_type: str
    size: int
    digest: str
    run_id: str
    kind: ArtifactKind = "file"
    created: float = 0.0
    expires: float = 0.0
    provenance: Provenance | None = None
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class ShownContent:
    """A picture or text that a program displayed.

    Attributes:
        mime_type: The type of `text` or `data`.
        text: Empty for a picture.
        data: The picture, if it is small enough for the result.
        width, height: In pixels.
        note: How it was changed, or why it is missing.
        artifact: The stored original of a picture, or of a text that was cut.
    """

    mime_type: str
    text: str = ""
    data: bytes = field(default=b"", repr=False)
    width: int = 0
    height: int = 0
    note: str = ""
    artifact: Artifact | None = None


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of a session.

    Attributes:
        name: Its name in programs.
        kind: The Python type of its value.
        size: The approximate bytes of its value with all parts; None if unknown.
    """

    name: str
    kind: str
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A file or variable that could not be kept.

    Attributes:
        name: Its name.
        why: The reason, in words.
    """

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class SessionReport:
    """The report on a session in a run's result.

    Attributes:
        session_id: A random id, which opens the session over HTTP.
        name: The caller's name for it.
        run: The number of the run, from 1.
        state: "new", "restored" from a checkpoint, or "kept" from the last run; "unsaved", "lost"
            or "ended" after the run.
        holds: The variables, the largest first.
        more: The number of further variables.
        lost: The variables that the checkpoint lacked.
        note: A further sentence on the state.
        fresh: The variables that are new or have another type; None after a "new" or "restored"
            start.
        named: Whether its caller may use its name instead of its id.
    """

    session_id: str
    name: str
    run: int
    state: SessionState
    holds: tuple[Variable, ...] = ()
    more: int = 0
    lost: tuple[Loss, ...] = ()
    note: str = ""
    fresh: tuple[str, ...] | None = None
    named: bool = True


@dataclass(frozen=True, kw_only=True)
class Directory:
    """A directory of the host that the configuration offers to programs.

    Attributes:
        path: Its path on the host.
        writable: Whether programs may write there.
        inside: Its path in the sandbox.
        labels: Flow labels that a run with this directory counts as having read.
        used_by: Servers that may execute files that programs write there.
    """

    name: str
    path: str
    inside: str
    writable: bool = False
    labels: frozenset[str] = frozenset()
    used_by: frozenset[str] = frozenset()
