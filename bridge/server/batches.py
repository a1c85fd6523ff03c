"""JSON-RPC batches, several messages in one array, which only protocol 2025-03-26 has.

Owns the checks of a batch, and the array of responses that a client on stdio gets for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR, RequestId
from pydantic import ValidationError
from pydantic_core import from_json

VERSION = "2025-03-26"
"""The only protocol version with batches."""

MAX_BATCH = 100
"""Messages in one batch."""

MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Of one batch, whose messages are encoded and parsed once more. Files are sent alone."""

MAX_OPEN = 16
"""Batches of one client on stdio with missing responses."""


@dataclass(frozen=True)
class BatchRefusal:
    """The responses to a refused batch; none if it has no request.

    By JSON-RPC, one response without an id answers every entry without a usable id.
    """

    answers: Sequence[JSONRPCError]


def parse_batch(data: bytes, version: str = VERSION) -> list[JSONRPCMessage] | BatchRefusal:
    """Return the messages of a JSON array.

    Args:
        version: The protocol version that was agreed on.
    """
    if len(data) > MAX_BATCH_BYTES:
        problem = f"It has {len(data):,} bytes; the limit is {MAX_BATCH_BYTES:,}."
        return _refusal([None], f"{problem} Send a large message by itself.")
    try:
        entries: list[Any] = from_json(data)
    except ValueError:
        # Over stdio it may be anything that a client of another version prints.
        return _refusal([None] if version == VERSION else [], "It cannot be parsed.", PARSE_ERROR)
    ids, problem = _ids(entries), ""
    if version != VERSION:
        problem = f"Only protocol {VERSION} has batches, and this connection uses {version}."
    elif len(entries) > MAX_BATCH:
        problem = f"It has {len(entries):,} messages; the limit is {MAX_BATCH}."
    elif len(set(map(str, ids))) < len(ids):
        # Also 1 and "1": over HTTP the SDK would answer one of them alone.
        problem = "Two of its requests have the same id."
    elif any(isinstance(entry, dict) and entry.get("method") == "initialize" for entry in entries):
        problem = "`initialize` must be sent alone."
    elif None in ids:
        problem = "It has an entry that is no message, or an id that is no text or whole number."
    elif not entries:
        ids, problem = [None], "It is empty."
    if problem:
        return _refusal(ids, problem)
    try:
        return [jsonrpc_message_adapter.validate_python(each, by_name=False) for each in entries]
    except ValidationError:
        return _refusal(ids or [None], "One of its messages is no JSON-RPC message.")


def _ids(entries: Sequence[Any]) -> list[RequestId | None]:
    """Return the ids of the requests; None once for all entries without a usable id."""
    # The SDK takes a request whose id is of another type for a notification.
    found: list[RequestId | None] = []
    for entry in entries:
        if not isinstance(entry, dict):
            number = None
        elif "method" in entry and "id" in entry:
            number = entry["id"] if type(entry["id"]) in (int, str) else None
        else:
            continue
        if number is not None or None not in found:
            found.append(number)
    return found


def _refusal(
    ids: Iterable[RequestId | None], problem: str, code: int = INVALID_REQUEST
) -> BatchRefusal:
    error = ErrorData(code=code, message=f"The batch is refused. {problem}")
    return BatchRefusal([JSONRPCError(jsonrpc="2.0", id=each, error=error) for each in ids])


Answer = JSONRPCResponse | JSONRPCError


@dataclass(eq=False)
class _Batch:
    waiting: set[RequestId]
    answers: list[Answer] = field(default_factory=list)


class OpenBatches:
    """Collects the responses to one client's batches, and stores its protocol version."""

    def __init__(self) -> None:
        self.version = ""
        self._greeting: RequestId | None = None
        self._of: dict[RequestId, _Batch] = {}

    def note_version(self, message: JSONRPCMessage) -> None:
        """Note the id of `initialize`, whose response has the protocol version."""
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._greeting = message.id

    def begin(self, messages: Sequence[JSONRPCMessage]) -> BatchRefusal | None:
        """Register a batch to collect its responses; return a refusal if there are too many."""
        ids = {message.id for message in messages if isinstance(message, JSONRPCRequest)}
        if len(set(self._of.values())) >= MAX_OPEN or ids & self._of.keys():
            problem = f"{MAX_OPEN} batches are under way, or one has a request of the same id."
            return _refusal(ids, problem)
        self._of.update(dict.fromkeys(ids, _Batch(set(ids))))
        return None

    def take(self, message: JSONRPCMessage) -> Sequence[Answer] | None:
        """Add a message that is about to be sent to its batch.

        Returns:
            None if it answers no request of a batch and is sent alone; else the responses
            that go out together now, none while others are awaited.
        """
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return None
        if message.id == self._greeting and isinstance(message, JSONRPCResponse):
            self._greeting = None
            self.version = str(message.result.get("protocolVersion", ""))
        batch = self._of.get(message.id) if self._of and message.id is not None else None
        if batch is None:
            return None
        batch.answers.append(message)
        return self.drop_pending(message.id)

    def drop_pending(self, number: RequestId | None) -> Sequence[Answer]:
        """Stop waiting for a response; return the batch's responses if none is missing."""
        batch = self._of.pop(number, None) if number is not None else None
        if batch is None:
            return ()
        batch.waiting.discard(number)
        return () if batch.waiting else batch.answers
