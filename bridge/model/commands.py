"""`run_command`: what is asked for, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.model.results import RunResult


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """One validated wish to run a command or a pipeline.

    Attributes:
        profile: Of the configuration's command profiles.
        stages: The words of each.
        workdir: Relative to the workspace's root.
        stdin: What the first stage reads.
        timeout: Seconds; None means the profile's.
        env: Variables of all stages, from those that the profile lets a call set.
    """

    profile: str
    stages: tuple[tuple[str, ...], ...]
    workdir: str = ""
    stdin: str = ""
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """How one stage of a pipeline ended.

    Attributes:
        words: As they were given, without secrets.
        exit_code, signal: How it ended; one is known, unless the bridge ended it.
        stderr: Cut to a bound.
        cut_short: Whether the stage after it ended first, so that it could not write on.
        oom_killed: Whether the kernel ended something of it for memory.
        not_started: Whether it never ran, because one before it failed.
    """

    words: tuple[str, ...]
    exit_code: int | None = None
    signal: int | None = None
    stderr: str = ""
    cut_short: bool = False
    oom_killed: bool = False
    not_started: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandResult(RunResult):
    """The result of a command or a pipeline.

    As that of a run: its stdout is the last stage's, and `truncated` has "stdout", "stderr" or
    "stderr of stage 2"; each stage has its own stderr.

    Attributes:
        profile: What it ran in.
        stages: How each ended.
    """

    profile: str = ""
    stages: tuple[StageResult, ...] = ()
