"""Tool calls that a server runs as tasks: it answers with a handle, and has the result later.

Owns both forms: in protocol 2025-11-25 some tools have to be called so, and the result is asked for
once; with the extension of 2026-07-28 the server decides, and its task is looked at now and then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import anyio
from mcp.types import Request
from mcp_types.jsonrpc import INTERNAL_ERROR

from bridge.errors import CallTimeoutError, CannotAskError, ToolCallError, UpstreamError
from bridge.model import Json
from bridge.upstream.asking import answers_to

EXTENSION = "io.modelcontextprotocol/tasks"

MAX_TASK_ID_CHARS = 1024

FIRST_POLL_SECONDS = 0.1
LEAST_POLL_SECONDS = 0.05
MOST_POLL_SECONDS = 5.0
"""Between looks at a task; within these bounds the server says how long."""

LAST_RESERVED = -32000
"""Error codes up to here say what is wrong with a request; a task's handle shows it was taken."""

CANCEL_SECONDS = 2.0
"""For telling a server that nobody waits for its task any more."""

Method = Literal["tasks/get", "tasks/result", "tasks/update", "tasks/cancel"]

Ask = Callable[[Method, dict[str, Json]], Awaitable[dict[str, Json]]]
"""Makes a request about a task, within the time that is left of the call's."""


class TaskRequest(Request[dict[str, Any], Method]):
    """A request about a task, whose id is repeated in a header."""

    name_param = "taskId"


def demanding(entries: Sequence[Json]) -> frozenset[str]:
    """Return the names of the listed tools that have to be called as tasks."""
    return frozenset(
        str(entry.get("name"))
        for entry in entries
        if isinstance(entry, Mapping)
        and isinstance(entry.get("execution"), Mapping)
        and entry["execution"].get("taskSupport") == "required"
    )


async def finished(
    server: str, what: str, answer: dict[str, Json], ask: Ask, *, roots: Sequence[Path] = ()
) -> dict[str, Json]:
    """Return the result of a call, waiting for it if the answer is the handle of a task.

    A caller that waits no longer has the server told so.

    Raises:
        UpstreamError: The task failed, or it did not end in time.
    """
    extended = answer.get("resultType") == "task"
    task = answer if extended else answer.get("task")
    number = task.get("taskId") if isinstance(task, Mapping) else None
    if not isinstance(task, Mapping) or (not extended and "content" in answer):
        return answer
    if not isinstance(number, str) or not 0 < len(number) <= MAX_TASK_ID_CHARS:
        msg = f"Server {server!r}, {what}: it answered with a task that has no usable id."
        raise ToolCallError(msg, server=server, rpc_code=INTERNAL_ERROR)
    about: dict[str, Json] = {"taskId": number}
    try:
        if not extended:
            return await ask("tasks/result", about)
        return await _polled(server, what, dict(task), about, ask, roots)
    except (anyio.get_cancelled_exc_class(), CallTimeoutError, CannotAskError) as error:
        if isinstance(error, UpstreamError):
            error.doubtful = True
        with anyio.move_on_after(CANCEL_SECONDS, shield=True):
            # It may have ended by itself, or its server has.
            with suppress(Exception):
                await ask("tasks/cancel", about)
        raise
    except UpstreamError as error:
        error.doubtful = error.doubtful or not _is_of_tool(error)
        raise


def _is_of_tool(error: UpstreamError) -> bool:
    """Whether the tool itself failed; else it may have done its work, for it was called."""
    code = error.rpc_code if isinstance(error, ToolCallError) else LAST_RESERVED
    return code == INTERNAL_ERROR or code > LAST_RESERVED


async def _polled(
    server: str,
    what: str,
    task: Mapping[str, Json],
    about: dict[str, Json],
    ask: Ask,
    roots: Sequence[Path],
) -> dict[str, Json]:
    answered: set[str] = set()
    pause = FIRST_POLL_SECONDS
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
                answers = await answers_to(server, what, new, roots)
                answered.update(new)
                await ask("tasks/update", {**about, "inputResponses": answers})
        given = task.get("pollIntervalMs")
        # Neither NaN nor what is negative says anything.
        if isinstance(given, int | float) and given > 0:
            # Before dividing: there are whole numbers that no float can hold.
            within = min(max(given, 1000 * LEAST_POLL_SECONDS), 1000 * MOST_POLL_SECONDS)
            pause = within / 1000
        await anyio.sleep(pause)
        task = await ask("tasks/get", about)


def _failure(server: str, what: str, task: Mapping[str, Json]) -> ToolCallError:
    error = task.get("error")
    found = error if isinstance(error, Mapping) else {}
    told = found.get("message") or task.get("statusMessage") or "it does not say why"
    status = f"{task.get('status')!s:.40}"
    msg = f"Server {server!r}, {what}: its task is {status!r}: {told!s:.2000}"
    code = found.get("code")
    return ToolCallError(
        msg,
        server=server,
        rpc_code=code if isinstance(code, int) else INTERNAL_ERROR,
        data=found.get("data"),
    )
