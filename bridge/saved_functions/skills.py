"""Skills as runs use them: which a program gets, by its text, and whether they may be used.

The policy decides, or the approvals of a person, or a question to one. What the caller itself saved
while this bridge runs needs no review, unless a person has approved anything under its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import anyio

from bridge.callers.client import RunCaller
from bridge.catalog.program.guard import check
from bridge.catalog.program.parsing import Unread
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
from bridge.gate.decision import Decision
from bridge.gate.question import form, one_line, read_answer, safe_name, visible_lines
from bridge.inventory.servers import Servers
from bridge.model import Action, Json, Provenance, RunRequest, RunResult
from bridge.model.requests import principal_of
from bridge.model.results import error_run
from bridge.saved_functions.files import SkillIndex
from bridge.saved_functions.source import MAX_DESCRIPTION_CHARS, PACKAGE, Skill, named_skills
from bridge.settings import Settings, store_of


@dataclass(frozen=True, kw_only=True)
class SkillUse:
    """The skills that one program names, and those that these name.

    Attributes:
        dynamic: Whether one of them picks servers in a way that its text does not show.
    """

    skills: tuple[Skill, ...] = ()
    servers: tuple[str, ...] = ()
    dynamic: bool = False
    review: Review | None = None
    stale: Callable[[Skill], str] = lambda _: ""

    def widened(self, references: References) -> References:
        """Return the servers that a program or its skills refer to."""
        if not self.servers and not self.dynamic:
            return references
        servers = tuple(dict.fromkeys((*references.servers, *self.servers)))
        return replace(references, servers=servers, dynamic=references.dynamic or self.dynamic)

    def sent(self) -> list[dict[str, str]]:
        # Now the servers are connected, and `stale` knows their tools.
        return [
            {"name": skill.name, "source": skill.text, "warning": self.stale(skill)}
            for skill in self.skills
        ]


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
        # Where the guard may refuse programs, it may refuse skills.
        self.guard, self.denied = settings.guard, settings.guard_denies
        # Caller, name and digest of what was saved since the bridge started.
        self._own: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def note(self, run_id: str, facts: Mapping[str, Json]) -> None:
        self._note({"kind": "skill", "run": run_id, **facts})

    def saved(self, caller: str, skill: Skill) -> None:
        self._own[caller, skill.name, skill.digest] = None
        while len(self._own) > 1000:
            self._own.popitem(last=False)

    def is_own(self, caller: str, skill: Skill, approved: Set[str]) -> bool:
        """Return whether the caller itself saved the skill's text, and no person approved any."""
        return bool(caller) and not approved and (caller, skill.name, skill.digest) in self._own

    async def of_program(
        self, request: RunRequest, survey: Survey | Unread, run: RunCaller
    ) -> SkillUse:
        if PACKAGE not in request.code or isinstance(survey, Unread):
            return SkillUse()
        named = named_skills(survey.tree)
        if named is None:
            return SkillUse()
        if not self.may_list(request.principal):
            # The error does not say which skills there are.
            return SkillUse(review=self.review(request, run))
        there = await self.index.all()
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
            left += named_skills(skill.code.tree) or ()
        uses = [self.index.references(skill.code) for skill in found.values() if skill.code]
        return SkillUse(
            skills=tuple(found.values()),
            servers=tuple(dict.fromkeys(name for use in uses for name in use.servers)),
            dynamic=any(use.dynamic for use in uses),
            review=self.review(request, run),
            stale=self.index.stale,
        )

    def may_list(self, principal: str) -> bool:
        policy = self._policy()
        return policy == "allow" or (policy != "deny" and bool(principal))

    def review(self, request: RunRequest, run: RunCaller) -> Review:
        return Review(self, policy=self._policy(), caller=principal_of(request), run=run)

    async def refusal(self, use: SkillUse, run_id: str, timeout: float) -> RunResult | None:
        if use.review is None:
            return None
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
        if use.review is None:
            return
        # Of all skills: a later refusal names each.
        seen = [await use.review.add_provenance(skill, tracker) for skill in use.skills]
        if not all(seen):
            await self.index.add_provenance(tracker)

    async def show(
        self,
        request: RunRequest,
        run: RunCaller,
        use: SkillUse,
        tracker: ProvenanceTracker,
        names: Sequence[str],
    ) -> None:
        """Add to a run's labels those of skills that a search shows it, or would show."""
        await self.index.add_provenance(tracker)
        review = use.review or self.review(request, run)
        # All at once: while one is looked at, another may be saved again.
        for skill in [self.index.at_hand(name) for name in names]:
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
            message = f"The run's caller is not identified: it may not {doing} the user's skills."
            remedy = 'The user can allow it: [policy] skills = "allow" in config.toml.'
            raise CallDeniedError(message, remedy=remedy)

    async def admit(self, skill: Skill) -> None:
        """Check that a skill may be used in this run; ask a person if the policy says so."""
        self.check("use")
        scan = None if skill.code is None else check(Survey(skill.code.tree), self._skills.denied)
        if scan is not None and scan.certain and self._skills.guard == "enforce":
            # The file may have changed since it was checked and saved.
            message = (
                f"The static guard does not allow the skill {skill.name!r}: {scan.certain[0]}."
            )
            raise CallDeniedError(message, remedy="Do without it.")
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
        approved = await self._skills.index.approved()
        return {digest for name, digest in approved if name == skill.name}

    async def is_reviewed(self, skill: Skill) -> bool:
        digests = await self._find_digests(skill)
        return skill.digest in digests or self._skills.is_own(self._caller, skill, digests)

    async def add_provenance(self, skill: Skill, tracker: ProvenanceTracker) -> bool:
        """Add to a run's labels those of the run that saved a skill, unless a person reviewed it.

        Returns:
            Whether a person has reviewed it: then it counts as written by them.
        """
        seen = (skill.name, skill.digest) in self._seen
        if seen or skill.digest in await self._find_digests(skill):
            return True
        await tracker.add(f"skill '{skill.name}'", skill.header.provenance)
        return False

    async def protection(self, skill: Skill, doing: str) -> Decision | None:
        """Return what is asked before a program replaces or removes a skill; None for its own."""
        digests = await self._find_digests(skill)
        if self._skills.is_own(self._caller, skill, digests):
            return None
        reason = f"{doing} {skill.name!r}, which a person may have written"
        # An answer counts only from an identified caller.
        action: Action = "ask" if self._caller else "deny"
        return Decision(action=action, rule="a skill that is there", reason=reason)

    async def _ask(self, skill: Skill, findings: tuple[str, ...]) -> None:
        key = (skill.name, skill.digest)
        choices = offered_answers(skill)
        asked = question(skill, self._skills.index.stale(skill), findings)
        try:
            answer = await self._run.elicit(asked)
        except CannotAskError as error:
            needed = f"The skill {skill.name!r} has to be reviewed by a person before it is used."
            allow = f"`mcp-code-bridge skills approve {skill.name}`"
            raise ApprovalNeededError(
                f"{needed} {error.why}", remedy=f"The user can look at it and allow it: {allow}."
            ) from None
        decision = read_answer(answer, choices, "once")
        if decision not in choices:
            self._answers[key] = False
            what = "declined" if decision else "gave no answer"
            raise _refusal(skill, f"was not used: the client, asked for a review, {what}")
        self._seen.add(key)
        if decision == "always":
            try:
                await self._skills.index.approve(skill)
            except LibraryError:
                # The answer holds for this run only.
                return


def _refusal(skill: Skill, what: str) -> RefusedError:
    message = f"The skill {skill.name!r} {what}."
    remedy = "Do without it, or write the code into the program."
    return ApprovalRefusedError(message, remedy=remedy)


def question(skill: Skill, stale: str, findings: tuple[str, ...]) -> Mapping[str, Json]:
    name = safe_name(skill.name)
    lines = [f"    Use the saved skill {name}?"]
    changed = ", edited by hand since it was saved" if skill.edited else ""
    lines.append(f"    version {skill.version}{changed}")
    if skill.description:
        # Not cut: it counts as seen.
        told = one_line(skill.description, 5 * MAX_DESCRIPTION_CHARS)
        lines.append(f"    described as: {told}")
    tools = [
        f"{safe_name(server)}.{safe_name(tool)}"
        for server, found in skill.header.tools.items()
        for tool in found
    ]
    more = f" and {len(tools) - 12} more" if len(tools) > 12 else ""
    # Anyone who writes to the file can change that; the source below is what is approved.
    lines.append(f"    its file names as called: {', '.join(tools[:12]) or 'no tool'}{more}")
    if skill.header.provenance is not None:
        lines.append(f"    saved by {_saver(skill.header.provenance)}")
    if stale:
        lines.append(f"    stale, {one_line(stale, 400)}")
    lines += [f"    guard: {one_line(finding, 200)}" for finding in findings[:8]]
    shown, rest = _source(skill)
    lines += ["", *(f"    {line}" for line in shown)]
    if rest:
        approve = f"`mcp-code-bridge skills approve {name}` shows all, and allows it permanently."
        lines += ["", f"Cut: {rest:,} more lines. {approve}"]
    titles = {"once": "This run", "always": "Always, until it changes"}
    choices = {key: titles[key] for key in offered_answers(skill)}
    return form("\n".join(lines), {**choices, "no": "No"})


def offered_answers(skill: Skill) -> Sequence[str]:
    """Return the possible answers; "always" only if the question shows the whole source."""
    _, rest = _source(skill)
    return ("once",) if rest else ("once", "always")


def _source(skill: Skill) -> tuple[list[str], int]:
    return visible_lines(skill.source.rstrip("\n"), 120, 8000)


def _saver(provenance: Provenance) -> str:
    if provenance.anything:
        return "a run that may have read anything"
    servers = sorted(provenance.servers)
    more = f" and {len(servers) - 12} more" if len(servers) > 12 else ""
    named = ", ".join(map(safe_name, servers[:12]))
    labels = ", ".join(map(safe_name, sorted(provenance.labels)[:12]))
    read = f", and read what is {labels}" if labels else ""
    return f"a run that had called {named or 'no server'}{more}{read}"
