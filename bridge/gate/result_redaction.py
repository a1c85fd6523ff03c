"""Removes this machine's secrets from a run's result, and puts secrets back into arguments.

Only the server that returned a secret gets it back. A mark without exactly one text refuses the
call.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from operator import is_not
from typing import Any

from bridge.errors import BridgeError, CallDeniedError, InvalidRequestError, ToolCallError
from bridge.event_loop import offload
from bridge.gate.redaction import MARK, Redactor, as_json
from bridge.model import Json, RunResult, Tool

NOT_SHOWN = "[left out: it could not be searched for secrets]"

_OWN_WORDS = frozenset(
    (
        *("run_id", "plan_id", "session_id", "uri", "digest", "audit"),
        *("status", "reason", "code", "state", "severity", "source", "effect", "action"),
        *("isolation", "usage", "provenance"),
    )
)
"""Fields of a result without text of a program or server."""

_TOOL_FIELDS = ("name", "title", "description", "input_schema", "output_schema", "annotations")


async def redact_outcome(work: Awaitable[RunResult], redactor: Redactor) -> RunResult:
    """Return a run's result, or raise its error, without secrets."""
    try:
        result = await work
    except BridgeError as error:
        # In place, since other code may hold the error.
        error.message = redactor.text(error.message)
        error.host_detail = redactor.text(error.host_detail)
        error.remedy = redactor.text(error.remedy)
        error.args = (error.message,)
        if isinstance(error, ToolCallError):
            error.data = clear_value(error.data, redactor)
        raise
    return await offload(result.result, partial(clear_result, result, redactor))


def clear_result(value: Any, redactor: Redactor) -> Any:
    """Return a result, or a part of one, without secrets; the same object if it has none."""
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, tuple):
        items = tuple(clear_result(item, redactor) for item in value)
        return items if any(map(is_not, items, value)) else value
    if isinstance(value, (dict, list)):
        return clear_value(value, redactor)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for field in fields(value):
        if field.name not in _OWN_WORDS:
            before = getattr(value, field.name)
            if (after := clear_result(before, redactor)) is not before:
                changes[field.name] = after
    return replace(value, **changes) if changes else value


def clear_value(value: Json, redactor: Redactor) -> Json:
    """Return a JSON value without secrets. Other values are left out."""
    try:
        return redactor.value(value)
    except (ValueError, TypeError):
        return NOT_SHOWN


def clear_tools(tools: tuple[Tool, ...], redactor: Redactor) -> tuple[Tool, ...]:
    """Return tools without secrets in their descriptions.

    A tool with a secret in its name is left out, since another name could not be called.
    """
    found = []
    for tool in tools:
        before = [getattr(tool, name) for name in _TOOL_FIELDS]
        try:
            after = redactor.value(before)
        except (ValueError, TypeError):
            # Its schema is nested too deeply.
            continue
        if after is before:
            found.append(tool)
        elif after[0] == tool.name:
            found.append(replace(tool, **dict(zip(_TOOL_FIELDS, after, strict=True))))
    return tools if found == list(tools) else tuple(found)


@contextmanager
def clear_logs(redactor: Redactor) -> Iterator[None]:
    """Redact the bridge's log while this is open, because clients store and show it."""
    formatter = logging.Formatter()

    def clear(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (cleared_text := redactor.text(message)) is not message:
            record.msg, record.args = cleared_text, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redactor.text(record.exc_text)
        return True

    handlers = tuple(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(clear)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(clear)


Replaced = dict[str, dict[str, set[str]]]
"""The texts that each mark replaced, by server. A text that only looks like a mark replaces itself.
"""

_READ_AGAIN = (
    "Only the server that returned a secret gets it back. Read the text from that server again, or "
    "leave the secret out and let the user put it in."
)
_PASS_WHOLE = (
    "Pass each mark on whole, as plain text and with nothing joined to it, or use a tool that "
    "changes a part of the text in place."
)


class Marks:
    """The marks in what servers returned to one run.

    `replaced` is shared by all runs of a caller. `names` has the secrets that this run replaced.
    """

    def __init__(self, redactor: Redactor | None = None, replaced: Replaced | None = None) -> None:
        self._redactor = redactor or Redactor()
        self._replaced: Replaced = {} if replaced is None else replaced
        self.names: dict[str, None] = {}

    def of(self, server: str) -> Redactor:
        """Return the redactor for a server's texts; "" for texts of the program."""
        return self._redactor.with_note(partial(self._note, server))

    def _note(self, server: str, mark: str, text: str) -> None:
        if mark not in self._redactor.marks:
            return
        if text != mark:
            self.names[self._redactor.marks[mark]] = None
        texts = self._replaced.setdefault(server, {}).setdefault(mark, set())
        # Two texts are ambiguous already.
        if server and len(texts) < 2:
            texts.add(text)

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        """Return arguments with secrets in place of marks; the same object if there are none."""
        try:
            line = as_json(arguments).encode("utf-8", "surrogatepass")
        except RecursionError:
            raise InvalidRequestError("The arguments are nested too deeply.") from None
        parts, kept = [], 0
        for start, end, mark in self._redactor.find_marks(line):
            shown, like = repr(line[start:end].decode()[:120]), MARK.match(line, start)
            if line[start:end] != mark:
                if like and like[0].decode() not in self._redactor.marks:
                    # The bridge has no secret of this name.
                    continue
                raise _denial(f"An argument has a part of a mark, {shown}", _PASS_WHOLE)
            texts = self._replaced.get(server, {}).get(mark.decode(), set())
            if len(texts) != 1:
                why = "several texts" if texts else "a secret that this server did not return"
                message = f"{shown} stands for {why} in what {server!r} said to this caller"
                raise _denial(message, _PASS_WHOLE if texts else _READ_AGAIN)
            text = as_json(*texts)[1:-1].encode("utf-8", "surrogatepass")
            parts += [line[kept:start], text]
            kept = end
        if not parts:
            return arguments
        filled = b"".join([*parts, line[kept:]])
        with suppress(ValueError):
            if self._redactor.frame(filled) == self._redactor.frame(line):
                revealed: dict[str, Json] = json.loads(filled.decode("utf-8", "surrogatepass"))
                if not any(
                    _is_json(arguments.get(key)) > _is_json(revealed[key]) for key in revealed
                ):
                    return revealed
                raise _denial("A mark stands in JSON, where its secret needs escapes", _PASS_WHOLE)
        raise _denial("A secret would not be recognised where its mark stands", _PASS_WHOLE)


def _denial(message: str, remedy: str) -> CallDeniedError:
    return CallDeniedError(f"The call was not made. {message}.", remedy=remedy)


def _is_json(text: Json) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(text, str) and text.lstrip()[:1] in ("{", "[") and bool(json.loads(text))
    return False
