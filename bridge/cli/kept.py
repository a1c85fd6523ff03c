"""What programs have left: files and outputs (`artifacts`), and saved functions (`skills`)."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio.to_thread

from bridge.artifacts.content import is_text
from bridge.artifacts.store import ArtifactStore, store_for
from bridge.catalog.program.guard import check
from bridge.catalog.program.survey import Survey
from bridge.cli.options import AsJson, Yes, arg, complete_runs, flag, opt
from bridge.cli.output import (
    open_engine,
    visible,
    write_err,
    write_json,
    write_list,
    write_out,
    write_warning,
)
from bridge.cli.records import moment
from bridge.cli.terminal import LEAST_DIGITS, Person
from bridge.errors import UnknownError, UsageError
from bridge.gate.question import visible_lines
from bridge.model import STREAMS, Artifact, Json
from bridge.render.structured import artifact_fields
from bridge.render.text import size_text
from bridge.saved_functions.source import Skill
from bridge.settings import Settings
from bridge.text import counted

if TYPE_CHECKING:
    from bridge.runs import Engine

_SHORT = 10  # Characters of an id, a digest or a run in the table: thousands stay distinct.

_URI_HELP = "or the beginning of an id or a digest"


async def list_kept(
    settings: Settings,
    *,
    run: Annotated[
        str | None,
        opt("RUN", "only this run's; or the beginning of its id", completes=complete_runs),
    ] = None,
    as_json: AsJson = False,
) -> int:
    store = store_for(settings)
    run_id = await anyio.to_thread.run_sync(partial(_run_id, store, run))
    artifacts = await anyio.to_thread.run_sync(partial(store.find_all, None, run_id))
    now = time.time()
    # An output's URI holds its run's id, so the table shows the shorter digest.
    columns: dict[str, Callable[[Artifact], str]] = {
        "ID": lambda each: (each.digest if each.kind in STREAMS else each.uri.rpartition("/")[2])[
            :_SHORT
        ],
        "NAME": lambda each: each.kind if each.kind in STREAMS else each.name,
        "TYPE": lambda each: each.mime_type,
        "SIZE": lambda each: size_text(each.size),
        "AGE": lambda each: _span(now - each.created),
        "EXPIRES": lambda each: f"in {_span(each.expires - now, begun=True)}",
        "RUN": lambda each: each.run_id[:_SHORT],
    }
    total = sum(each.size for each in artifacts)
    return write_list(
        artifacts,
        columns,
        "No artifacts.",
        as_json=as_json,
        drop=("TYPE", "EXPIRES", "RUN"),
        below=f"\n{counted(len(artifacts), 'artifact')}, {size_text(total)}.\n",
        fields=_fields,
    )


async def get(
    settings: Settings,
    *,
    uri: Annotated[str, arg("URI", _URI_HELP)],
    output: Annotated[str, opt("FILE", "- for stdout", "-o")] = "-",
    force: Annotated[bool, flag("--force", "replace FILE if it exists")] = False,
) -> int:
    """Examples: artifacts get 3f9a -o report.csv"""
    if "?" in uri:
        message = "Only whole artifacts can be fetched."
        raise UsageError(message, remedy="Select a part with head, tail or sed.")
    await anyio.to_thread.run_sync(partial(_get, store_for(settings), uri, output, force=force))
    return 0


async def remove_artifacts(
    settings: Settings,
    *,
    uris: Annotated[list[str] | None, arg("URI", _URI_HELP)] = None,
    run: Annotated[
        str | None, opt("RUN", "all artifacts of this run", completes=complete_runs)
    ] = None,
    everything: Annotated[bool, flag("--all", "all artifacts of all runs")] = False,
    yes: Yes = False,
) -> int:
    if sum((bool(uris), run is not None, everything)) != 1:
        raise UsageError("Nothing selected. Pass artifact IDs, --run RUN or --all.")
    store = store_for(settings)
    person = Person()
    asks = everything and person.attended
    if asks and not await person.agrees("Remove all artifacts of all runs?", yes=yes):
        return 1
    count = await anyio.to_thread.run_sync(partial(_remove, store, uris or (), run))
    write_err(f"Removed {counted(count, 'artifact')}.\n")
    return 0


def _remove(store: ArtifactStore, uris: Sequence[str], run: str | None) -> int:
    if not uris:
        return store.remove_all(None, _run_id(store, run))
    # All ids are resolved first, so that a wrong one removes nothing.
    selected = set()
    for uri in uris:
        with _explain_ids():
            selected.add(store.find(None, uri).uri)
    for uri in selected:
        store.remove(None, uri)
    return len(selected)


@contextmanager
def _explain_ids() -> Iterator[None]:
    try:
        yield
    except UnknownError as error:
        if error.remedy:
            raise
        remedy = "`artifacts list` shows the ids; the first four characters are enough."
        raise UnknownError(error.message, remedy=remedy, code="unknown_artifact") from None


def _run_id(store: ArtifactStore, beginning: str | None) -> str:
    """Return the id of the one run with artifacts that begins so; "" without a beginning."""
    if beginning is None:
        return ""
    runs = {each.run_id for each in store.find_all(None) if each.run_id.startswith(beginning)}
    if beginning in runs:
        return beginning
    if not beginning or len(runs) != 1:
        which = f"{len(runs):,} runs begin" if runs else "No run with artifacts begins"
        message = f"{which} with {beginning!r:.80}."
        raise UnknownError(message, remedy="`artifacts list` shows them.", code="unknown_artifact")
    return runs.pop()


def _get(store: ArtifactStore, uri: str, output: str, *, force: bool) -> None:
    with _explain_ids(), store.opened(None, uri) as content:
        if output != "-":
            # Imported here: it takes a second, and stdout does without it.
            from bridge.cli.run_files import DIRECTORY, closing, write_file

            try:
                path = Path(output)
                with closing(os.open(path.parent, DIRECTORY)) as parent:
                    write_file(parent, path.name, content.pieces(), force=force)
            except FileExistsError:
                message = f"{output} already exists."
                raise UsageError(message, remedy="Use --force to replace it.") from None
            except OSError as error:
                message = f"{output} cannot be written: {error.strerror or error}."
                raise UsageError(message) from error
        elif not sys.stdout.isatty():
            sys.stdout.buffer.writelines(content.pieces())
            sys.stdout.buffer.flush()
        elif is_text(content.artifact.mime_type):
            write_out(content.whole().decode("utf-8", "replace"))
        else:
            artifact = content.artifact
            message = f"{artifact.name!r} is {artifact.mime_type}, and stdout is a terminal."
            raise UsageError(message, remedy="Write it to a file: -o FILE.")


def _fields(artifact: Artifact) -> dict[str, Json]:
    return {
        **artifact_fields(artifact),
        "runId": artifact.run_id,
        "created": moment(artifact.created),
        "expires": moment(artifact.expires),
    }


def _span(seconds: float, *, begun: bool = False) -> str:
    """Format a duration in its largest unit: "3 d", "12 min"; `begun` rounds up."""
    for unit, name in ((24 * 3600, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{math.ceil(seconds / unit) if begun else int(seconds // unit):,} {name}"
    return f"{max(int(seconds), 0)} s"


async def list_skills(settings: Settings, *, as_json: AsJson = False) -> int:
    async with open_engine(settings) as engine:
        index = engine.skills.index
        skills = await index.all()
        approved = await index.approvals()
        rows = [_skill_fields(engine, skill, approved) for skill in skills.values()]
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "NAME": lambda each: each["name"],
        "VERSION": lambda each: str(each["version"]),
        "STATE": _state_text,
        "DESCRIPTION": lambda each: each["description"],
    }
    folder = visible(str(index.folder))
    below = f"\n{counted(len(rows), 'skill')} in {folder}\n"
    return write_list(rows, columns, f"No skills in {folder}.", as_json=as_json, below=below)


async def show_skill(
    settings: Settings,
    *,
    name: Annotated[str, arg("NAME", "the skill's name")],
    as_json: AsJson = False,
) -> int:
    async with open_engine(settings) as engine:
        skill = await engine.skills.index.get(name, usable=False)
        fields = _skill_fields(engine, skill, await engine.skills.index.approvals())
    if as_json:
        write_json({**fields, "source": skill.source}, indent=2)
        return 0
    write_out(_skill_text(skill))
    write_err(_about_skill(skill, fields, settings))
    digits = skill.digest.removeprefix("sha256:")[:LEAST_DIGITS]
    write_err(
        "To let programs use it as shown, without asking: "
        f"mcp-code-bridge skills approve {skill.name}@{digits}\n"
    )
    return 0


async def approve_skills(
    settings: Settings,
    *,
    names: Annotated[list[str], arg("NAME[@DIGEST]", "shown, and you are asked; or by digest")],
) -> int:
    """Examples: skills approve tidy_names"""
    refused, person = False, Person()
    async with open_engine(settings) as engine:
        index = engine.skills.index
        approved = await index.approvals()
        for wanted in names:
            name, _, digits = wanted.partition("@")
            skill = await index.get(name, usable=False)
            # The count tells the user whether the screen shows all lines.
            lines = counted(skill.text.count("\n"), "line")
            about = _about_skill(skill, _skill_fields(engine, skill, approved), settings)
            if not await person.confirm_digest(
                name,
                skill.digest,
                digits,
                shown=f"{_skill_text(skill)}{about}",
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


async def remove_skills(
    settings: Settings, *, names: Annotated[list[str], arg("NAME", "names of skills")]
) -> int:
    async with open_engine(settings) as engine:
        index = engine.skills.index
        for name in names:
            await index.get(name, usable=False)
            await index.remove(name)
            write_err(f"Removed {name}.\n")
    return 0


def _skill_fields(engine: Engine, skill: Skill, approved: set[tuple[str, str]]) -> dict[str, Any]:
    return {
        "name": skill.name,
        "version": skill.version,
        "description": skill.description,
        "signature": skill.signature,
        "tools": skill.header.tool_names,
        "created": skill.header.created,
        "updated": skill.header.updated,
        "digest": skill.digest,
        "approved": (skill.name, skill.digest) in approved,
        "edited": skill.edited,
        "stale": engine.skills.index.stale(skill),
        "problem": skill.problem,
    }


def _state_text(fields: dict[str, Any]) -> str:
    if fields["problem"]:
        return "unusable"
    words = ["approved" if fields["approved"] else "not reviewed"]
    if fields["edited"]:
        words.append("edited")
    if fields["stale"]:
        words.append("stale")
    return ", ".join(words)


def _skill_text(skill: Skill) -> str:
    """Return a skill's text with invisible characters made visible."""
    lines, _ = visible_lines(skill.text, len(skill.text), 10 * len(skill.text))
    return "\n".join(lines)


def _about_skill(skill: Skill, fields: dict[str, Any], settings: Settings) -> str:
    findings = check(Survey(skill.code.tree), settings.guard_denies).findings if skill.code else ()
    lines = [f"-- version {skill.version}: {_state_text(fields)}"]
    lines += [f"guard: {finding}" for finding in findings]
    return "".join(f"{visible(line, keep='')}\n" for line in lines)
