"""A program's requests about skills: `save_skill`, `list_skills`, `load_skill`, `delete_skill`.

Owns the parameters, which a program sends and which are checked before anything acts on them, and
the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bridge.catalog.program.guard import check
from bridge.catalog.program.survey import Survey
from bridge.errors import BridgeError, InvalidRequestError, UpstreamError
from bridge.gate.bridge_calls import BridgeCalls
from bridge.gate.pipeline import Gate
from bridge.gate.provenance import ProvenanceTracker
from bridge.model import Effect, Json, RunRequest
from bridge.model.identity import principal_of
from bridge.rpc.dispatcher import Answer
from bridge.servers.servers import Servers
from bridge.skills.index import SkillIndex
from bridge.skills.memory_requests import reject_plan
from bridge.skills.review import MAX_FINDINGS, Review, Reviews
from bridge.skills.source import MAX_DESCRIPTION_CHARS, NAME, Skill, read_code

_SAVE_FIX = (
    "Save it under another name, or ask the user to remove the skill that is there: "
    "`mcp-code-bridge skills rm NAME`."
)


class SkillAnswers:
    """Answers one run's calls about skills.

    Args:
        note: Writes a record into the audit log.
    """

    def __init__(
        self,
        shelf: SkillIndex,
        servers: Servers,
        reviews: Reviews,
        *,
        gate: Gate,
        tracker: ProvenanceTracker,
        own: BridgeCalls,
        review: Review,
        request: RunRequest,
        note: Callable[[Mapping[str, Json]], None],
    ) -> None:
        self._shelf = shelf
        self._servers = servers
        self._reviews = reviews
        self._gate = gate
        self._tracker = tracker
        self._own = own
        self._review = review
        self._request = request
        self._note = note

    @property
    def methods(self) -> dict[str, Answer]:
        return {
            "save_skill": self._once("save_skill", "write", self._save),
            "list_skills": self._list,
            "load_skill": self._load,
            "delete_skill": self._once("delete_skill", "destructive", self._delete),
        }

    def _once(self, method: str, effect: Effect, answer: Answer) -> Answer:
        async def answered(params: Mapping[str, Json]) -> Json:
            return await self._own.make(method, params, effect, answer)

        return answered

    async def _save(self, params: Mapping[str, Json]) -> Json:
        reject_plan(self._request, "save_skill")
        self._review.check("save")
        source, name = params.get("source", ""), params.get("name", "")
        description = params.get("description", "")
        if not all(isinstance(value, str) for value in (source, name, description)):
            message = "save_skill takes a function, and texts for `description` and `name`."
            raise InvalidRequestError(message)
        if len(description) > MAX_DESCRIPTION_CHARS:
            raise InvalidRequestError(
                f"The description has {len(description):,} characters; the limit is "
                f"{MAX_DESCRIPTION_CHARS}."
            )
        clear = self._servers.secrets.redactor.text
        code = read_code(clear(source), name)
        unknown = self._shelf.references(code).unknown
        if unknown:
            raise InvalidRequestError(f"The skill cannot be saved: {'; '.join(unknown.values())}")
        scan = check(Survey(code.tree), self._reviews.denied)
        if self._reviews.guard == "enforce" and scan.certain:
            raise InvalidRequestError(
                f"The static guard does not allow the skill: {scan.certain[0]}."
            )
        told = " ".join(clear(description or code.docstring.partition("\n")[0]).split())
        told = told[:MAX_DESCRIPTION_CHARS]
        provenance = self._tracker.provenance()
        # From here on the answer, and each refusal, says whether there is one of that name.
        await self._shelf.add_provenance(self._tracker)
        before = await self._shelf.as_it_is(code.name)
        ask = None if before is None else await self._review.protection(before, "replace")
        same = before is not None and before.source == code.source
        if before is not None and ask is not None and same and before.header.description == told:
            # It stays as a person saw it.
            return self._told(before) | {"changed": False}
        shown = {"name": code.name, "description": told, "source": code.source}
        effect: Effect = "write" if before is None else "destructive"
        async with self._own.permitted("save_skill", shown, effect, ask, _SAVE_FIX):
            skill, changed = await self._shelf.save(code, told, provenance, before=before)
        if ask is None:
            self._reviews.saved(principal_of(self._request), skill)
        self._note({"did": "save", "skill": skill.name, "digest": skill.digest})
        answer = self._told(skill) | {"changed": changed}
        if scan.findings:
            answer["notes"] = [str(found) for found in scan.findings[:MAX_FINDINGS]]
        return answer

    async def _list(self, params: Mapping[str, Json]) -> Json:
        self._review.check("list")
        skills = await self._shelf.all()
        for skill in skills.values():
            # Names, descriptions and signatures are texts, too.
            await self._review.add_provenance(skill, self._tracker)
        await self._shelf.add_provenance(self._tracker)
        return [
            self._told(skill) | {"reviewed": await self._review.is_reviewed(skill)}
            for skill in skills.values()
        ]

    async def _load(self, params: Mapping[str, Json]) -> Json:
        self._review.check("use")
        try:
            skill, named = await self._admitted(_name(params))
        except BridgeError:
            # It says what there is, or that there is none.
            await self._shelf.add_provenance(self._tracker)
            raise
        if not await self._review.add_provenance(skill, self._tracker):
            await self._shelf.add_provenance(self._tracker)
        stubs: list[Json] = []
        for server in named:
            try:
                await self._servers.load([server])
            except UpstreamError:
                # Its call will say what is the matter.
                continue
            stubs.append(self._servers.inventory.stubs(server, None))
        self._note({"did": "use", "skill": skill.name, "digest": skill.digest})
        return {
            "name": skill.name,
            "source": skill.text,
            "warning": self._shelf.stale(skill),
            "servers": stubs,
        }

    async def _admitted(self, name: str) -> tuple[Skill, Sequence[str]]:
        """Return a skill that this run may use, and the servers that it names."""
        skill = await self._shelf.get(name)
        assert skill.code is not None
        named = self._shelf.references(skill.code).servers
        for server in named:
            self._gate.admit(server)
        await self._review.admit(skill)
        return skill, named

    async def _delete(self, params: Mapping[str, Json]) -> Json:
        reject_plan(self._request, "delete_skill")
        self._review.check("delete")
        name = _name(params)
        provenance = self._tracker.provenance()
        await self._shelf.add_provenance(self._tracker)
        skill = await self._shelf.as_it_is(name)
        if skill is None:
            return False
        ask = await self._review.protection(skill, "remove")
        shown = {"name": name}
        fix = f"Leave it, or ask the user to remove it: `mcp-code-bridge skills rm {name}`."
        async with self._own.permitted("delete_skill", shown, "destructive", ask, fix):
            there = await self._shelf.delete(skill, provenance)
        if there:
            self._note({"did": "delete", "skill": name})
        return there

    def _told(self, skill: Skill) -> dict[str, Json]:
        answer: dict[str, Json] = {
            "name": skill.name,
            "version": skill.version,
            "description": skill.description,
            "signature": skill.signature,
            "import": skill.import_line,
            "tools": [
                f"{server}.{tool}" for server, tools in skill.header.tools.items() for tool in tools
            ],
            "updated": skill.header.updated,
            "stale": self._shelf.stale(skill),
        }
        if skill.edited:
            answer["edited"] = True
        if skill.problem:
            answer["problem"] = skill.problem
        return answer


def _name(params: Mapping[str, Json]) -> str:
    name = params.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequestError(f"{name!r:.80} is no name of a skill.")
    return name
