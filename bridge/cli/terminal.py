"""The user at a terminal, as the client of a run.

Owns the questions of servers on a terminal: a line for each field of a form, on stderr, so that the
program's output stays its own. Without a terminal nobody is asked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import TextIO

import anyio

from bridge.cli.output import hold_logs, visible
from bridge.cli.person import MAX_TRIES, Person
from bridge.errors import CannotAskError
from bridge.model import Json

logger = logging.getLogger(__name__)

MAX_FIELDS = 50  # Fields of a form: more is too much to fill in line by line.

_WORDS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO}
_LEVELS["warning"] = logging.WARNING


class Terminal:
    """Asks on one stream and reads from another; both have to be a terminal."""

    def __init__(self, reader: TextIO, writer: TextIO, *, drawn: bool = True) -> None:
        self._person = Person(reader, writer, drawn=drawn)
        self._writer = writer
        self._turn = anyio.Lock()

    @property
    def identity(self) -> Hashable:
        """There is one."""
        return "terminal"

    @property
    def attended(self) -> bool:
        """Whether a person can be asked here."""
        return self._person.attended

    @property
    def wants_progress(self) -> bool:
        """Whether output goes to a person, who has not asked for less."""
        return self._writer.isatty() and logger.isEnabledFor(logging.INFO)

    @property
    def log_level(self) -> str:
        """As much as the bridge's own log shows."""
        if logger.isEnabledFor(logging.DEBUG):
            return "debug"
        return "info" if logger.isEnabledFor(logging.INFO) else "warning"

    @property
    def wants_output(self) -> bool:
        """Not in the log: it comes with the result."""
        return False

    @property
    def program(self) -> str:
        """None: a person types the answers."""
        return ""

    @property
    def visits(self) -> bool:
        """Not for the bridge: a person at a terminal has `login`."""
        return False

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        logger.info("%s", visible(message, keep=""))

    async def log(self, level: str, source: str, data: Json) -> None:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        # On one line, or what follows could pass for something of the bridge's.
        shown = visible(f"{source}: {text}", keep="")
        logger.log(_LEVELS.get(level, logging.ERROR), "%s", shown)

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Ask, field by field; the end of input (Ctrl-D) declines. Nothing is logged meanwhile.

        Raises:
            CannotAskError: There is no terminal, or the form is not one for lines.
        """
        if not self.attended:
            raise CannotAskError("Nobody can be asked: this run has no terminal.")
        async with self._turn:
            with hold_logs():
                return await self._fill_form(params)

    async def _fill_form(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        message = str(params.get("message", ""))
        # Those of servers begin with their names in brackets.
        own = not message.startswith("[")
        self._person.write_heading("Approval needed" if own else "A server asks")
        self._person.write(f"{message}\n(Ctrl-D declines.)\n")
        if params.get("mode") == "url":
            return await self._visit(str(params.get("url", "")))
        return await self._fill(params.get("requestedSchema"))

    async def sample(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Refuse.

        Raises:
            CannotAskError: Always; there is no model at a terminal.
        """
        raise CannotAskError("Nobody can be asked: a terminal has no model to sample.")

    async def roots(self) -> list[Json]:
        """Return none: a terminal's directory is no workspace."""
        return []

    async def _visit(self, url: str) -> Mapping[str, Json]:
        done = await self._person.ask(f"Open {url} in a browser, then press Enter: ")
        return {"action": "decline" if done is None else "accept"}

    async def _fill(self, schema: Json) -> Mapping[str, Json]:
        fields = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(schema, dict) or not isinstance(fields, dict):
            fields, schema = {}, {}
        if len(fields) > MAX_FIELDS:
            raise CannotAskError(f"The form has {len(fields)} fields, too many for a terminal.")
        required = schema.get("required")
        content: dict[str, Json] = {}
        for name, field in fields.items():
            described = field if isinstance(field, dict) else {}
            needed = isinstance(required, list) and name in required
            for _ in range(MAX_TRIES):
                line = await self._person.ask(prompt(name, described, needed=needed))
                if line is None:
                    return {"action": "decline"}
                try:
                    value = read_field(described, line.strip(), needed=needed)
                except ValueError as error:
                    wrong = f"{line.strip():.60} is not a valid answer. " if line.strip() else ""
                    self._person.write(f"  {visible(wrong, keep='')}{error}\n")
                    continue
                if value is not None:
                    content[name] = value
                break
            else:
                return {"action": "cancel"}
        if not fields and await self._person.ask("Press Enter to accept: ") is None:
            return {"action": "decline"}
        return {"action": "accept", "content": content}


def prompt(name: str, field: Mapping[str, Json], *, needed: bool) -> str:
    """Return what asks for a field: a line, below its choices if they have titles. Pure."""
    title = visible(str(field.get("title") or name), keep="")
    facts = [visible(str(field.get("description") or ""), keep="")]
    choices = _choices(field)
    titles = _titles(field)
    listed = ""
    if titles:
        lines = zip(choices, titles, strict=True)
        listed = "".join(
            # On one line each, or a title could pass for another choice.
            f"  {number}. {visible(about, keep='')} [{visible(str(choice), keep='')}]\n"
            for number, (choice, about) in enumerate(lines, 1)
        )
        facts.append(f"1-{len(choices)}, or a word in brackets")
    elif choices:
        facts.append("one of " + visible(", ".join(map(str, choices)), keep=""))
    elif field.get("type") not in ("string", None):
        facts.append(visible(str(field.get("type")), keep=""))
    if field.get("default") is not None:
        facts.append(visible(f"default {field['default']}", keep=""))
    elif not needed:
        facts.append("may be empty")
    about = "; ".join(fact for fact in facts if fact)
    return f"{listed}{title} ({about}): " if about else f"{title}: "


def read_field(field: Mapping[str, Json], text: str, *, needed: bool) -> Json:
    """Return the value that a line means; None for none. Pure.

    Raises:
        ValueError: It means none that fits; says which would.
    """
    if not text:
        if field.get("default") is not None:
            return field["default"]
        if needed:
            raise ValueError("An answer is required.")
        return None
    choices = _choices(field)
    kind = field.get("type")
    if kind == "array":
        return [item.strip() for item in text.split(",") if item.strip()]
    if choices:
        return _parse_choice(field, choices, text)
    if kind == "boolean":
        if text.lower() not in _WORDS:
            raise ValueError("Answer yes or no.")
        return _WORDS[text.lower()]
    if kind in ("integer", "number"):
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            message = f"This has to be {'a whole' if kind == 'integer' else 'a'} number."
            raise ValueError(message) from None
    return text


def _parse_choice(field: Mapping[str, Json], choices: Sequence[Json], text: str) -> Json:
    words = [str(choice) for choice in choices]
    if text in words:
        return choices[words.index(text)]
    numbers = [str(number) for number in range(1, len(choices) + 1)]
    titles = _titles(field)
    if text in numbers and titles:
        return choices[numbers.index(text)]
    if titles and text.lower() in _WORDS:
        # Where a single choice is a yes, or a no, that is the one meant.
        word = "yes" if _WORDS[text.lower()] else "no"
        meant = [
            choice
            for choice, title in zip(choices, titles, strict=True)
            if title.partition(",")[0].lower() == word
        ]
        if len(choices) == 2 and "no" in choices and word == "yes":
            meant = [choice for choice in choices if choice != "no"]
        if len(meant) == 1:
            return meant[0]
    raise ValueError(f"Choose one of {', '.join(words)}{', or its number' if titles else ''}.")


def _choices(field: Mapping[str, Json]) -> list[Json]:
    named = field.get("enum")
    return named if isinstance(named, list) else [one["const"] for one in _options(field)]


def _titles(field: Mapping[str, Json]) -> list[str]:
    """Return what the choices are called, if all of them are."""
    names = field.get("enumNames")
    if not isinstance(field.get("enum"), list):
        names = [one.get("title") for one in _options(field)]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []
    return names if len(names) == len(_choices(field)) else []


def _options(field: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    titled = field.get("oneOf")
    listed = titled if isinstance(titled, list) else []
    return [entry for entry in listed if isinstance(entry, dict) and "const" in entry]
