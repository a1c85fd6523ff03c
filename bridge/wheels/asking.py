"""Asking a resolver once: its directory, its process, its answer, or why there is none.

Owns what becomes of a resolver that fails: an error which says what of the wish cannot be met, from
the index's own pages where they tell, else in the resolver's words.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bridge.errors import PackageUnavailableError
from bridge.saving import UNFINISHED
from bridge.settings.dependencies import Dependencies
from bridge.wheels import fetching, offers, tools
from bridge.wheels.allowed import entries_for
from bridge.wheels.child import run_child
from bridge.wheels.pins import Pin
from bridge.wheels.target import Target
from bridge.wheels.tools import Tool

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""Of what a resolver writes; each package has its whole description in it."""

MAX_EXPLAINED = 5
"""Packages that are looked up on the index to explain a failure."""

SAY_SECONDS = 0.5
"""Between two steps that whoever waits is told of; nobody reads faster."""

Say = Callable[[str], Awaitable[None]]
"""Tells whoever asked how it gets on."""


class Paced:
    """Tells no more than can be read: what comes too soon after something else is left out."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said = -SAY_SECONDS

    async def say(self, text: str) -> None:
        """Tell it, unless something was told just now."""
        if text and anyio.current_time() - self._said >= SAY_SECONDS:
            self._said = anyio.current_time()
            await self._say(text)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a resolver is to find.

    Attributes:
        texts: Requirements.
        limits: Requirements that ask for nothing.
    """

    texts: Sequence[str]
    limits: Sequence[str]
    target: Target


async def ask(
    tool: Tool,
    question: Question,
    dependencies: Dependencies,
    environ: Mapping[str, str],
    directory: Path,
    say: Say,
) -> tuple[Pin, ...]:
    """Return what a resolver finds.

    Args:
        environ: The bridge's environment.
        directory: Where the resolver gets one of its own, which is removed; if the bridge is killed
            meanwhile, by whoever clears that up.

    Raises:
        PackageRefusedError: What is there may not be used.
        PackageUnavailableError: It finds nothing, or answers something that is not understood.
    """
    make = partial(tempfile.mkdtemp, prefix=UNFINISHED, dir=directory)
    place = Path(await anyio.to_thread.run_sync(make))
    steps = Paced(say)
    try:
        (place / tools.REQUIREMENTS).write_text(tools.wishes(question.texts, dependencies))
        (place / tools.CONSTRAINTS).write_text("\n".join([*question.limits, ""]))

        async def heard(line: str) -> None:
            await steps.say(tool.step(line))

        status, said = await run_child(
            tool.order(place, dependencies, question.target),
            tools.surroundings(environ, place),
            place,
            file_bytes=dependencies.max_bytes,
            heard=heard,
        )
        if status != 0:
            words = tools.said(said, dependencies, place)
            raise await _not_found(tool, question, words, dependencies)
        try:
            with (place / tools.ANSWER).open("rb") as file:
                answer = file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
            return tool.answer(answer, question.target)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{tool.name} answered something that is not understood: {error!r:.200}."
            raise PackageUnavailableError(message, remedy=f"Update {tool.name}.") from None
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, place, ignore_errors=True))


async def _not_found(
    tool: Tool, question: Question, words: str, dependencies: Dependencies
) -> PackageUnavailableError:
    """Return the error on what a resolver did not find."""
    about: dict[str, None] = {}
    remedies: dict[str, None] = {}
    async with fetching.client(dependencies) as http:
        for requirement in _suspects(question.texts, words):
            found = await offers.offer(requirement.name, dependencies, http)
            entries = entries_for(requirement.name, dependencies.allow)
            judge = partial(offers.lacking, requirement, found, question.target, entries)
            why, remedy = await anyio.to_thread.run_sync(judge)
            if why:
                about[why], remedies[remedy] = None, None
            if found.problem:
                # So it is with the others.
                break
    message = f"{', '.join(question.texts)[:200]} cannot be had."
    if not about:
        message = f"{message} {tool.name} says: {words}" if words else message
        remedies["Ask for versions that go together, or leave them open."] = None
    return PackageUnavailableError(" ".join([message, *about]), remedy=" ".join(remedies))


def _suspects(texts: Sequence[str], words: str) -> list[Requirement]:
    """Return what a resolver may not have found: what it was asked for, and what it names."""
    named = tools.not_found(words)
    found: dict[str, Requirement] = {}
    for text in [*([named] if named else []), *texts]:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        requirement.name = canonicalize_name(requirement.name)
        requirement.marker = None
        found.setdefault(str(requirement), requirement)
    return list(found.values())[:MAX_EXPLAINED]
