"""Errors that keep a program from running, as values: what is reported instead of a result."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from bridge.errors import BridgeError, UsageError
from bridge.model import RunResult

Result = TypeVar("Result", bound=RunResult)


def failed(error: BridgeError, kind: type[Result], *, run_id: str = "") -> Result:
    usage = isinstance(error, UsageError)
    return kind(
        run_id=run_id or error.run_id or uuid.uuid4().hex,
        status="validation_error" if usage else "error",
        reason="validation" if usage else "engine",
        code=error.code,
        summary=error.message,
        error=f"{error} [{error.code}]",
    )


def failed_run(error: BridgeError, *, run_id: str = "") -> RunResult:
    result = failed(error, RunResult, run_id=run_id)
    return replace(result, recorded=bool(error.run_id))


def first_error(group: ExceptionGroup[Exception]) -> Exception:
    """Return the bridge's error in a group, which is what callers know; else the group."""
    matched, rest = group.split(BridgeError)
    if matched is None or rest is not None:
        return group
    leaf: Exception = matched
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf


async def caught(work: Awaitable[RunResult]) -> RunResult | BridgeError:
    """Return a bridge error instead of raising it through a task group, which would wrap it."""
    try:
        return await work
    except BridgeError as error:
        return error
    except ExceptionGroup as group:
        # A program's own task group wraps what its receive loop raised.
        found = first_error(group)
        if not isinstance(found, BridgeError):
            raise
        return found
