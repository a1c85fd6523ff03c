"""What a run tells its caller, without this machine's secrets.

Owns which parts of a result or an error have text in them. `Redactor` knows what to take out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from bridge.errors import BridgeError, ToolCallError
from bridge.gate.redaction import Redactor
from bridge.model import Finding, Plan, RunResult, SessionReport, Tool
from bridge.offload import offload

NOT_SHOWN = "[left out: it could not be searched for secrets]"

_RESULT_TEXTS = ("summary", "stdout", "stderr", "result_repr", "error")

_TOOL_FIELDS = ("name", "title", "description", "input_schema", "output_schema", "annotations")

Value = TypeVar("Value")


async def cleared(work: Awaitable[RunResult], redactor: Redactor) -> RunResult:
    """Return the result of a run without secrets; the error that it ends with has none either."""
    try:
        result = await work
    except BridgeError as error:
        clear_error(error, redactor)
        raise
    return await offload(result.result, partial(clear_result, result, redactor))


def clear_error(error: BridgeError, redactor: Redactor) -> None:
    """Redact an error in place: others may hold it already."""
    error.message = redactor.text(error.message)
    error.host_detail = redactor.text(error.host_detail)
    error.remedy = redactor.text(error.remedy)
    error.args = (error.message,)
    if isinstance(error, ToolCallError):
        error.data = clear_value(error.data, redactor)


def clear_result(result: RunResult, redactor: Redactor) -> RunResult:
    """Return a result without secrets."""
    changes: dict[str, Any] = {name: redactor.text(getattr(result, name)) for name in _RESULT_TEXTS}
    changes["shown"] = tuple(
        replace(each, text=redactor.text(each.text), note=redactor.text(each.note))
        for each in result.shown
    )
    changes["findings"] = tuple(_clear_texts(each, redactor) for each in result.findings)
    if result.has_result:
        changes["result"] = clear_value(result.result, redactor)
    if result.plan is not None:
        changes["plan"] = _clear_plan(result.plan, redactor)
    if result.session is not None:
        changes["session"] = _clear_session(result.session, redactor)
    return replace(result, **changes)


def _clear_session(report: SessionReport, redactor: Redactor) -> SessionReport:
    text = redactor.text
    return replace(
        report,
        name=text(report.name),
        note=text(report.note),
        holds=tuple(replace(v, name=text(v.name), kind=text(v.kind)) for v in report.holds),
        lost=tuple(replace(loss, name=text(loss.name), why=text(loss.why)) for loss in report.lost),
    )


def _clear_plan(plan: Plan, redactor: Redactor) -> Plan:
    calls = tuple(
        replace(call, arguments=clear_value(dict(call.arguments), redactor)) for call in plan.calls
    )
    found: Plan = replace(_clear_texts(plan, redactor), calls=calls)
    return found


def _clear_texts(value: Finding | Plan, redactor: Redactor) -> Any:
    texts: dict[str, Any] = {
        each.name: redactor.text(text)
        for each in fields(value)
        if isinstance(text := getattr(value, each.name), str)
    }
    return replace(value, **texts)


def clear_value(value: Value, redactor: Redactor) -> Value:
    """Return a value of JSON without secrets; what is none is not passed on at all."""
    try:
        found: Value = redactor.value(value)
    except (ValueError, TypeError):
        return NOT_SHOWN  # type: ignore[return-value]
    return found


def clear_tools(tools: tuple[Tool, ...], redactor: Redactor) -> tuple[Tool, ...]:
    """Return tools as their server describes them, without secrets.

    One whose very name holds one is left out: under another name it could not be called.
    """
    found = []
    for tool in tools:
        before = [getattr(tool, name) for name in _TOOL_FIELDS]
        try:
            after = redactor.value(before)
        except (ValueError, TypeError):
            # A schema that is too deep is no other tool's fault.
            continue
        if after is before:
            found.append(tool)
        elif after[0] == tool.name:
            found.append(replace(tool, **dict(zip(_TOOL_FIELDS, after, strict=True))))
    return tools if found == list(tools) else tuple(found)


@contextmanager
def clear_logs(redactor: Redactor) -> Iterator[None]:
    """Redact the bridge's log while this is open.

    Clients write that into files of theirs, and show it.
    """
    clearing = _Clearing(redactor)
    handlers = tuple(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(clearing)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(clearing)


class _Clearing(logging.Filter):
    """Takes secrets out of records."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record; return True."""
        told = record.getMessage()
        cleared_text = self._redactor.text(told)
        if cleared_text is not told:
            record.msg, record.args = cleared_text, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redactor.text(record.exc_text)
        return True
