"""`skills`: lists, shows, approves and removes the functions that programs have saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from bridge.catalog.program.guard import check
from bridge.catalog.program.survey import Survey
from bridge.cli.options import AsJson, arg
from bridge.cli.output import (
    open_engine,
    visible,
    write_err,
    write_json,
    write_list,
    write_out,
    write_warning,
)
from bridge.cli.terminal import LEAST_DIGITS, Person
from bridge.errors import UsageError
from bridge.gate.question import visible_lines
from bridge.saved_functions.source import Skill
from bridge.settings import Settings
from bridge.text import counted

if TYPE_CHECKING:
    from bridge.runs import Engine


async def list_skills(settings: Settings, *, as_json: AsJson = False) -> int:
    async with open_engine(settings) as engine:
        index = engine.skills.index
        skills = await index.all()
        approved = await index.approvals()
        rows = [_fields(engine, skill, approved) for skill in skills.values()]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "NAME": lambda each: each["name"],
        "VERSION": lambda each: str(each["version"]),
        "STATE": _state,
        "DESCRIPTION": lambda each: each["description"],
    }
    folder = visible(str(index.folder))
    below = f"\n{counted(len(rows), 'skill')} in {folder}\n"
    return write_list(rows, columns, f"No skills in {folder}.", as_json=as_json, below=below)


async def show(
    settings: Settings,
    *,
    name: Annotated[str, arg("NAME", "the skill's name")],
    as_json: AsJson = False,
) -> int:
    async with open_engine(settings) as engine:
        skill = await _skill(engine, name)
        fields = _fields(engine, skill, await engine.skills.index.approvals())
    if as_json:
        write_json({**fields, "source": skill.source}, indent=2)
        return 0
    write_out(_shown(skill))
    write_err(_about(skill, fields, settings))
    digits = skill.digest.removeprefix("sha256:")[:LEAST_DIGITS]
    write_err(
        "To let programs use it as shown, without asking: "
        f"mcp-code-bridge skills approve {skill.name}@{digits}\n"
    )
    return 0


async def approve(
    settings: Settings,
    *,
    names: Annotated[list[str], arg("NAME[@DIGEST]", "shown, and you are asked; or by digest")],
) -> int:
    """Let programs use skills without asking.

    Examples:
        skills approve tidy_names
    """
    refused, person = False, Person()
    async with open_engine(settings) as engine:
        index = engine.skills.index
        approved = await index.approvals()
        for wanted in names:
            name, _, digits = wanted.partition("@")
            skill = await _skill(engine, name)
            # The count tells the user whether the screen shows all lines.
            lines = counted(skill.text.count("\n"), "line")
            if not await person.confirm_digest(
                name,
                skill.digest,
                digits,
                shown=f"{_shown(skill)}{_about(skill, _fields(engine, skill, approved), settings)}",
                question=f"May programs use {name} as shown above ({lines})?",
                command="skills approve",
            ):
                refused = True
                continue
            if not await index.approve(skill):
                raise UsageError(f"{name} has changed since it was shown, and was not approved.")
            if skill.problem:
                write_warning(f"{name} cannot be used: {skill.problem}")
            write_err(f"Approved {name}, version {skill.version}, until it changes.\n")
    return 1 if refused else 0


async def remove(
    settings: Settings,
    *,
    names: Annotated[list[str], arg("NAME", "names of skills")],
) -> int:
    async with open_engine(settings) as engine:
        index = engine.skills.index
        for name in names:
            await _skill(engine, name)
            await index.remove(name)
            write_err(f"Removed {name}.\n")
    return 0


async def _skill(engine: Engine, name: str) -> Skill:
    skills = await engine.skills.index.all()
    if name not in skills:
        from bridge.saved_functions.files import unknown

        raise unknown(name, skills)
    return skills[name]


def _fields(engine: Engine, skill: Skill, approved: set[tuple[str, str]]) -> dict[str, Any]:
    return {
        "name": skill.name,
        "version": skill.version,
        "description": skill.description,
        "signature": skill.signature,
        "tools": [
            f"{server}.{tool}" for server, tools in skill.header.tools.items() for tool in tools
        ],
        "created": skill.header.created,
        "updated": skill.header.updated,
        "digest": skill.digest,
        "approved": (skill.name, skill.digest) in approved,
        "edited": skill.edited,
        "stale": engine.skills.index.stale(skill),
        "problem": skill.problem,
    }


def _state(fields: dict[str, Any]) -> str:
    if fields["problem"]:
        return "unusable"
    words = ["approved" if fields["approved"] else "not reviewed"]
    if fields["edited"]:
        words.append("edited")
    if fields["stale"]:
        words.append("stale")
    return ", ".join(words)


def _shown(skill: Skill) -> str:
    """Return a skill's text with invisible characters made visible."""
    lines, _ = visible_lines(skill.text, len(skill.text), 10 * len(skill.text))
    return "\n".join(lines)


def _about(skill: Skill, fields: dict[str, Any], settings: Settings) -> str:
    findings = check(Survey(skill.code.tree), settings.guard_denies).findings if skill.code else ()
    return "".join(
        [
            f"-- version {skill.version}: {visible(_state(fields), keep='')}\n",
            *(f"guard: {visible(str(finding), keep='')}\n" for finding in findings),
        ]
    )
