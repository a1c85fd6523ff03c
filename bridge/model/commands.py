"""The request and the result of `run_command`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.model.results import RunResult


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """A validated request to run a command or a pipeline.

    Attributes:
        profile: The name of a command profile.
        stages: The words of each stage.
        workdir: Relative to the workspace's root.
        stdin: The input of the first stage.
        timeout: Seconds; None means the profile's.
        env: Variables for all stages; the profile limits which a call may set.
    """

    profile: str
    stages: tuple[tuple[str, ...], ...]
    workdir: str = ""
    stdin: str = ""
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The result of one stage of a pipeline.

    Attributes:
        words: The stage's words, without secrets.
        exit_code, signal: One of them is set unless the bridge ended the stage.
        stderr: The bounded error output.
        cut_short: Whether the next stage ended first.
        oom_killed: Whether the kernel killed a process of it for memory.
        not_started: Whether an earlier stage failed first.
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

    `stdout` is the output of the last stage; each stage has its own stderr. The keys of `truncated`
    are "stdout", "stderr" or "stderr of stage 2".

    Attributes:
        profile: The command profile.
        stages: The result of each stage.
    """

    profile: str = ""
    stages: tuple[StageResult, ...] = ()
