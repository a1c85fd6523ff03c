"""What all of the bridge's own errors have: a stable code, an exit status, a remedy."""

from __future__ import annotations

from typing import ClassVar


class BridgeError(Exception):
    """Base of all the bridge's own errors.

    Attributes:
        code: Stable identifier, for scripts and for tests.
        exit_status: What the command line exits with.
        message: What went wrong, in words that a sandboxed program may see as well.
        host_detail: What only the user may see: paths of the host, the end of a server's stderr.
        remedy: What the reader can do about it; may be empty.
    """

    code: ClassVar[str] = "bridge"
    exit_status: ClassVar[int] = 1
    default_remedy: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str | None = None, host_detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.host_detail = host_detail
        self.remedy = self.default_remedy if remedy is None else remedy

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.host_detail, self.remedy) if part)
