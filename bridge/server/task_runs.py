"""Runs as tasks, for clients of the newer era that declare the extension for them.

Owns what such a client is told of a run that takes long. The run itself is kept by
`bridge.engine.suspended`, as one is whose client has a question to answer.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import mcp_types as types
from pydantic import Field

from bridge.engine.suspended import SuspendedRun, Waiting
from bridge.model import Json
from bridge.server.clients import Context, input_required
from bridge.upstream.task_calls import EXTENSION

TASK_AFTER_SECONDS = 15.0
"""A run that is not over by then becomes a task. Clients give up on silent requests after 60 s."""

POLL_SECONDS = 2.0
"""Between a client's looks at it, as it is asked to."""


class TaskParams(types.RequestParams):
    """Parameters of a request about a task."""

    task_id: str = Field(max_length=200)


class UpdateParams(TaskParams):
    """Parameters of `tasks/update`."""

    input_responses: types.InputResponses = Field(default_factory=dict)


def patience(context: Context) -> float:
    """Return how long a client's run may take before it becomes a task."""
    capabilities = context.session.client_capabilities
    extensions = None if capabilities is None else capabilities.extensions
    return TASK_AFTER_SECONDS if EXTENSION in (extensions or ()) else math.inf


def new_task(run: SuspendedRun, number: str) -> dict[str, Any]:
    """Return the answer to a call whose run is a task from now on."""
    return {"resultType": "task", **_task(run, number), "status": "working"}


def looked_at(
    run: SuspendedRun, number: str, result: types.CallToolResult | None
) -> dict[str, Any]:
    """Return a task as `tasks/get` shows it.

    Args:
        result: The run's, once it is over.
    """
    shown: dict[str, Json] = {"status": "working"}
    if result is not None:
        document = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        shown = {"status": "completed", "result": {"resultType": "complete", **document}}
    elif run.questions:
        for question in run.questions.values():
            question.shown = True
        asked = input_required(Waiting(secret=number, questions=dict(run.questions)))
        document = asked.model_dump(by_alias=True, mode="json", exclude_none=True)
        shown = {"status": "input_required", "inputRequests": document["inputRequests"]}
    return {"resultType": "complete", **_task(run, number), **shown}


def _task(run: SuspendedRun, number: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "taskId": number,
        "createdAt": run.begun.isoformat(),
        "lastUpdatedAt": now.isoformat(),
        "ttlMs": int(((now - run.begun).total_seconds() + run.kept_seconds) * 1000),
        "pollIntervalMs": int(POLL_SECONDS * 1000),
    }
