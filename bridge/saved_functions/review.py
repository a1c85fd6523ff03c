"""Whether a skill may be used: by the policy, by what a person has approved of, or by asking one.

Owns the order of these, the question, and what holds for one run or until the bridge ends. What was
saved by the caller itself while this bridge runs needs no review, as that program was run already,
unless a person has approved of anything under its name: then that name stands for what they saw.
Owns, too, what a program may not replace or remove without a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

import anyio

from bridge.callers.client import RunCaller
from bridge.catalog.program.guard import check
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
from bridge.model import Action, Json, Provenance
from bridge.saved_functions.source import MAX_DESCRIPTION_CHARS, Skill

if TYPE_CHECKING:
    from bridge.saved_functions.skills import Skills

_INDENT = "    "


class Review:
    """What one run may use; one question at a time."""

    def __init__(self, skills: Skills, *, policy: Action, caller: str, run: RunCaller) -> None:
        self._skills = skills
        self._policy = policy
        self._caller = caller
        self._run = run
        self._turn = anyio.Lock()
        self._answers: dict[tuple[str, str], bool] = {}
        self._seen: set[tuple[str, str]] = set()

    def check(self, doing: str) -> None:
        """Check that the caller may use skills at all."""
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
            # What is saved is checked then; its file may be another now.
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
                digests = await self._approved(skill)
                if self._skills.is_own(self._caller, skill, digests):
                    return
                approved = skill.digest in digests
            if not approved:
                if key in self._answers:
                    raise _refused(skill, "was refused before in this run")
                findings = () if scan is None else tuple(map(str, scan.findings))
                await self._ask(skill, findings)
            self._answers[key] = True

    async def _approved(self, skill: Skill) -> Set[str]:
        approved = await self._skills.shelf.approved()
        return {digest for name, digest in approved if name == skill.name}

    async def is_reviewed(self, skill: Skill) -> bool:
        digests = await self._approved(skill)
        return skill.digest in digests or self._skills.is_own(self._caller, skill, digests)

    async def add_provenance(self, skill: Skill, tracker: ProvenanceTracker) -> bool:
        """Add to a run's labels those of the run that saved a skill it gets to see.

        Not once a person has reviewed it, who was shown what it is and where it comes from: from
        then on it is theirs, as what they write themselves.

        Returns:
            Whether a person has.
        """
        if (skill.name, skill.digest) in self._seen or skill.digest in await self._approved(skill):
            return True
        await tracker.add(f"skill '{skill.name}'", skill.header.provenance)
        return False

    async def protection(self, skill: Skill, doing: str) -> Decision | None:
        """Return what is asked before a program replaces or removes a skill; None if nothing is.

        Nothing is of what the same caller saved itself, while this bridge runs, and no person has
        approved of. Anything else may be what a person wrote.
        """
        digests = await self._approved(skill)
        if self._skills.is_own(self._caller, skill, digests):
            return None
        reason = f"{doing} {skill.name!r}, which a person may have written"
        # An answer counts only from an identified caller.
        action: Action = "ask" if self._caller else "deny"
        return Decision(action=action, rule="a skill that is there", reason=reason)

    async def _ask(self, skill: Skill, findings: tuple[str, ...]) -> None:
        key = (skill.name, skill.digest)
        choices = offered(skill)
        asked = question(skill, self._skills.shelf.stale(skill), findings)
        try:
            answer = await self._run.elicit(asked)
        except CannotAskError as error:
            name = skill.name
            message = (
                f"The skill {name!r} has to be reviewed by a person before it is used. {error.why}"
            )
            remedy = (
                f"The user can look at it and allow it: `mcp-code-bridge skills approve {name}`."
            )
            raise ApprovalNeededError(message, remedy=remedy) from None
        decision = read_answer(answer, choices, "once")
        if decision not in choices:
            self._answers[key] = False
            what = "declined" if decision else "gave no answer"
            raise _refused(skill, f"was not used: the client, asked for a review, {what}")
        self._seen.add(key)
        if decision == "always":
            try:
                await self._skills.shelf.approve(skill)
            except LibraryError:
                # It holds for the run, and is asked about again in the next.
                return


def _refused(skill: Skill, what: str) -> RefusedError:
    message = f"The skill {skill.name!r} {what}."
    remedy = "Do without it, or write the code into the program."
    return ApprovalRefusedError(message, remedy=remedy)


def question(skill: Skill, stale: str, findings: tuple[str, ...]) -> Mapping[str, Json]:
    """Return the parameters of the question whether a skill may be used."""
    name = safe_name(skill.name)
    lines = [f"{_INDENT}Use the saved skill {name}?"]
    changed = ", edited by hand since it was saved" if skill.edited else ""
    lines.append(f"{_INDENT}version {skill.version}{changed}")
    if skill.description:
        # The whole: it counts as seen.
        told = one_line(skill.description, 5 * MAX_DESCRIPTION_CHARS)
        lines.append(f"{_INDENT}described as: {told}")
    tools = [
        f"{safe_name(server)}.{safe_name(tool)}"
        for server, found in skill.header.tools.items()
        for tool in found
    ]
    more = f" and {len(tools) - 12} more" if len(tools) > 12 else ""
    # Anybody who writes to the file can change that; the source below is what is approved of.
    lines.append(f"{_INDENT}its file names as called: {', '.join(tools[:12]) or 'no tool'}{more}")
    if skill.header.provenance is not None:
        lines.append(f"{_INDENT}saved by {_saver(skill.header.provenance)}")
    if stale:
        lines.append(f"{_INDENT}stale, {one_line(stale, 400)}")
    lines += [f"{_INDENT}guard: {one_line(finding, 200)}" for finding in findings[:8]]
    shown, rest = _source(skill)
    lines += ["", *(f"{_INDENT}{line}" for line in shown)]
    if rest:
        approve = f"`mcp-code-bridge skills approve {name}` shows all, and allows it permanently."
        lines += ["", f"Cut: {rest:,} more lines. {approve}"]
    titles = {"once": "This run", "always": "Always, until it changes"}
    return form("\n".join(lines), {**{key: titles[key] for key in offered(skill)}, "no": "No"})


def offered(skill: Skill) -> Sequence[str]:
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
