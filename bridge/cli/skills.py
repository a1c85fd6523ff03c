"""`skills`: what programs have saved for later ones, listed, shown, approved of and removed."""

from __future__ import annotations

import argparse
import json
from typing import Any

import anyio.to_thread

from bridge.catalog.guard import check
from bridge.cli.output import table, terminal_width, visible, write_err, write_out
from bridge.engine import Engine, open_engine
from bridge.engine.skills.shelf import unknown
from bridge.errors import UnknownSkillError
from bridge.library.skills import Skill
from bridge.settings import Settings
from bridge.text import counted

_HEADINGS = ("NAME", "VERSION", "STATE", "DESCRIPTION")


async def list_skills(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the skills there are."""
    async with open_engine(settings) as engine:
        shelf = engine.skills.shelf
        skills = await shelf.all()
        approved = await anyio.to_thread.run_sync(shelf.approvals.all)
        found = [_fields(engine, skill, approved) for skill in skills.values()]
    if arguments.json:
        write_out(json.dumps(found, ensure_ascii=False, indent=2) + "\n")
    elif found:
        rows = [
            (each["name"], str(each["version"]), _state(each), each["description"])
            for each in found
        ]
        write_out(table(_HEADINGS, rows, width=terminal_width()))
        write_out(f"\n{counted(len(found), 'skill')} in {visible(str(shelf.folder))}\n")
    else:
        write_err(f"No skill is saved in {visible(str(shelf.folder))}.\n")
    return 0


async def show(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print a skill's file, and on stderr what else there is to know of it."""
    async with open_engine(settings) as engine:
        skill = await _skill(engine, arguments.name)
        approved = await anyio.to_thread.run_sync(engine.skills.shelf.approvals.all)
        fields = _fields(engine, skill, approved)
    if arguments.json:
        write_out(
            json.dumps({**fields, "source": skill.source}, ensure_ascii=False, indent=2) + "\n"
        )
        return 0
    write_out(visible(skill.text))
    write_err(f"-- version {skill.version}: {visible(_state(fields), keep='')}\n")
    _write_findings(skill)
    return 0


async def approve(arguments: argparse.Namespace, settings: Settings) -> int:
    """Approve of skills as they are now; programs may use them without asking from then on."""
    async with open_engine(settings) as engine:
        for name in arguments.names:
            skill = await _skill(engine, name)
            if skill.problem:
                write_err(f"warning: {name} cannot be used as it is: {visible(skill.problem)}\n")
            _write_findings(skill)
            approvals = engine.skills.shelf.approvals
            await anyio.to_thread.run_sync(approvals.add, skill.name, skill.digest)
            write_err(
                f"{name}, version {skill.version}, may be used as long as it stays as it is.\n"
            )
    return 0


async def remove(arguments: argparse.Namespace, settings: Settings) -> int:
    """Remove skills, with the versions that were saved of them."""
    async with open_engine(settings) as engine:
        shelf = engine.skills.shelf
        for name in arguments.names:
            if not await shelf.remove(name, versions=True):
                raise UnknownSkillError(unknown(name, await shelf.all()))
            write_err(f"Removed {name}.\n")
    return 0


async def _skill(engine: Engine, name: str) -> Skill:
    skills = await engine.skills.shelf.all()
    if name not in skills:
        raise UnknownSkillError(unknown(name, skills))
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
        "approved": (skill.name, skill.digest) in approved,
        "edited": skill.edited,
        "stale": engine.skills.shelf.stale(skill),
        "problem": skill.problem,
    }


def _state(fields: dict[str, Any]) -> str:
    """Say in a few words how a skill is."""
    if fields["problem"]:
        return "unusable"
    words = ["approved" if fields["approved"] else "not reviewed"]
    if fields["edited"]:
        words.append("edited")
    if fields["stale"]:
        words.append("stale")
    return ", ".join(words)


def _write_findings(skill: Skill) -> None:
    for finding in check(skill.code.tree).findings if skill.code is not None else ():
        write_err(f"guard: {visible(str(finding))}\n")
