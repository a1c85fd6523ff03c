"""Servers of the newer era that want to know something before they answer.

Owns the rounds: such a server answers a request with questions instead of a result, and the request
is made again with the answers. So do those of either era that refuse a request until the user has
visited an address. A question belongs to its request, so that there is no doubt whom to
ask. Roots are answered from the configuration, without asking anybody.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

import anyio
from mcp_types.jsonrpc import INVALID_REQUEST, URL_ELICITATION_REQUIRED

from bridge.errors import CannotAskError, ToolCallError
from bridge.model import Json
from bridge.upstream.asking import NOT_PASSED_ON, Caller, Method, current_caller, put, roots_of

INPUT_REQUIRED = "input_required"

MAX_ROUNDS = 10
"""Of questions before one answer; as many as the SDKs make."""

MAX_QUESTIONS = 16
"""In one round."""

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0
"""Between rounds of a server that asks nothing but wants to be called again."""

ROOTS_METHOD = "roots/list"

Retry = Callable[[dict[str, Json] | None, str | None], Awaitable[dict[str, Json]]]
"""Makes the request again, with the answers and the server's own state."""


async def answered(
    server: str, what: str, result: dict[str, Json], retry: Retry, *, roots: Sequence[Path] = ()
) -> dict[str, Json]:
    """Return the server's result, after it was told what it wants to know.

    Args:
        what: What was asked of it, for messages.
        result: What it answered first.

    Raises:
        CannotAskError: There is nobody to ask.
        ToolCallError: It never has enough, or its questions cannot be understood.
    """
    pause = FIRST_PAUSE_SECONDS
    for _ in range(MAX_ROUNDS):
        if result.get("resultType") != INPUT_REQUIRED:
            return result
        state = result.get("requestState")
        wanted = result.get("inputRequests") or {}
        if not isinstance(wanted, dict) or not isinstance(state, str | None):
            break
        answers = None
        if wanted:
            answers = await answers_to(server, what, wanted, roots)
        else:
            await anyio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
        result = await retry(answers, state)
    if result.get("resultType") != INPUT_REQUIRED:
        return result
    msg = (
        f"Server {server!r}, {what}: it goes on asking for input after {MAX_ROUNDS} rounds, or "
        "asks in a way that cannot be understood."
    )
    raise ToolCallError(msg, server=server, rpc_code=INVALID_REQUEST)


async def visited(server: str, what: str, refusal: ToolCallError) -> bool:
    """Have the user visit the addresses that a server wants visited before it does what was asked.

    Args:
        refusal: How the server answered.

    Returns:
        Whether it wants that, and the user agreed to all of it: the request can be made again.

    Raises:
        ToolCallError: It wants too many.
    """
    data = refusal.data
    listed = data.get("elicitations") if isinstance(data, dict) else None
    if refusal.rpc_code != URL_ELICITATION_REQUIRED or not isinstance(listed, list) or not listed:
        return False
    wanted = {
        str(number): {"method": "elicitation/create", "params": {**each, "mode": "url"}}
        for number, each in enumerate(listed)
        if isinstance(each, dict)
    }
    try:
        answers = await answers_to(server, what, wanted, ())
    except CannotAskError:
        # The refusal has the addresses; it says more than that nobody can be asked.
        return False
    accepted = [answer.get("action") == "accept" for answer in answers.values()]
    return len(accepted) == len(listed) and all(accepted)


async def answers_to(
    server: str, what: str, wanted: Mapping[str, Json], roots: Sequence[Path]
) -> dict[str, Json]:
    """Ask all questions of a round at the same time; the first that has no answer ends it."""
    if len(wanted) > MAX_QUESTIONS:
        msg = f"Server {server!r}, {what}: it asks {len(wanted)} questions at once."
        raise ToolCallError(msg, server=server, rpc_code=INVALID_REQUEST)
    caller = current_caller()
    answers: dict[str, Json] = {}
    failures: list[CannotAskError] = []

    async def ask(key: str, question: Json, scope: anyio.CancelScope) -> None:
        try:
            answers[key] = await _answer(server, caller, question, roots)
        except CannotAskError as error:
            failures.append(error)
            scope.cancel()

    async with anyio.create_task_group() as tasks:
        for key, question in wanted.items():
            tasks.start_soon(ask, key, question, tasks.cancel_scope)
    if failures:
        reason = failures[0]
        msg = f"Server {server!r}, {what}: it wants input before it answers. {reason.message}"
        raise CannotAskError(msg, server=server, remedy=reason.remedy)
    return answers


async def _answer(
    server: str, caller: Caller | None, question: Json, roots: Sequence[Path]
) -> Json:
    method = question.get("method") if isinstance(question, dict) else None
    params = question.get("params", {}) if isinstance(question, dict) else None
    if method == ROOTS_METHOD and roots:
        return roots_of(roots)
    if method not in get_args(Method) or not isinstance(params, dict):
        message = f"It asks {method!r:.80}, which is not offered here."
        raise CannotAskError(message, server=server)
    if caller is None:
        message = "Nobody can be asked: this call is no run's."
        raise CannotAskError(message, server=server)
    params = {key: value for key, value in params.items() if key not in NOT_PASSED_ON}
    size = len(json.dumps(params, ensure_ascii=False).encode("utf-8", "replace"))
    with caller.clock.stop():
        return await put(caller, server, cast(Method, method), params, size)
