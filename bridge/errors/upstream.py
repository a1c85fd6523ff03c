"""One of the user's MCP servers could not do its part."""

from __future__ import annotations

from typing import ClassVar

from bridge.errors.base import BridgeError


class UpstreamError(BridgeError):
    """One of the user's MCP servers could not do its part.

    Attributes:
        server: The server's own name.
        doubtful: Whether what was asked of it may have been done all the same; so it is unless
            the class, or whoever raises it, knows that it was never sent or was answered.
    """

    code = "upstream"
    exit_status = 4
    doubtful_unless_said: ClassVar[bool] = True

    def __init__(
        self,
        message: str,
        *,
        server: str,
        remedy: str | None = None,
        host_detail: str = "",
        doubtful: bool | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, host_detail=host_detail)
        self.server = server
        self.doubtful = self.doubtful_unless_said if doubtful is None else doubtful


class ServerStartError(UpstreamError):
    """A server could not be started or reached. Its remedy names files of the host."""

    code = "server_start_failed"
    doubtful_unless_said = False


class LoginRequiredError(ServerStartError):
    """A server wants the user to log in first, which only the user can do, at a terminal."""

    code = "login_required"


class LoginFailedError(UpstreamError):
    """The user tried to log in to a server, and it did not work."""

    code = "login_failed"
    doubtful_unless_said = False


class ServerLostError(UpstreamError):
    """A server went away while a request was under way."""

    code = "server_lost"


class CallTimeoutError(UpstreamError):
    """A server did not answer within the call's time."""

    code = "call_timeout"


class MessageTooLargeError(UpstreamError):
    """A server sent a message beyond the size cap."""

    code = "message_too_large"


class ToolCallError(UpstreamError):
    """A server answered a request with a protocol error.

    Attributes:
        rpc_code: The JSON-RPC error code.
        data: The JSON-RPC error's data, if any.
    """

    code = "tool_call_refused"
    doubtful_unless_said = False

    def __init__(
        self,
        message: str,
        *,
        server: str,
        rpc_code: int,
        data: object = None,
        remedy: str | None = None,
        doubtful: bool | None = None,
    ) -> None:
        super().__init__(message, server=server, remedy=remedy, doubtful=doubtful)
        self.rpc_code = rpc_code
        self.data = data


class CannotAskError(UpstreamError):
    """A server has a question, and there is nobody who could be asked it.

    Attributes:
        why: The message without what is quoted in it of the question, or of what the client said.
    """

    code = "cannot_ask"
    doubtful_unless_said = False

    def __init__(
        self, message: str, *, server: str = "", remedy: str | None = None, quoted: str = ""
    ) -> None:
        super().__init__(f"{message} {quoted}".rstrip(), server=server, remedy=remedy)
        self.why = message
