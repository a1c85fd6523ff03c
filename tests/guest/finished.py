"""All that a guest's run sent, sorted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.guest.protocol.wire import Call, Cancel, Done, Exited, GuestFrame


@dataclass
class Finished:
    """The frames, and how the run ended."""

    stdout: str = ""
    stderr: str = ""
    skipped: dict[str, int] = field(default_factory=dict)
    done: Done | None = None
    exited: Exited | None = None
    calls: list[Call] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    frames: list[GuestFrame] = field(default_factory=list)
    diagnostics: str = ""
    status: int | None = None

    @property
    def outcome(self) -> Done:
        assert self.done is not None, (self.exited, self.stderr, self.diagnostics)
        return self.done

    @property
    def value(self) -> Any:
        assert self.outcome.outcome == "ok", self.outcome.error
        assert self.outcome.has_result, self.outcome
        return self.outcome.result

    @property
    def exit(self) -> Exited:
        assert self.exited is not None, self.diagnostics
        return self.exited
