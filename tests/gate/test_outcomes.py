"""What is known of a call from how it ended."""

from __future__ import annotations

import pytest

from bridge.errors import (
    BridgeError,
    CallDeniedError,
    CallTimeoutError,
    CannotAskError,
    ChannelClosedError,
    LoginRequiredError,
    ServerLostError,
    ServerStartError,
    ToolCallError,
    UnknownError,
    UpstreamError,
)
from bridge.gate.decision import Outcome, outcome_after, outcome_of


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"content": []}, "ok"),
        ({"content": [], "isError": False}, "ok"),
        ({"content": [], "isError": True}, "tool-error"),
        ({"content": [], "isError": "yes"}, "ok"),
    ],
)
def test_an_answer_is_what_the_server_says_it_is(result: dict[str, object], outcome: str) -> None:
    assert outcome_of(result) == outcome


def refusal(code: int, *, doubtful: bool | None = None) -> ToolCallError:
    return ToolCallError("m", server="s", rpc_code=code, doubtful=doubtful)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (refusal(-32602), "refused"),
        (refusal(-32601), "refused"),
        (refusal(-32042), "refused"),
        (refusal(-32603), "tool-error"),
        (refusal(0), "tool-error"),
        (refusal(-32000), "tool-error"),
        (refusal(-32602, doubtful=True), "unknown"),
        (CannotAskError("m"), "refused"),
        (ServerStartError("m", server="s"), "not-sent"),
        (LoginRequiredError("m", server="s"), "not-sent"),
        (LoginRequiredError("m", server="s", doubtful=True), "unknown"),
        (ServerLostError("m", server="s"), "unknown"),
        (ServerLostError("m", server="s", doubtful=False), "not-sent"),
        (CallTimeoutError("m", server="s"), "unknown"),
        (UpstreamError("m", server="s", code="message_too_large"), "unknown"),
        (UpstreamError("m", server="s", doubtful=False, code="message_too_large"), "not-sent"),
        (UpstreamError("m", server="s"), "unknown"),
        (UnknownError("m", code="unknown_server"), "not-sent"),
        (CallDeniedError("m"), "not-sent"),
        (ChannelClosedError("m"), "unknown"),
        (BridgeError("m"), "unknown"),
        (RuntimeError("m"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
)
def test_a_call_is_unknown_unless_something_is_known_of_it(
    error: BaseException, outcome: Outcome
) -> None:
    assert outcome_after(error) == outcome


def test_every_error_of_a_server_says_whether_it_leaves_doubt() -> None:
    def below(kind: type[UpstreamError]) -> list[type[UpstreamError]]:
        return [kind, *(one for child in kind.__subclasses__() for one in below(child))]

    certain = {kind.__name__ for kind in below(UpstreamError) if not kind.doubtful_unless_said}
    assert certain == {
        "ServerStartError",
        "LoginRequiredError",
        "LoginFailedError",
        "ToolCallError",
        "CannotAskError",
    }
