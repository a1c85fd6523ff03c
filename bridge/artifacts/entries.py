"""What each thing that is kept is called, and what it is asked for by. Pure."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from bridge.model import ArtifactKind
from bridge.text import valid_text, visible

ARTIFACTS_URI = "bridge://artifacts/"
RUNS_URI = "bridge://runs/"

MAX_NAME = 255
"""Characters of a name, which lists repeat; as long as a file's name may be."""

MAX_MIME_TYPE = 100
"""Characters of a media type; the registered ones have up to 80."""

_SHORTEST = 4
"""Characters of the beginning of an id or digest that is looked for."""

_RUN = re.compile(r"[A-Za-z0-9_-]{1,40}")
_STREAMS: dict[str, ArtifactKind] = {"stdout": "stdout", "stderr": "stderr"}


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


def shown_name(name: str) -> str:
    """Return a name that somebody else chose as it can be shown: one line, and bounded."""
    text = visible(valid_text(name[: 2 * MAX_NAME]), keep="")
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"


def uri_of(artifact_id: str, run_id: str, kind: ArtifactKind) -> str:
    """Return what something is read by."""
    if kind in ("stdout", "stderr"):
        return f"{RUNS_URI}{run_id}/{kind}"
    return ARTIFACTS_URI + artifact_id
