"""Input files of a request: rules for names, limits on sizes, and the content of a `uri`.

Only two kinds of address are read: artifacts of the same caller's runs, and `data:`. A name from a
request never opens a file of this machine or a network address.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import unquote_to_bytes

from bridge.artifacts.store import ArtifactStore
from bridge.errors import InvalidRequestError, UnknownError
from bridge.model import MEBIBYTE, InputFile, Limits, RunRequest
from bridge.rpc.channel import as_base64

MAX_NAME_BYTES = 1024  # A client or a guest may send a name of megabytes.

_REFUSED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def name_problem(name: str) -> str:
    """Return why a file name is not allowed, to follow "its name"; empty if it is allowed."""
    if not name:
        return "is empty"
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES:,} bytes"
    if any(_is_refused(character) for character in name):
        return "holds control characters or what is no text"
    if name.startswith("/"):
        return "begins with a slash; it must be relative"
    if "\\" in name:
        return "holds a backslash; directories are parted by /"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return 'has a part that is empty, "." or ".."'
    if len(parts) > 10:
        return "has more than 10 parts"
    if any(len(part.encode()) > 255 for part in parts):
        return "has a part of more than 255 bytes"  # What file systems take.
    return ""


def quote(name: str) -> str:
    cut = name if len(name) <= 200 else f"{name[:199]}…"
    shown = "".join(
        character.encode("unicode_escape").decode("ascii") if _is_refused(character) else character
        for character in cut
    )
    return f"`{shown}`"


def _is_refused(character: str) -> bool:
    # These two join letters and emoji. Other format characters hide or reverse text.
    return unicodedata.category(character) in _REFUSED and character not in "\u200c\u200d"


# What a client may send with one run, in a frame of at most 64 MiB, as base64.
MAX_FILES = 100
MAX_BYTES = 32 * MEBIBYTE
MAX_SESSION_BYTES = 12 * MEBIBYTE  # In a session the frame has its state as well.

OUT = "out"

KEPT = "bridge://"
DATA = "data:"

_WORKS = (
    "Give bridge://artifacts/<id> or bridge://runs/<runId>/stdout from a result, or data:. "
    "What is on a server, the program can read itself, with runtime.read_resource(server, uri)."
)


def allowed_bytes(limits: Limits, *, in_session: bool = False) -> int:
    most = MAX_SESSION_BYTES if in_session else MAX_BYTES
    # While a file is written, the sandbox holds it several times.
    return min(most, limits.workspace_bytes // 2, limits.memory_bytes // 16)


async def resolve_files(request: RunRequest, limits: Limits, store: ArtifactStore) -> RunRequest:
    """Return a request whose files have their content."""
    if not request.files:
        return request
    check_names(request.files)
    allowed = left = allowed_bytes(limits, in_session=bool(request.session))
    # Files with content are counted first, so a refused request reads nothing.
    for file in request.files:
        left = _left(file, len(file.data or b""), left, allowed)
    files = []
    for file in request.files:
        if file.data is None:
            file = await _read(file, request.owner, store, left, allowed)
            left -= len(file.data or b"")
        files.append(file)
    return replace(request, files=tuple(files))


def frame_files(files: Sequence[InputFile]) -> list[dict[str, str]]:
    """Return the files of a `Run` frame; files without content are left out."""
    return [
        {"name": file.name, "data": as_base64(file.data)} for file in files if file.data is not None
    ]


def check_names(files: Sequence[InputFile]) -> None:
    """Check that file names are allowed and do not collide."""
    if len(files) > MAX_FILES:
        message = f"There are {len(files):,} files; a run takes {MAX_FILES}."
        raise InvalidRequestError(message, remedy="Send an archive, and unpack it in the program.")
    names: set[str] = set()
    directories: set[str] = set()
    for file in files:
        problem = name_problem(file.name)
        if problem:
            message = f"The file {quote(file.name)} cannot be taken: its name {problem}."
            remedy = 'Names are relative to the working directory, such as "data/sales.csv".'
            raise InvalidRequestError(message, remedy=remedy)
        if file.name.partition("/")[0] == OUT:
            message = f"The file {quote(file.name)} cannot be taken: out/ is for what comes back."
            raise InvalidRequestError(message, remedy="Name it without that directory.")
        if file.name in names:
            raise InvalidRequestError(f"There are two files named {quote(file.name)}.")
        names.add(file.name)
        parts = file.name.split("/")
        directories.update("/".join(parts[:end]) for end in range(1, len(parts)))
    for name in sorted(names & directories):
        raise InvalidRequestError(f"{quote(name)} is a file, and also the directory of another.")


def _left(file: InputFile, size: int, left: int, allowed: int) -> int:
    if size <= left:
        return left - size
    message = (
        f"The files are too much: a run takes {allowed:,} bytes in all, and {left:,} of them "
        f"were left for {quote(file.name)}, which has {size:,}."
    )
    remedy = "Send less; it is a part of MCP_BRIDGE_MEMORY, which the user can raise."
    if allowed in (MAX_BYTES, MAX_SESSION_BYTES):
        remedy = "Send less, or have the program fetch the data with tool calls."
    raise InvalidRequestError(message, remedy=remedy)


async def _read(
    file: InputFile, owner: str, store: ArtifactStore, left: int, allowed: int
) -> InputFile:
    """Return a file with the content of its `uri`, if there is room for it."""
    scheme = file.uri[: len(KEPT)].lower()
    if scheme.startswith(DATA):
        data = _data_of(file)
        _left(file, len(data), left, allowed)
        return replace(file, data=data)
    if scheme != KEPT:
        message = f"The file {quote(file.name)} could not be read from {quote(file.uri)}."
        raise InvalidRequestError(message, remedy=_WORKS)
    _, mark, part = file.uri.partition("?")
    if mark:
        message = f"The file {quote(file.name)} would be a part of something; files come whole."
        remedy = f"Leave out `?{part:.80}`, and have the program take its part."
        raise InvalidRequestError(message, remedy=remedy)

    def read() -> InputFile:
        artifact = store.find(owner, file.uri)
        _left(file, artifact.size, left, allowed)
        data, provenance = store.read(owner, artifact.uri), artifact.provenance
        return replace(file, data=data, uri=artifact.uri, provenance=provenance)

    try:
        return await store.run(read)
    except UnknownError as error:
        message = f"The file {quote(file.name)} could not be read. {error.message}"
        raise InvalidRequestError(message, remedy=_WORKS) from None


def _data_of(file: InputFile) -> bytes:
    """Return the content of a `data:` address."""
    head, comma, content = file.uri[len(DATA) :].partition(",")
    problem, remedy = "without a comma", "It looks so: data:text/plain;base64,aGVsbG8="
    if comma:
        problem, remedy = "that is no text", "Give bytes in base64."
        try:
            data = unquote_to_bytes(content)
            problem, remedy = "that is not base64", "Give text as `text`."
            coded = head.lower().rstrip().endswith(";base64")
            return base64.b64decode(data, validate=True) if coded else data
        except ValueError:  # Text that cannot be encoded, or is not base64, fails too.
            pass
    message = f"The file {quote(file.name)} has a data: address {problem}."
    raise InvalidRequestError(message, remedy=remedy)
