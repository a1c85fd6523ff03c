"""JSON-RPC batches, which protocol 2025-03-26 has and no other: several messages in one array.

Owns what a batch may hold, and the array of answers that a client on stdio gets for it.
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
from mcp_types.jsonrpc import INVALID_REQUEST, RequestId
from pydantic import ValidationError
from pydantic_core import from_json

VERSION = "2025-03-26"
"""The only protocol version with batches."""

MAX_BATCH = 100
"""Messages in one batch."""

MAX_OPEN = 16
"""Batches of one client on stdio whose answers are not all there."""


@dataclass(frozen=True)
class BatchRefusal:
    """What each request of a batch that is not taken gets; nothing if it holds no request."""

    answers: Sequence[JSONRPCError]


def parse_batch(data: bytes, version: str = VERSION) -> list[JSONRPCMessage] | BatchRefusal:
    """Return the messages of a JSON array.

    Args:
        version: The protocol version that was agreed on.
    """
    try:
        entries: list[Any] = from_json(data)
    except ValueError:
        return BatchRefusal(())
    ids, problem = _ids(entries), ""
    if version != VERSION:
        problem = f"Only protocol {VERSION} has batches, and this connection uses {version}."
    elif len(entries) > MAX_BATCH:
        problem = f"It has {len(entries):,} messages; the limit is {MAX_BATCH}."
    elif len(set(ids)) < len(ids):
        problem = "Two of its requests have the same id."
    elif any(isinstance(entry, dict) and entry.get("method") == "initialize" for entry in entries):
        problem = "`initialize` must be sent alone."
    if problem:
        return _refusal(ids, problem)
    try:
        return [jsonrpc_message_adapter.validate_python(each, by_name=False) for each in entries]
    except ValidationError:
        return _refusal(ids, "One of its messages is no JSON-RPC message.")


def _ids(entries: Sequence[Any]) -> list[RequestId]:
    return [
        entry["id"]
        for entry in entries
        if isinstance(entry, dict) and "method" in entry and type(entry.get("id")) in (int, str)
    ]


def _refusal(ids: Iterable[RequestId], problem: str) -> BatchRefusal:
    error = ErrorData(code=INVALID_REQUEST, message=f"The batch is refused. {problem}")
    return BatchRefusal([JSONRPCError(jsonrpc="2.0", id=each, error=error) for each in ids])


Answer = JSONRPCResponse | JSONRPCError


@dataclass(eq=False)
class _Batch:
    waiting: set[RequestId]
    answers: list[Answer] = field(default_factory=list)


class OpenBatches:
    """Collects the answers to one client's batches, and knows which version it agreed on."""

    def __init__(self) -> None:
        self.version = ""
        self._greeting: RequestId | None = None
        self._of: dict[RequestId, _Batch] = {}

    def seen(self, message: JSONRPCMessage) -> None:
        """Look at a message of the client's, which may be its `initialize`."""
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._greeting = message.id

    def begin(self, messages: Sequence[JSONRPCMessage]) -> BatchRefusal | None:
        """Wait for the answers to a batch's requests, or refuse it."""
        ids = {message.id for message in messages if isinstance(message, JSONRPCRequest)}
        if len(set(self._of.values())) >= MAX_OPEN or ids & self._of.keys():
            problem = f"{MAX_OPEN} batches are under way, or one has a request of the same id."
            return _refusal(ids, problem)
        self._of.update(dict.fromkeys(ids, _Batch(set(ids))))
        return None

    def take(self, message: JSONRPCMessage) -> Sequence[Answer] | None:
        """Take what is about to be sent.

        Returns:
            None if it is no answer to a batch's request and goes out by itself; else the answers
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
        return self.unanswered(message.id)

    def unanswered(self, number: RequestId | None) -> Sequence[Answer]:
        """Wait no more for an answer; return those that go out together now."""
        batch = self._of.pop(number, None) if number is not None else None
        if batch is None:
            return ()
        batch.waiting.discard(number)
        return () if batch.waiting else batch.answers
