"""A program's requests about memories: save, load, list and delete.

Owns the parameters, which a program sends and which are checked before anything acts on them, and
the answers. The rest of the helpers are made of these, in the sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio
import anyio.to_thread

from bridge.errors import BridgeError, CallDeniedError, InvalidRequestError, LibraryError
from bridge.gate.bridge_calls import BridgeCalls
from bridge.gate.provenance import ProvenanceTracker
from bridge.gate.redaction import Redactor
from bridge.gate.result_redaction import clear_value
from bridge.model import Effect, Json, RunRequest
from bridge.model.identity import PERSON, owner_of
from bridge.rpc.dispatcher import Answer, CallFailedError
from bridge.skills.memories import MAX_OWNERS, Memories, Memory
from bridge.store import Store


class MemoryAnswers:
    """Answers one run's calls about its caller's memories, one after the other."""

    def __init__(
        self,
        store: Store,
        request: RunRequest,
        redactor: Redactor,
        *,
        tracker: ProvenanceTracker,
        own: BridgeCalls,
    ) -> None:
        self._request = request
        self._redactor = redactor
        self._tracker = tracker
        self._own = own
        owner = owner_of(request)
        # Callers over HTTP cannot use up the room of the person who runs the bridge.
        most = None if owner == PERSON else MAX_OWNERS
        self._memories = Memories(store, owner, most_owners=most)
        # Bridges take turns at writing; of one run's calls none shall wait for another in a thread.
        self._turn = anyio.Lock()

    @property
    def methods(self) -> dict[str, Answer]:
        return {
            "save_memory": self._answering("save_memory", "write", self._save),
            "load_memory": self._answering("load_memory", "read", self._load),
            "list_memories": self._answering("list_memories", "read", self._list),
            "delete_memory": self._answering("delete_memory", "destructive", self._delete),
        }

    def _answering(self, method: str, effect: Effect, answer: Answer) -> Answer:
        async def answered(params: Mapping[str, Json]) -> Json:
            self._check()
            async with self._turn:
                return await self._own.make(method, params, effect, answer)

        return answered

    def _check(self) -> None:
        if not owner_of(self._request):
            message = "The caller of this run is not identified, so it has no memories."
            remedy = "Over HTTP a client that sends an Authorization header has them."
            raise CallDeniedError(message, remedy=remedy)

    async def _save(self, params: Mapping[str, Json]) -> Json:
        reject_plan(self._request, "save_memory")
        metadata, revision = params.get("metadata"), params.get("revision")
        if metadata is not None and not isinstance(metadata, dict):
            raise InvalidRequestError(f"metadata must be a dict, not {type(metadata).__name__}.")
        if revision is not None and not isinstance(revision, str):
            raise InvalidRequestError("revision must be a text.")
        key, value = self._key(params), clear_value(params.get("value"), self._redactor)
        if metadata is not None:
            metadata = clear_value(metadata, self._redactor)
        provenance = self._tracker.provenance()
        put = partial(
            self._memories.put, key, value, metadata, unless_after=revision, provenance=provenance
        )
        if revision is not None:
            await self._learn()
        shown = {"key": key, "value": value, "metadata": metadata}
        try:
            async with self._own.permitted("save_memory", shown, "write"):
                return await anyio.to_thread.run_sync(put) is not None
        except BridgeError:
            # That there is no room says what others keep.
            await self._learn()
            raise

    async def _load(self, params: Mapping[str, Json]) -> Json:
        try:
            found = await anyio.to_thread.run_sync(self._memories.get, self._key(params))
        except LibraryError:
            await self._learn()
            raise
        if found is not None:
            await self._found(found)
        # A memory's presence shows that no other run removed or replaced it.
        await self._learn()
        if found is None:
            return None
        return _told(found) | {"value": found.value, "revision": found.revision}

    async def _list(self, params: Mapping[str, Json]) -> Json:
        found = await anyio.to_thread.run_sync(self._memories.all)
        for one in found:
            # Keys and metadata are texts of the run that saved it, too.
            if isinstance(one, Memory):
                await self._found(one)
        await self._learn()
        return [
            _told(one) if isinstance(one, Memory) else {"key": one, "error": "It cannot be read."}
            for one in found
        ]

    async def _delete(self, params: Mapping[str, Json]) -> Json:
        reject_plan(self._request, "delete_memory")
        key, provenance = self._key(params), self._tracker.provenance()
        await self._learn()
        delete = partial(self._memories.delete, key, provenance=provenance)
        async with self._own.permitted("delete_memory", {"key": key}, "destructive"):
            return await anyio.to_thread.run_sync(delete)

    async def _learn(self) -> None:
        """Add to this run's labels those of the runs that changed any memory."""
        read = await anyio.to_thread.run_sync(self._memories.read_by_writers)
        await self._tracker.add_store("the memories", read)

    async def _found(self, memory: Memory) -> None:
        await self._tracker.add(f"memory {memory.key!r}", memory.provenance)

    def _key(self, params: Mapping[str, Json]) -> str:
        key = params.get("key")
        if not isinstance(key, str):
            raise InvalidRequestError(f"key must be a text, not {type(key).__name__}.")
        return self._redactor.text(key)


def reject_plan(request: RunRequest, what: str) -> None:
    """Refuse to change what is kept in a run that makes a plan."""
    if request.mode == "plan":
        message = (
            f"A plan changes nothing, so {what} was not done. Leave it to a run that makes no plan."
        )
        raise CallFailedError(message, kind="policy")


def _told(memory: Memory) -> dict[str, Json]:
    return {
        "key": memory.key,
        "metadata": dict(memory.metadata),
        "created_at": memory.created,
        "updated_at": memory.updated,
    }
