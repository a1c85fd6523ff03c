"""`read_output`: a program reads the outputs of its caller's earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import anyio.to_thread

from bridge.artifacts import ArtifactStore
from bridge.artifacts.content import nth_line_end
from bridge.errors import ArtifactStoreError, BridgeError, UnknownError
from bridge.gate.bridge_calls import ProvenanceTracker
from bridge.guest.schema.validation import problem
from bridge.model import MEBIBYTE, STREAMS, Artifact, Json
from bridge.rpc.dispatcher import CallFailedError
from bridge.text import counted

_PARAMETERS = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string"},
        "stream": {"enum": list(STREAMS)},
        "lines": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "minItems": 2,
            "maxItems": 2,
        },
        "find": {"type": "string", "minLength": 1},
        **dict.fromkeys(("offset", "length", "limit"), {"type": "integer"}),
    },
    "required": ["run_id", "stream"],
}

ALL = 32 * MEBIBYTE  # Of a stream, at least: as more is not kept.


class KeptOutputs:
    """The `read_output` of one run.

    Args:
        tracker: Records what the earlier run had read.
    """

    def __init__(self, store: ArtifactStore, owner: str, tracker: ProvenanceTracker) -> None:
        self._store = store
        self._owner = owner
        self._tracker = tracker
        self._reading = anyio.CapacityLimiter(2)  # Each is in memory then.

    async def read_output(self, params: Mapping[str, Json]) -> Json:
        """Return a text, or its lines that contain `find` with their numbers.

        Raises:
            CallFailedError: The parameters are wrong, or there is no such output.
            AuditError: The audit log cannot record the read.
        """
        given = {name: value for name, value in params.items() if value is not None}
        wrong = problem(given, _PARAMETERS, _PARAMETERS)
        lines, find = given.get("lines"), given.get("find")
        if wrong is None and (lines or find) and (given.get("offset") or "length" in given):
            wrong = "offset and length are about bytes: leave them out with lines or find"
        if wrong is None and lines and lines[0] > lines[1] or (wrong or "").startswith("lines"):
            wrong = "lines must be the first and the last line, counted from 1, such as "
            wrong += "(100, 200); offset=-1000 is the end, in bytes"
        if wrong is not None:
            raise CallFailedError(f"read_output(run_id, stream): {wrong}.", kind="usage")
        run_id, stream = given["run_id"], given["stream"]
        offset, length = int(given.get("offset", 0)), int(given.get("length", ALL))
        limit = max(int(given.get("limit", 100)), 1)

        def work() -> tuple[Artifact, Json]:
            artifact, data = self._read(run_id, stream, offset, max(length, 0))
            first, last = map(int, lines) if lines else (1, None)
            if find is not None:
                return artifact, found_lines(data, find, first, last, limit)
            wanted = data if lines is None else part(data, first, last)
            return artifact, wanted.decode("utf-8", "replace")

        try:
            artifact, found = await anyio.to_thread.run_sync(work, limiter=self._reading)
        except UnknownError:
            raise await self._unknown(run_id, stream) from None
        await self._tracker.add(artifact.uri, artifact.provenance)
        return found

    def _read(self, run_id: str, stream: str, offset: int, length: int) -> tuple[Artifact, bytes]:
        uri = f"bridge://runs/{run_id}/{stream}"
        try:
            try:
                artifact = self._store.find(self._owner, uri)
            except UnknownError:
                if stream != "stdout":
                    raise
                # A result that its client did not receive contains the output.
                uri = f"bridge://runs/{run_id}/result"
                artifact = self._store.find(self._owner, uri)
            start = max(0, artifact.size + offset) if offset < 0 else offset
            return artifact, self._store.read(self._owner, uri, start, min(length, ALL))
        except ArtifactStoreError as error:
            raise CallFailedError(str(error), kind="internal") from None

    async def _unknown(self, run_id: str, stream: str) -> CallFailedError:
        try:
            listed = await anyio.to_thread.run_sync(self._store.find_all, self._owner)
        except BridgeError:
            listed = ()
        kept = [one for one in listed if one.kind in STREAMS]
        if not self._owner:
            # A run's id opens its output, so callers that share an owner do not see it.
            kept = [one for one in kept if one.run_id == run_id]
        for one in kept:
            # The existence and size of an output are data too.
            await self._tracker.add_store(one.uri, one.provenance)
        return CallFailedError(self._instead(kept, run_id, stream), kind="usage")

    def _instead(self, kept: Sequence[Artifact], run_id: str, stream: str) -> str:
        of_run = [one for one in kept if one.run_id == run_id]
        message = (
            f"No {stream} of run {run_id!r:.80} is kept: that of other callers, what a result "
            "showed as a whole, and what has expired are not."
        )
        if of_run:
            return f"{message} Of this run there is {', '.join(map(_told, of_run))}."
        if not kept:
            return f"{message} No output is kept at all."
        listed = ", ".join(f"{_told(one)} of {one.run_id}" for one in kept[:10])
        more = f" and {len(kept) - 10:,} more" if len(kept) > 10 else ""
        return f"{message} Kept, the newest first: {listed}{more}."


def part(data: bytes, first: int, last: int | None) -> bytes:
    """Return lines of a text, counted from 1 and including the last."""
    start = _line_start(data, 0, first - 1)
    if last is None:
        return data[start:]
    return data[start : _line_start(data, start, max(0, last - first + 1))]


def found_lines(
    data: bytes, text: str, first: int = 1, last: int | None = None, limit: int = 100
) -> list[Json]:
    """Return the numbers and excerpts of the lines that contain a text."""
    wanted = text.encode("utf-8", "replace")
    data = part(data, first, last)
    found: list[Json] = []
    number, counted_to, room = first, 0, 8 * MEBIBYTE
    at = data.find(wanted)
    while at >= 0 and len(found) < limit and room > 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", max(at, start))
        end = len(data) if end < 0 else end
        number += data.count(b"\n", counted_to, start)
        counted_to = start
        # A guest may write long lines: the excerpt has little before the match and more after it.
        start = max(start, min(at - 512, end - 2048))
        line = data[start : min(end, start + 2048)]
        room -= len(line) + 1
        found.append([number, line.decode("utf-8", "replace")])
        at = data.find(wanted, end)
    return found


def _line_start(data: bytes, start: int, lines: int) -> int:
    """Return the offset of the line that begins `count` lines later."""
    if lines < 1:
        return start
    if data.count(b"\n", start) < lines:
        return len(data)
    return nth_line_end(data, lines, start) + 1


def _told(artifact: Artifact) -> str:
    return f"{artifact.kind} ({counted(artifact.size, 'byte')})"
