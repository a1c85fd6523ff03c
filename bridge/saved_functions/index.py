"""The index of saved skills, read from their files when these change.

It also tells whether the tools that a skill calls have changed. Those are read from its source, and
never taken from a program.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, datetime

import anyio
import anyio.lowlevel
from anyio.to_thread import run_sync as in_thread

from bridge.catalog.program.expected_calls import expected_calls
from bridge.catalog.program.server_references import References, references
from bridge.catalog.program.survey import Survey
from bridge.errors import LibraryError, UnknownError
from bridge.gate.pins import tool_digest
from bridge.gate.provenance import ProvenanceTracker
from bridge.inventory.guide import SKILLS_SERVER
from bridge.inventory.servers import Servers
from bridge.model import Json, Provenance, Tool
from bridge.saved_functions.files import SkillFiles, State
from bridge.saved_functions.provenance import SKILLS, read_by_writers
from bridge.saved_functions.source import Skill, SkillCode, Tools, read_skill
from bridge.settings import Settings, store_of


class SkillIndex:
    def __init__(self, settings: Settings, servers: Servers) -> None:
        self._servers = servers
        self._store = store_of(settings)
        self.folder = settings.skills_dir or settings.state_dir / "skills"
        self.files = SkillFiles(self.folder, self._store)
        self._read: dict[str, tuple[State, Skill]] = {}
        self._turn = anyio.Lock()

    async def all(self) -> Mapping[str, Skill]:
        async with self._turn:
            states = await in_thread(self.files.states)
            changed = {
                name: state
                for name, state in states.items()
                if name not in self._read or self._read[name][0] != state
            }
            texts = await in_thread(self.files.texts, changed) if changed else {}
            for name in [name for name in self._read if name not in states or name in changed]:
                del self._read[name]
            for name, text in texts.items():
                await anyio.lowlevel.checkpoint()
                self._read[name] = (changed[name], read_skill(name, text))
            return {name: self._read[name][1] for name in sorted(self._read)}

    async def get(self, name: str) -> Skill:
        """Return a skill that can be used."""
        skills = await self.all()
        if name not in skills:
            raise unknown(name, skills)
        skill = skills[name]
        if skill.problem:
            raise LibraryError(f"Skill {name!r} cannot be used as its file is: {skill.problem}")
        return skill

    async def as_it_is(self, name: str) -> Skill | None:
        text = await in_thread(self.files.text, name)
        return None if text is None else read_skill(name, text)

    async def save(
        self,
        code: SkillCode,
        description: str,
        provenance: Provenance | None = None,
        *,
        before: Skill | None,
    ) -> tuple[Skill, bool]:
        """Save a source as a skill; return it, and whether it changed."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        tools, only_if = self.tools_of(code), "" if before is None else before.digest
        saved = await in_thread(
            lambda: self.files.save(
                code.name, code.source, description, tools, now, provenance, only_if=only_if
            )
        )
        return read_skill(code.name, saved.text), saved.changed

    async def approve(self, skill: Skill) -> bool:
        return await in_thread(self.files.approve, skill.name, skill.digest)

    async def approved(self) -> set[tuple[str, str]]:
        return await in_thread(self.files.approved)

    async def remove(self, name: str) -> bool:
        """Remove a skill with all its versions, for a person."""
        return await in_thread(lambda: self.files.remove(name, versions=True))

    async def delete(self, skill: Skill, provenance: Provenance | None) -> bool:
        """Remove a skill for a program, if it is unchanged; a version of it stays."""
        remove, digest = self.files.remove, skill.digest
        return await in_thread(
            lambda: remove(skill.name, provenance, versions=False, only_if=digest)
        )

    async def add_provenance(self, tracker: ProvenanceTracker) -> None:
        """Add to a run's labels those of the runs that saved or removed skills.

        Call it before a program learns which skills exist.
        """
        read = await in_thread(read_by_writers, self._store, SKILLS)
        await tracker.add_store("the saved skills", read)

    def references(self, code: SkillCode) -> References:
        return references(Survey(code.tree), self._servers.aliases)

    def tools_of(self, code: SkillCode) -> Tools:
        known = self._servers.inventory
        entries = [known.entry(name) for name in self.references(code).servers]
        found: dict[str, dict[str, str]] = {}
        for call in expected_calls(Survey(code.tree), entries).calls[:200]:
            if call.definition is not None:
                found.setdefault(call.server, {})[call.tool] = tool_digest(call.definition)
        return {server: dict(sorted(tools.items())) for server, tools in sorted(found.items())}

    def stale(self, skill: Skill) -> str:
        """Return which tools of a skill have changed, as far as is known; empty if none has."""
        known = self._servers.inventory
        found: list[str] = []
        for server, tools in skill.header.tools.items():
            if server not in known.aliases:
                found.append(f"there is no server {server!r:.80} any more")
                continue
            if known.tools(server) is None:
                continue
            for name, digest in tools.items():
                tool = known.tool(server, name)
                if tool is None:
                    found.append(f"{server}.{name:.80} is gone")
                elif tool_digest(tool) != digest:
                    found.append(f"{server}.{name:.80} has changed")
        if len(found) > 5:
            found = [*found[:5], f"and {len(found) - 5} more"]
        since = f"since it was saved (version {skill.version}): "
        return f"{since}{'; '.join(found)}" if found else ""

    def at_hand(self, name: str) -> Skill | None:
        return self._read[name][1] if name in self._read else None

    async def indexed(self) -> tuple[Tool, ...]:
        try:
            skills = await self.all()
        except LibraryError:
            return ()
        return tuple(
            Tool(
                server=SKILLS_SERVER,
                name=skill.name,
                description=f"{skill.description}\n{skill.code.docstring}" if skill.code else "",
            )
            for skill in skills.values()
            if not skill.problem
        )

    def docs(self, name: str) -> dict[str, Json] | None:
        skill = self.at_hand(name)
        if skill is None:
            return None
        docs: dict[str, Json] = {
            "server": "skills",
            "serverAlias": "skills",
            "tool": name,
            "toolAlias": name,
            "kind": "skill",
            "signature": f"{skill.import_line}; {skill.signature}",
            "description": skill.description,
        }
        stale = self.stale(skill)
        if stale:
            docs["stale"] = stale
            docs["description"] = f"{skill.description} (Stale: {stale})".strip()
        return docs


def unknown(name: str, names: Mapping[str, object]) -> UnknownError:
    near = difflib.get_close_matches(name[:100], list(names), n=1)
    told = f"No skill is called {name!r:.80}."
    listed = ", ".join(list(names)[:10]) or "none yet; runtime.save_skill(function) saves one"
    hint = f"Did you mean {near[0]!r}?" if near else f"Saved: {listed}."
    return UnknownError(f"{told} {hint}", code="unknown_skill")
