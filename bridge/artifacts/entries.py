"""What is known of each thing that is kept, and what it is asked for by. Pure.

Owns the file names that say whose run left what and when, so that listing and tidying read nothing
but directories; the small text beside them; and the URIs.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass

from bridge.model import Artifact, ArtifactKind, Json, Provenance
from bridge.text import valid_text, visible

ARTIFACTS_URI = "bridge://artifacts/"
RUNS_URI = "bridge://runs/"

MAX_NAME = 255
"""Characters of a name, which lists repeat; as long as a file's name may be."""

MAX_MIME_TYPE = 100
"""Characters of a media type; the registered ones have up to 80."""

MAX_DESCRIPTION = 16 * 1024
"""Bytes of the text beside a file name: a name of characters that take twelve each as JSON, and
what the run had read (see `bridge.model.provenance`)."""

_SHORTEST = 4
"""Characters of the beginning of an id or digest that is looked for."""

_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")
_FILE_NAME = re.compile(
    r"(?P<created>[0-9a-f]{12})\.(?P<id>[0-9a-f]{20})\.(?P<run>[A-Za-z0-9_-]{1,40})"
    r"\.(?P<kind>[foes])\.(?P<digest>[0-9a-f]{64})"
)
_LETTERS: dict[ArtifactKind, str] = {"file": "f", "stdout": "o", "stderr": "e", "shown": "s"}
_KINDS: dict[str, ArtifactKind] = {letter: kind for kind, letter in _LETTERS.items()}

_STREAMS: dict[str, ArtifactKind] = {"stdout": "stdout", "stderr": "stderr"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the name of a file says of something that is kept.

    Attributes:
        created: Milliseconds since the epoch.
        id: What nobody can guess.
        digest: Of the content, hexadecimal.
    """

    created: int
    id: str
    run_id: str
    kind: ArtifactKind
    digest: str

    @property
    def file_name(self) -> str:
        """The name of its file: in the order of time, and short enough for any file system."""
        letter = _LETTERS[self.kind]
        return f"{self.created:012x}.{self.id}.{self.run_id}.{letter}.{self.digest}"

    @property
    def uri(self) -> str:
        """What it is read by."""
        if self.kind in ("stdout", "stderr"):
            return f"{RUNS_URI}{self.run_id}/{self.kind}"
        return ARTIFACTS_URI + self.id


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What somebody asks for: one of these.

    Attributes:
        run_id, kind: A stream of a run.
        beginning: Of an id or a digest.
    """

    id: str = ""
    run_id: str = ""
    kind: ArtifactKind = "file"
    beginning: str = ""

    @property
    def like(self) -> str:
        """What is in the name of every entry that fits; in that of few others."""
        return f".{self.id or self.run_id or self.beginning}"

    def fits(self, entry: Entry) -> bool:
        """Tell whether it is what is asked for."""
        if self.id:
            return entry.id == self.id
        if self.run_id:
            return entry.run_id == self.run_id and entry.kind == self.kind
        return entry.id.startswith(self.beginning) or entry.digest.startswith(self.beginning)


def wanted(uri: str) -> Wanted | None:
    """Return what a URI, or the beginning of an id or digest, asks for; None if nothing.

    What follows a "?" is for whoever reads a part.
    """
    uri = uri.partition("?")[0]
    if uri.startswith(ARTIFACTS_URI):
        name = uri.removeprefix(ARTIFACTS_URI)
        return Wanted(id=name) if re.fullmatch("[0-9a-f]{20}", name) else None
    if uri.startswith(RUNS_URI):
        run_id, _, stream = uri.removeprefix(RUNS_URI).partition("/")
        if not _RUN.fullmatch(run_id):
            return None
        kind = _STREAMS.get(stream)
        return None if kind is None else Wanted(run_id=run_id, kind=kind)
    if len(uri) >= _SHORTEST and re.fullmatch("[0-9a-f]{1,64}", uri):
        return Wanted(beginning=uri)
    return None


def new_id() -> str:
    """Return what nobody can guess."""
    return secrets.token_hex(10)


def is_run_id(text: str) -> bool:
    """Tell whether a run may be called so."""
    return _RUN.fullmatch(text) is not None


def owner_folder(owner: str) -> str:
    """Return the name of the directory of an owner, which tells nothing of a credential."""
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def parse_file_name(text: str) -> Entry | None:
    """Return what a file's name says; None if it is none of ours."""
    found = _FILE_NAME.fullmatch(text)
    if found is None:
        return None
    return Entry(
        created=int(found["created"], 16),
        id=found["id"],
        run_id=found["run"],
        kind=_KINDS[found["kind"]],
        digest=found["digest"],
    )


def shown_name(name: str) -> str:
    """Return a name that somebody else chose as it can be shown: one line, and bounded."""
    text = visible(valid_text(name[: 2 * MAX_NAME]), keep="")
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"


def describe(
    *, name: str, mime_type: str, size: int, provenance: Provenance | None = None
) -> bytes:
    """Return the text beside a file name."""
    fields: dict[str, Json] = {"name": name, "type": mime_type, "size": size}
    if provenance is not None:
        fields["provenance"] = provenance.document()
    return json.dumps(fields).encode()


def artifact_of(entry: Entry, description: bytes, seconds: float) -> Artifact | None:
    """Return what is told of an entry; None if its text is not what `describe` made.

    Args:
        seconds: For which things are kept.
    """
    try:
        fields = json.loads(description)
        name, mime_type, size = fields["name"], fields["type"], fields["size"]
        provenance = Provenance.of(fields.get("provenance"))
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not (isinstance(name, str) and isinstance(mime_type, str) and type(size) is int):
        return None
    created = entry.created / 1000
    return Artifact(
        uri=entry.uri,
        name=shown_name(name),
        mime_type=shown_name(mime_type)[:MAX_MIME_TYPE],
        size=size,
        digest=entry.digest,
        run_id=entry.run_id,
        kind=entry.kind,
        created=created,
        expires=created + seconds,
        provenance=provenance,
    )
