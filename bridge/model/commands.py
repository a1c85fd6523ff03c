"""`run_command`: what is asked for, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.model.names import Reason, Status
from bridge.model.results import Isolation, Usage


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """One validated wish to run a command or a pipeline.

    Attributes:
        profile: Of the configuration's command profiles.
        stages: The words of each.
        workdir: Relative to the workspace's root.
        stdin: What the first stage reads.
        timeout: Seconds; None means the profile's.
    """

    profile: str
    stages: tuple[tuple[str, ...], ...]
    workdir: str = ""
    stdin: str = ""
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """How one stage of a pipeline ended.

    Attributes:
        words: As they were given, without secrets.
        exit_code, signal: Of which one is known, unless it was ended from here.
        stderr: Cut to a bound.
        cut_short: Whether the stage after it ended first, so that it could not write on.
        oom_killed: Whether the kernel ended something of it for memory.
    """

    words: tuple[str, ...]
    exit_code: int | None = None
    signal: int | None = None
    stderr: str = ""
    cut_short: bool = False
    oom_killed: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command or a pipeline ended, with all that is to be shown of it.

    Attributes:
        reason: None exactly when `status` is "success".
        stdout: Of the last stage.
        truncated: Stream to the number of bytes dropped: "stdout", "stderr" or "stderr of stage 2".
    """

    run_id: str
    status: Status
    summary: str
    profile: str = ""
    reason: Reason | None = None
    exit_code: int | None = None
    stages: tuple[StageResult, ...] = ()
    stdout: str = ""
    error: str = ""
    timeout_seconds: float = 0.0
    truncated: Mapping[str, int] = field(default_factory=dict)
    isolation: Isolation | None = None
    usage: Usage = field(default_factory=Usage)
