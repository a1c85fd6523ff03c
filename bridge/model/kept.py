"""What outlives a run: files, sessions, what a program showed.

Every size is in bytes and every moment in seconds since the epoch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal

from bridge.model.names import Json

MAX_DOCUMENT = 4 * 1024
"""Characters as JSON: a run may use servers without end. With more it counts as having read all."""

_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a run had read when it left something.

    Attributes:
        run_id: Of that run; empty if unknown.
        labels: Of the tools that it had called, or the runs whose files it found.
        servers: Those that it, or these runs, had called.
        anything: It may have read more than these, whatever there is.
    """

    run_id: str = ""
    labels: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    anything: bool = False

    def document(self) -> dict[str, Json]:
        told = {"run": self.run_id, "labels": sorted(self.labels), "servers": sorted(self.servers)}
        if self.anything or len(json.dumps(told)) > MAX_DOCUMENT:
            return {"run": self.run_id, "anything": True}
        return {**told, "anything": False}

    @classmethod
    def of(cls, document: Json) -> Provenance | None:
        """Return what `document` said, and None for None: nothing was written.

        Of what says nothing, anything may have been read.
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
        """Return that of something that comes from both; the run is this one's."""
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

SessionState = Literal["new", "kept", "restored", "lost", "ended"]


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file for the program.

    Attributes:
        name: Relative to the workspace, with "/" between its parts.
        data: Its content; None where `uri` says where that is.
        uri: Of something that the bridge keeps for the caller, or a `data:` address.
        provenance: Of what was read from there, for the flow rules; None if nothing is known.
    """

    name: str
    data: bytes | None = field(default=None, repr=False)
    uri: str = ""
    provenance: Provenance | None = None


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Something that a run left and the bridge keeps.

    Attributes:
        uri: What it is read by: `bridge://artifacts/...`, or `bridge://runs/<run>/stdout`.
        name: As the program called it.
        path: Of a file, in the working directory of the run that returns it.
        mime_type, size: Of the content.
        kind: A file from `out/`, the whole of a stream, a result that its client did not get, or
            the original of what was shown.
        digest: SHA-256 of the content, hexadecimal.
        expires: When it may go.
        provenance: What the run had read, for the flow rules; None if nothing was written of that.
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
    """Something that a program showed: a picture, or a text.

    Attributes:
        mime_type: Of what is handed on.
        text: Of a text; empty for a picture.
        data: Of a picture that is small enough to be handed on.
        width, height: Of that, in pixels.
        note: What was done to it, or why it is not here.
        artifact: Where the original is kept: of each picture, and of a text that is not here whole.
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
    """A name that a session holds.

    Attributes:
        name: As programs use it.
        kind: Of its value, as Python calls the type.
        size: Of it and what it consists of, about; None where that cannot be told.
    """

    name: str
    kind: str
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Something that could not be kept.

    Attributes:
        name: Of the file or variable.
        why: The reason, in words.
    """

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class SessionReport:
    """What became of a session in a run.

    Attributes:
        session_id: Random, so that it cannot be guessed; over HTTP it is what opens the session.
        name: What the caller calls it.
        run: Number of the run in it, from 1.
        state: "new" where it began with this run, "restored" where it began from a checkpoint,
            "kept" where it went on; after the run "lost" or "ended" instead.
        holds: What it has, the largest first.
        more: How many further names there are.
        lost: What a checkpoint did not have.
        note: What else there is to say of the state, in a sentence.
        fresh: Names of `holds` that it did not have before the run, or with another type; None
            where it did not go on from an earlier one.
        named: Whether its caller can have it by its name, and not by its id alone.
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
        path: Where it is on the host.
        writable: Whether programs may write there.
        inside: Where programs find it.
        labels: For the flow rules: a run that has it counts as having read what has these.
        used_by: Servers that may run what programs write there.
    """

    name: str
    path: str
    inside: str
    writable: bool = False
    labels: frozenset[str] = frozenset()
    used_by: frozenset[str] = frozenset()
