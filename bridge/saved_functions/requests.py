"""A program's requests for saved skills and memories: their checks and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from bridge.catalog.program.guard import check
from bridge.catalog.program.survey import Survey
from bridge.errors import (
    BridgeError,
    CallDeniedError,
    InvalidRequestError,
    LibraryError,
    UpstreamError,
)
from bridge.gate.bridge_calls import BridgeCalls, ProvenanceTracker
from bridge.gate.pipeline import Gate
from bridge.gate.privacy import clear_value
from bridge.model import Effect, Json, RunRequest
from bridge.model.runs import PERSON, owner_of, principal_of
from bridge.rpc.dispatcher import Answer, CallFailedError
from bridge.saved_functions.documents import MAX_OWNERS, Memories, Memory
from bridge.saved_functions.skills import Review, Skills
from bridge.saved_functions.source import MAX_DESCRIPTION_CHARS, NAME, Skill, read_code

_SAVE_FIX = (
    "Save it under another name, or ask the user to remove the existing skill: "
    "`mcp-code-bridge skills rm NAME`."
)


@dataclass(eq=False, repr=False)
class KeptRequests:
    """The handlers of one run's requests for skills and its caller's memories."""

    _skills: Skills
    _gate: Gate
    _tracker: ProvenanceTracker
    _own: BridgeCalls
    _review: Review
    _request: RunRequest

    def __post_init__(self) -> None:
        self._index = self._skills.index
        self._servers = self._skills.servers
        self._redactor = self._servers.secrets.redactor
        owner = owner_of(self._request)
        # Owners over HTTP cannot use up the quota of the person who runs the bridge.
        most = None if owner == PERSON else MAX_OWNERS
        self._memories = Memories(self._skills.store, owner, most_owners=most)
        # Writes lock the store, so two calls of a run would only block a second thread.
        self._turn = anyio.Lock()

    @property
    def methods(self) -> dict[str, Answer]:
        methods: Mapping[str, tuple[Answer, Effect | None]] = {
            "save_skill": (self._save_skill, "write"),
            "list_skills": (self._list_skills, None),
            "load_skill": (self._load_skill, None),
            "delete_skill": (self._delete_skill, "destructive"),
            "save_memory": (self._save_memory, "write"),
            "load_memory": (self._load_memory, "read"),
            "list_memories": (self._list_memories, "read"),
            "delete_memory": (self._delete_memory, "destructive"),
        }
        return {
            name: answer if effect is None else partial(self._answer_once, name, effect, answer)
            for name, (answer, effect) in methods.items()
        }

    def _note(self, did: str, skill: str, digest: str = "") -> None:
        facts = {"did": did, "skill": skill, **({"digest": digest} if digest else {})}
        self._skills.note(self._request.run_id, facts)

    async def _answer_once(
        self, method: str, effect: Effect, answer: Answer, params: Mapping[str, Json]
    ) -> Json:
        """Return the answer to a request whose effect a retry of the run does not repeat."""
        if self._request.mode == "plan" and effect != "read":
            message = f"A plan changes nothing, so {method} was not done. Call it without a plan."
            raise CallFailedError(message, kind="policy")
        if method.endswith("_skill"):
            return await self._own.make(method, params, effect, answer)
        if not owner_of(self._request):
            message = "The caller of this run is not identified, so it has no memories."
            remedy = "Over HTTP a client that sends an Authorization header has them."
            raise CallDeniedError(message, remedy=remedy)
        async with self._turn:
            return await self._own.make(method, params, effect, answer)

    async def _save_skill(self, params: Mapping[str, Json]) -> Json:
        self._review.check("save")
        source, name = params.get("source", ""), params.get("name", "")
        description = params.get("description", "")
        if not all(isinstance(value, str) for value in (source, name, description)):
            message = "save_skill takes a function, and strings for `description` and `name`."
            raise InvalidRequestError(message)
        if len(description) > MAX_DESCRIPTION_CHARS:
            raise InvalidRequestError(
                f"The description has {len(description):,} characters; the limit is "
                f"{MAX_DESCRIPTION_CHARS}."
            )
        clear = self._redactor.text
        code = read_code(clear(source), name)
        unknown = self._index.references(code).unknown
        if unknown:
            raise InvalidRequestError(f"The skill cannot be saved: {'; '.join(unknown.values())}")
        scan = check(Survey(code.tree), self._skills.denied)
        if self._skills.guard == "enforce" and scan.certain:
            why = f"The static guard does not allow the skill: {scan.certain[0]}."
            raise InvalidRequestError(why)
        summary = " ".join(clear(description or code.docstring.partition("\n")[0]).split())
        summary = summary[:MAX_DESCRIPTION_CHARS]
        provenance = self._tracker.provenance()
        # From here on, each response shows whether a skill of that name exists.
        await self._index.add_provenance(self._tracker)
        before = await self._index.read(code.name)
        ask = None if before is None else await self._review.protection(before, "replace")
        same = before is not None and before.source == code.source
        if before is not None and ask is not None and same and before.header.description == summary:
            # The reviewed skill is unchanged, so no question is needed.
            return self._skill_fields(before) | {"changed": False}
        shown = {"name": code.name, "description": summary, "source": code.source}
        effect: Effect = "write" if before is None else "destructive"
        async with self._own.permitted("save_skill", shown, effect, ask, _SAVE_FIX):
            skill, changed = await self._index.save(code, summary, provenance, before=before)
        if ask is None:
            self._skills.add_own(principal_of(self._request), skill)
        self._note("save", skill.name, skill.digest)
        answer = self._skill_fields(skill) | {"changed": changed}
        if scan.findings:
            answer["notes"] = [str(found) for found in scan.findings[:8]]
        return answer

    async def _list_skills(self, params: Mapping[str, Json]) -> Json:
        self._review.check("list")
        skills = await self._index.all()
        for skill in skills.values():
            await self._review.add_provenance(skill, self._tracker)
        await self._index.add_provenance(self._tracker)
        return [
            self._skill_fields(skill) | {"reviewed": await self._review.is_reviewed(skill)}
            for skill in skills.values()
        ]

    async def _load_skill(self, params: Mapping[str, Json]) -> Json:
        self._review.check("use")
        try:
            skill, named = await self._admit(_name(params))
        except BridgeError:
            # The error names the existing skills.
            await self._index.add_provenance(self._tracker)
            raise
        if not await self._review.add_provenance(skill, self._tracker):
            await self._index.add_provenance(self._tracker)
        stubs: list[Json] = []
        for server in named:
            try:
                await self._servers.load([server])
            except UpstreamError:
                # The first call of the server raises the error.
                continue
            stubs.append(self._servers.inventory.stubs(server, None))
        self._note("use", skill.name, skill.digest)
        return {
            "name": skill.name,
            "source": skill.text,
            "warning": self._index.stale(skill),
            "servers": stubs,
        }

    async def _admit(self, name: str) -> tuple[Skill, Sequence[str]]:
        skill = await self._index.get(name)
        assert skill.code is not None
        named = self._index.references(skill.code).servers
        for server in named:
            self._gate.admit(server)
        await self._review.admit(skill)
        return skill, named

    async def _delete_skill(self, params: Mapping[str, Json]) -> Json:
        self._review.check("delete")
        name = _name(params)
        provenance = self._tracker.provenance()
        await self._index.add_provenance(self._tracker)
        skill = await self._index.read(name)
        if skill is None:
            return False
        ask = await self._review.protection(skill, "remove")
        fix = f"Leave it, or ask the user to remove it: `mcp-code-bridge skills rm {name}`."
        async with self._own.permitted("delete_skill", {"name": name}, "destructive", ask, fix):
            existed = await self._index.delete(skill, provenance)
        if existed:
            self._note("delete", name)
        return existed

    def _skill_fields(self, skill: Skill) -> dict[str, Json]:
        unusual = {"edited": skill.edited, "problem": skill.problem}
        return {
            "name": skill.name,
            "version": skill.version,
            "description": skill.description,
            "signature": skill.signature,
            "import": f"from skills import {skill.name}",
            "tools": skill.header.tool_names,
            "updated": skill.header.updated,
            "stale": self._index.stale(skill),
            **{name: value for name, value in unusual.items() if value},
        }

    async def _save_memory(self, params: Mapping[str, Json]) -> Json:
        metadata, revision = params.get("metadata"), params.get("revision")
        if metadata is not None and not isinstance(metadata, dict):
            raise InvalidRequestError(f"metadata must be a dict, not {type(metadata).__name__}.")
        if revision is not None and not isinstance(revision, str):
            raise InvalidRequestError("revision must be a string.")
        key, value = self._key(params), clear_value(params.get("value"), self._redactor)
        if metadata is not None:
            metadata = clear_value(metadata, self._redactor)
        provenance = self._tracker.provenance()
        put = partial(
            self._memories.put, key, value, metadata, unless_after=revision, provenance=provenance
        )
        if revision is not None:
            await self._add_writers()
        shown = {"key": key, "value": value, "metadata": metadata}
        try:
            async with self._own.permitted("save_memory", shown, "write"):
                return await self._memories.run(put) is not None
        except BridgeError:
            # The error shows how much other runs have saved.
            await self._add_writers()
            raise

    async def _load_memory(self, params: Mapping[str, Json]) -> Json:
        try:
            memory = await self._memories.run(self._memories.get, self._key(params))
        except LibraryError:
            await self._add_writers()
            raise
        if memory is not None:
            await self._add_provenance(memory)
        # The response shows that no other run has removed or replaced the memory.
        await self._add_writers()
        if memory is None:
            return None
        return _memory_fields(memory) | {"value": memory.value, "revision": memory.revision}

    async def _list_memories(self, params: Mapping[str, Json]) -> Json:
        memories = await self._memories.run(self._memories.all)
        for memory in memories:
            # Keys and metadata come from the run that saved the memory.
            if isinstance(memory, Memory):
                await self._add_provenance(memory)
        await self._add_writers()
        return [
            _memory_fields(memory)
            if isinstance(memory, Memory)
            else {"key": memory, "error": "It cannot be read."}
            for memory in memories
        ]

    async def _delete_memory(self, params: Mapping[str, Json]) -> Json:
        key, provenance = self._key(params), self._tracker.provenance()
        await self._add_writers()
        delete = partial(self._memories.delete, key, provenance=provenance)
        async with self._own.permitted("delete_memory", {"key": key}, "destructive"):
            return await self._memories.run(delete)

    async def _add_writers(self) -> None:
        read = await self._memories.run(self._memories.read_by_writers)
        await self._tracker.add_store("the memories", read)

    async def _add_provenance(self, memory: Memory) -> None:
        await self._tracker.add(f"memory {memory.key!r}", memory.provenance)

    def _key(self, params: Mapping[str, Json]) -> str:
        key = params.get("key")
        if not isinstance(key, str):
            raise InvalidRequestError(f"key must be a string, not {type(key).__name__}.")
        return self._redactor.text(key)


def _memory_fields(memory: Memory) -> dict[str, Json]:
    return {
        "key": memory.key,
        "metadata": dict(memory.metadata),
        "created_at": memory.created,
        "updated_at": memory.updated,
    }


def _name(params: Mapping[str, Json]) -> str:
    name = params.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequestError(f"{name!r:.80} is not the name of a skill.")
    return name
