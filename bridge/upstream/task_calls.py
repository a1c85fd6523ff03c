"""Tool calls that a server runs as tasks: the response is a task, and the result follows later.

Protocol 2025-11-25: `params.task`, and `tasks/result` waits. Extension of 2026-07-28: the server
decides (`resultType: task`); `tasks/get` polls. The SDK implements neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import anyio
from mcp.types import Request
from mcp_types.jsonrpc import INTERNAL_ERROR

from bridge.errors import CallTimeoutError, CannotAskError, ToolCallError, UpstreamError
from bridge.model import Json
from bridge.upstream.client_features import Roots, answer_input_requests

EXTENSION = "io.modelcontextprotocol/tasks"

LAST_RESERVED = -32000
"""JSON-RPC's codes up to this one reject a request, but a task shows that it was accepted."""

Method = Literal["tasks/get", "tasks/result", "tasks/update", "tasks/cancel"]

Ask = Callable[[Method, dict[str, Json]], Awaitable[dict[str, Json]]]
"""Sends a request about a task, within the remaining time of the call."""


class TaskRequest(Request[dict[str, Any], Method]):
    """A request about a task; over HTTP its `taskId` is also in the `Mcp-Name` header."""

    name_param = "taskId"


def task_required_tools(entries: Sequence[Json]) -> frozenset[str]:
    return frozenset(
        str(entry.get("name"))
        for entry in entries
        if isinstance(entry, Mapping)
        and isinstance(entry.get("execution"), Mapping)
        and entry["execution"].get("taskSupport") == "required"
    )


async def await_result(
    server: str, what: str, answer: dict[str, Json], ask: Ask, *, roots: Roots = ()
) -> dict[str, Json]:
    """Return the result of a call, after waiting if the response is a task."""
    extended = answer.get("resultType") == "task"
    task = answer if extended else answer.get("task")
    number = task.get("taskId") if isinstance(task, Mapping) else None
    if not isinstance(task, Mapping) or (not extended and "content" in answer):
        return answer
    if not isinstance(number, str) or not 0 < len(number) <= 1024:
        msg = f"Server {server!r}, {what}: it answered with a task that has no usable id."
        raise ToolCallError(msg, server=server, rpc_code=INTERNAL_ERROR)
    about: dict[str, Json] = {"taskId": number}
    try:
        if not extended:
            return await ask("tasks/result", about)
        return await _poll(server, what, dict(task), about, ask, roots)
    except (anyio.get_cancelled_exc_class(), CallTimeoutError, CannotAskError) as error:
        if isinstance(error, UpstreamError):
            error.doubtful = True
        with anyio.move_on_after(2.0, shield=True):
            # The task or the server may have ended meanwhile.
            with suppress(Exception):
                await ask("tasks/cancel", about)
        raise
    except UpstreamError as error:
        # Unless the tool itself failed, its effect is unknown.
        code = error.rpc_code if isinstance(error, ToolCallError) else LAST_RESERVED
        error.doubtful = error.doubtful or not (code == INTERNAL_ERROR or code > LAST_RESERVED)
        raise


async def _poll(
    server: str, what: str, task: Mapping[str, Json], about: dict[str, Json], ask: Ask, roots: Roots
) -> dict[str, Json]:
    answered: set[str] = set()
    pause = 0.1
    while True:
        status = task.get("status")
        if status == "completed" and isinstance(task.get("result"), dict):
            result: dict[str, Json] = task["result"]
            return result
        if status not in ("working", "input_required"):
            raise _failure(server, what, task)
        wanted = task.get("inputRequests") if status == "input_required" else None
        if isinstance(wanted, Mapping):
            new = {key: wanted[key] for key in wanted if key not in answered}
            if new:
                answers = await answer_input_requests(server, what, new, roots)
                answered.update(new)
                await ask("tasks/update", {**about, "inputResponses": answers})
        given = task.get("pollIntervalMs")
        # False for NaN and for negative numbers.
        if isinstance(given, int | float) and given > 0:
            # Bounded before dividing: an integer may be too large for a float.
            pause = min(max(given, 50), 5_000) / 1000
        await anyio.sleep(pause)
        task = await ask("tasks/get", about)


def _failure(server: str, what: str, task: Mapping[str, Json]) -> ToolCallError:
    error = task.get("error")
    found = error if isinstance(error, Mapping) else {}
    reason = found.get("message") or task.get("statusMessage") or "it does not say why"
    status = f"{task.get('status')!s:.40}"
    msg = f"Server {server!r}, {what}: its task is {status!r}: {reason!s:.2000}"
    code = found.get("code")
    return ToolCallError(
        msg,
        server=server,
        rpc_code=code if isinstance(code, int) else INTERNAL_ERROR,
        data=found.get("data"),
    )
