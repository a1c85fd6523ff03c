"""The skills that a program gets, and the review that they need before it uses them.

The policy, the approvals of a person or an answer to a question decide. A skill that the caller
saved since this bridge started needs no review, unless a person has approved one of its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import anyio

from bridge.callers.client import RunCaller
from bridge.catalog.program.guard import check
from bridge.catalog.program.references import References
from bridge.catalog.program.survey import Survey
from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    CallDeniedError,
    CannotAskError,
    LibraryError,
    RefusedError,
)
from bridge.gate.bridge_calls import ProvenanceTracker
from bridge.gate.policy import Decision
from bridge.gate.question import form, one_line, read_answer, safe_name, visible_lines
from bridge.inventory.servers import Servers
from bridge.model import Action, Json, Provenance, RunRequest, RunResult
from bridge.model.runs import error_run, principal_of
from bridge.saved_functions.files import SkillIndex
from bridge.saved_functions.source import MAX_DESCRIPTION_CHARS, Skill, named_skills
from bridge.settings import Settings, store_of
from bridge.text import list_names


@dataclass(frozen=True, kw_only=True)
class SkillUse:
    """The skills that one program names, directly or through other skills."""

    review: Review
    skills: tuple[Skill, ...] = ()
    references: tuple[References, ...] = ()

    def extend(self, references: References) -> References:
        """Return a program's references with those of its skills."""
        every = (references, *self.references)
        servers = tuple(dict.fromkeys(name for one in every for name in one.servers))
        return replace(references, servers=servers, dynamic=any(one.dynamic for one in every))


class Skills:
    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        *,
        policy: Callable[[], Action],
        note: Callable[[Mapping[str, Json]], None],
    ) -> None:
        self.store = store_of(settings)
        self.servers = servers
        self._policy = policy
        self._note = note
        self.index = SkillIndex(settings, servers)
        self.guard, self.denied = settings.guard, settings.guard_denies
        # Caller, name and digest of each skill saved since the bridge started.
        self._own: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def note(self, run_id: str, facts: Mapping[str, Json]) -> None:
        self._note({"kind": "skill", "run": run_id, **facts})

    def add_own(self, caller: str, skill: Skill) -> None:
        self._own[caller, skill.name, skill.digest] = None
        while len(self._own) > 1000:
            self._own.popitem(last=False)

    def is_own(self, caller: str, skill: Skill, approved: Set[str]) -> bool:
        """Return whether the caller saved this text, and no person approved one of its name."""
        return bool(caller) and not approved and (caller, skill.name, skill.digest) in self._own

    async def of_program(
        self, request: RunRequest, survey: Survey, run: RunCaller
    ) -> SkillUse | None:
        """Return the skills that a program uses; None if it does not import their package."""
        named = named_skills(survey.tree)
        if named is None:
            return None
        review = self.review(request, run)
        if not self.may_list(request.principal):
            # The error must not tell which skills exist.
            return SkillUse(review=review)
        saved = await self.index.all()
        skills: dict[str, Skill] = {}
        left = list(named)
        while left and len(skills) < 50:
            name = left.pop(0)
            skill = saved.get(name)
            if skill is None or name in skills:
                continue
            if skill.problem:
                raise LibraryError(f"Skill {name!r} cannot be used as its file is: {skill.problem}")
            skills[name] = skill
            assert skill.code is not None
            left += named_skills(skill.code.tree) or ()
        references = [self.index.references(skill.code) for skill in skills.values() if skill.code]
        return SkillUse(review=review, skills=tuple(skills.values()), references=tuple(references))

    def payload(self, use: SkillUse) -> list[dict[str, str]]:
        # The servers are connected now, so the index knows their tools.
        return [
            {"name": skill.name, "source": skill.text, "warning": self.index.stale(skill)}
            for skill in use.skills
        ]

    def may_list(self, principal: str) -> bool:
        policy = self._policy()
        return policy == "allow" or (policy != "deny" and bool(principal))

    def review(self, request: RunRequest, run: RunCaller) -> Review:
        return Review(self, policy=self._policy(), caller=principal_of(request), run=run)

    async def refusal(self, use: SkillUse, run_id: str, timeout: float) -> RunResult | None:
        try:
            use.review.check("use")
            for skill in use.skills:
                await use.review.admit(skill)
                self.note(run_id, {"did": "use", "skill": skill.name, "digest": skill.digest})
        except RefusedError as error:
            summary = f"The program was not run. {error.message}"
            result = replace(error_run(error, run_id=run_id), reason="policy", code="")
            return replace(result, summary=summary, timeout_seconds=timeout)
        return None

    async def add_provenance(self, use: SkillUse, tracker: ProvenanceTracker) -> None:
        # A later refusal may name any of the skills.
        seen = [await use.review.add_provenance(skill, tracker) for skill in use.skills]
        if not all(seen):
            await self.index.add_provenance(tracker)

    async def show(self, review: Review, tracker: ProvenanceTracker, names: Sequence[str]) -> None:
        """Add the provenance of the skills that a search may show to the run."""
        await self.index.add_provenance(tracker)
        # Collect them without an `await`, since another run may save one of them again.
        for skill in [self.index.peek(name) for name in names]:
            if skill is not None:
                await review.add_provenance(skill, tracker)


class Review:
    """Decides which skills one run may use, with one question at a time."""

    def __init__(self, skills: Skills, *, policy: Action, caller: str, run: RunCaller) -> None:
        self._skills = skills
        self._policy = policy
        self._caller = caller
        self._run = run
        self._turn = anyio.Lock()
        self._answers: dict[tuple[str, str], bool] = {}
        self._seen: set[tuple[str, str]] = set()

    def check(self, doing: str) -> None:
        if self._policy == "deny":
            message = f"The policy lets no program {doing} skills."
            remedy = 'The user can change it: [policy] skills = "ask" in config.toml.'
            raise CallDeniedError(message, remedy=remedy)
        if not self._caller and self._policy != "allow":
            message = f"An unidentified caller may not {doing} the user's skills."
            remedy = 'The user can allow it: [policy] skills = "allow" in config.toml.'
            raise CallDeniedError(message, remedy=remedy)

    async def admit(self, skill: Skill) -> None:
        """Check that this run may use a skill; ask the user if the policy requires it."""
        self.check("use")
        scan = None if skill.code is None else check(Survey(skill.code.tree), self._skills.denied)
        if scan is not None and scan.certain and self._skills.guard == "enforce":
            # Someone may have edited the file since it was saved.
            message = (
                f"The static guard does not allow the skill {skill.name!r}: {scan.certain[0]}."
            )
            raise CallDeniedError(message, remedy="Write the program without it.")
        if self._policy == "allow":
            return
        key = (skill.name, skill.digest)
        async with self._turn:
            approved = self._answers.get(key)
            if approved is None:
                digests = await self._find_digests(skill)
                if self._skills.is_own(self._caller, skill, digests):
                    return
                approved = skill.digest in digests
            if not approved:
                if key in self._answers:
                    raise _refusal(skill, "was refused before in this run")
                findings = () if scan is None else tuple(map(str, scan.findings))
                await self._ask(skill, findings)
            self._answers[key] = True

    async def _find_digests(self, skill: Skill) -> Set[str]:
        approved = await self._skills.index.approvals()
        return {digest for name, digest in approved if name == skill.name}

    async def is_reviewed(self, skill: Skill) -> bool:
        digests = await self._find_digests(skill)
        return skill.digest in digests or self._skills.is_own(self._caller, skill, digests)

    async def add_provenance(self, skill: Skill, tracker: ProvenanceTracker) -> bool:
        """Add the provenance of the run that saved a skill; return True if a person reviewed it."""
        seen = (skill.name, skill.digest) in self._seen
        if seen or skill.digest in await self._find_digests(skill):
            return True
        await tracker.add(f"skill '{skill.name}'", skill.header.provenance)
        return False

    async def protection(self, skill: Skill, doing: str) -> Decision | None:
        """Return the decision on a replacement or removal; None for the caller's own skill."""
        if self._skills.is_own(self._caller, skill, await self._find_digests(skill)):
            return None
        reason = f"{doing} {skill.name!r}, which a person may have written"
        # Only an identified caller can be asked.
        action: Action = "ask" if self._caller else "deny"
        return Decision(action=action, rule="a skill that is there", reason=reason)

    async def _ask(self, skill: Skill, findings: tuple[str, ...]) -> None:
        key = (skill.name, skill.digest)
        asked, choices = question(skill, self._skills.index.stale(skill), findings)
        try:
            answer = await self._run.elicit(asked)
        except CannotAskError as error:
            needed = f"A person must review the skill {skill.name!r} before it is used."
            allow = f"`mcp-code-bridge skills approve {skill.name}`"
            raise ApprovalNeededError(
                f"{needed} {error.why}", remedy=f"The user can review and allow it: {allow}."
            ) from None
        decision = read_answer(answer, choices, "once")
        if decision not in choices:
            self._answers[key] = False
            what = "the user declined it" if decision else "the client gave no answer to the review"
            raise _refusal(skill, f"was not used: {what}")
        self._seen.add(key)
        if decision == "always":
            try:
                await self._skills.index.approve(skill)
            except LibraryError:
                # The answer holds for this run only.
                return


def _refusal(skill: Skill, what: str) -> RefusedError:
    message = f"The skill {skill.name!r} {what}."
    return ApprovalRefusedError(message, remedy="Write the code into the program.")


def question(
    skill: Skill, stale: str, findings: tuple[str, ...]
) -> tuple[Mapping[str, Json], Sequence[str]]:
    """Return the review's question, and the answers that permit the use.

    "always" needs a question that shows the whole source.
    """
    name = safe_name(skill.name)
    lines = [f"    Use the saved skill {name}?"]
    changed = ", edited by hand since it was saved" if skill.edited else ""
    lines.append(f"    version {skill.version}{changed}")
    if skill.description:
        # In full, since it counts as reviewed.
        description = one_line(skill.description, 5 * MAX_DESCRIPTION_CHARS)
        lines.append(f"    described as: {description}")
    # The header is not approved, only the source below: a writer of the file can change it.
    tools = list_names(list(map(safe_name, skill.header.tool_names))) or "no tool"
    lines.append(f"    its file names as called: {tools}")
    if skill.header.provenance is not None:
        lines.append(f"    saved by {_saver(skill.header.provenance)}")
    if stale:
        lines.append(f"    stale, {one_line(stale, 400)}")
    lines += [f"    guard: {one_line(finding, 200)}" for finding in findings[:8]]
    shown, rest = visible_lines(skill.source.rstrip("\n"), 120, 8000)
    lines += ["", *(f"    {line}" for line in shown)]
    if rest:
        approve = f"`mcp-code-bridge skills approve {name}` shows all, and allows it permanently."
        lines += ["", f"Cut: {rest:,} more lines. {approve}"]
    choices = {"once": "This run"}
    if not rest:
        choices["always"] = "Always, until it changes"
    return form("\n".join(lines), {**choices, "no": "No"}), tuple(choices)


def _saver(provenance: Provenance) -> str:
    if provenance.anything:
        return "a run that may have read anything"
    called, labels = (
        list_names(list(map(safe_name, sorted(names))))
        for names in (provenance.servers, provenance.labels)
    )
    read = f", and read what is {labels}" if labels else ""
    return f"a run that had called {called or 'no server'}{read}"
