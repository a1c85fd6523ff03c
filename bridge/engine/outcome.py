"""Errors that keep a program from running, as values: what is reported instead of a result."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable

from bridge.errors import BridgeError, ChannelClosedError, UsageError
from bridge.model import RunResult


def failed_run(error: BridgeError, *, timeout: float = 0.0) -> RunResult:
    """Return the result that tells of an error which kept a program from running."""
    usage = isinstance(error, UsageError)
    return RunResult(
        run_id=uuid.uuid4().hex,
        status="validation_error" if usage else "error",
        reason="validation" if usage else "engine",
        code=error.code,
        summary=error.message,
        error=f"{error} [{error.code}]",
        timeout_seconds=timeout,
    )


async def caught(work: Awaitable[RunResult]) -> RunResult | BridgeError:
    """Return a bridge error instead of raising it through a task group, which would wrap it."""
    try:
        return await work
    except BridgeError as error:
        return error
    except ExceptionGroup as group:
        # A program's own task group wraps what its receive loop raised.
        matched, rest = group.split(BridgeError)
        if matched is None or rest is not None:
            raise
        leaf: BaseException = matched
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        return leaf if isinstance(leaf, BridgeError) else ChannelClosedError(str(leaf))
