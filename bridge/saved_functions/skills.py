"""Skills as runs use them.

Owns which skills a program gets, by its text, and when they are reviewed: before a
sandbox is taken, for those that it names.
"""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from bridge.callers.client import RunCaller
from bridge.catalog.program.parsing import Unread
from bridge.catalog.program.server_references import References
from bridge.catalog.program.survey import Survey
from bridge.errors import LibraryError, RefusedError
from bridge.gate.bridge_calls import BridgeCalls, ProvenanceTracker
from bridge.gate.pipeline import Gate
from bridge.inventory.servers import Servers
from bridge.model import Action, Json, RunRequest, RunResult
from bridge.model.requests import principal_of
from bridge.rpc.dispatcher import Answer
from bridge.saved_functions.index import SkillIndex
from bridge.saved_functions.requests import KeptRequests
from bridge.saved_functions.review import Review
from bridge.saved_functions.source import PACKAGE, Skill, named_skills
from bridge.settings import Settings, store_of


@dataclass(frozen=True, kw_only=True)
class SkillUse:
    """The skills that one program names.

    Attributes:
        skills: Those it names, and those that these name.
        dynamic: Whether one of them picks servers in a way that does not show.
    """

    skills: tuple[Skill, ...] = ()
    servers: tuple[str, ...] = ()
    dynamic: bool = False
    review: Review | None = None
    stale: Callable[[Skill], str] = lambda _: ""

    def widened(self, references: References) -> References:
        """Return what a program says about servers together with what its skills do."""
        if not self.servers and not self.dynamic:
            return references
        servers = tuple(dict.fromkeys((*references.servers, *self.servers)))
        return replace(references, servers=servers, dynamic=references.dynamic or self.dynamic)

    def sent(self) -> list[dict[str, str]]:
        return [
            {"name": skill.name, "source": skill.text, "warning": self.stale(skill)}
            for skill in self.skills
        ]


NO_SKILLS = SkillUse()  # Of a program that mentions none.


class Skills:
    """Skills and memories, for an engine's runs."""

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        *,
        policy: Callable[[], Action],
        note: Callable[[Mapping[str, Json]], None],
    ) -> None:
        self._settings = settings
        self.servers = servers
        self._policy = policy
        self._note = note
        self.shelf = SkillIndex(settings, servers)
        # Where the guard may refuse programs, it may refuse skills.
        self.guard, self.denied = settings.guard, settings.guard_denies
        # What was saved by whom, until the bridge ends.
        self._own: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def saved(self, caller: str, skill: Skill) -> None:
        self._own[caller, skill.name, skill.digest] = None
        while len(self._own) > 1000:
            self._own.popitem(last=False)

    def is_own(self, caller: str, skill: Skill, approved: Set[str]) -> bool:
        """Return whether the caller itself saved the skill's present text.

        Args:
            approved: The digests that a person approved of under that name.
        """
        return bool(caller) and not approved and (caller, skill.name, skill.digest) in self._own

    async def of_program(
        self, request: RunRequest, survey: Survey | Unread, run: RunCaller
    ) -> SkillUse:
        if PACKAGE not in request.code or isinstance(survey, Unread):
            return NO_SKILLS
        tree = survey.tree
        named = named_skills(tree)
        if not named and not _imports(tree):
            return NO_SKILLS
        if not self.may_list(request.principal):
            # The error does not say which skills there are.
            return SkillUse(review=self.review(request, run))
        there = await self.shelf.all()
        found: dict[str, Skill] = {}
        left = list(named)
        while left and len(found) < 50:
            name = left.pop(0)
            skill = there.get(name)
            if skill is None or name in found:
                continue
            if skill.problem:
                raise LibraryError(f"Skill {name!r} cannot be used as its file is: {skill.problem}")
            found[name] = skill
            assert skill.code is not None
            left += named_skills(skill.code.tree)
        uses = [self.shelf.references(skill.code) for skill in found.values() if skill.code]
        return SkillUse(
            skills=tuple(found.values()),
            servers=tuple(dict.fromkeys(name for use in uses for name in use.servers)),
            dynamic=any(use.dynamic for use in uses),
            review=self.review(request, run),
            stale=self.shelf.stale,
        )

    def may_list(self, principal: str) -> bool:
        """Return whether a caller may list the skills; an unidentified one may not."""
        policy = self._policy()
        return policy == "allow" or (policy != "deny" and bool(principal))

    def review(self, request: RunRequest, run: RunCaller) -> Review:
        return Review(self, policy=self._policy(), caller=principal_of(request), run=run)

    async def refusal(self, use: SkillUse, run_id: str, timeout: float) -> RunResult | None:
        """Review a program's skills; return its result if one may not be used."""
        if use.review is None:
            return None
        try:
            use.review.check("use")
            for skill in use.skills:
                await use.review.admit(skill)
                facts = {"skill": skill.name, "did": "use", "digest": skill.digest}
                self._note({"kind": "skill", "run": run_id, **facts})
        except RefusedError as error:
            return RunResult(
                run_id=run_id,
                status="error",
                reason="policy",
                summary=f"The program was not run. {error.message}",
                error=f"{error} [{error.code}]",
                timeout_seconds=timeout,
            )
        return None

    async def add_provenance(self, use: SkillUse, tracker: ProvenanceTracker) -> None:
        if use.review is None:
            return
        # Of all, so that each is named in what is refused later.
        seen = [await use.review.add_provenance(skill, tracker) for skill in use.skills]
        if not all(seen):
            await self.shelf.add_provenance(tracker)

    async def show(
        self,
        request: RunRequest,
        run: RunCaller,
        use: SkillUse,
        tracker: ProvenanceTracker,
        names: Sequence[str],
    ) -> None:
        """Add to a run's labels those of skills that a search shows it.

        Also by one that finds none: that there is none is an answer.
        """
        await self.shelf.add_provenance(tracker)
        review = use.review or self.review(request, run)
        # All at once: while one is looked at, another may be saved again.
        for skill in [self.shelf.at_hand(name) for name in names]:
            if skill is not None:
                await review.add_provenance(skill, tracker)

    def answers(
        self,
        request: RunRequest,
        run: RunCaller,
        use: SkillUse,
        *,
        gate: Gate,
        tracker: ProvenanceTracker,
        own: BridgeCalls,
    ) -> dict[str, Answer]:
        return KeptRequests(
            self,
            store_of(self._settings),
            gate=gate,
            tracker=tracker,
            own=own,
            review=use.review or self.review(request, run),
            request=request,
            note=lambda facts: self._note({"kind": "skill", "run": request.run_id, **facts}),
        ).methods


def _imports(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.Import) and any(item.name == PACKAGE for item in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == PACKAGE)
        for node in ast.walk(tree)
    )
