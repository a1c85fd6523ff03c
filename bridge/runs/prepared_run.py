"""A run that is admitted, and the frame that its program begins with. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from bridge.callers.client import MAX_WAIT_SECONDS, RunCaller
from bridge.gate.receipt import BYTES_PER_TOKEN
from bridge.gate.services import RunContext
from bridge.guest.protocol.wire import Run
from bridge.inventory.guide import GuestGuide
from bridge.inventory.inventory import ToolInventory
from bridge.model import Limits, RunRequest, Tool
from bridge.packages.packages import NOTHING, PackageSet
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES
from bridge.runs.checks import Check
from bridge.runs.guest_session import GuestSession
from bridge.runs.input_files import frame_files
from bridge.runs.reading import Reading
from bridge.sandbox.backend import DistantSandbox
from bridge.sandbox.layers import guest_limits
from bridge.saved_functions.skills import SkillUse
from bridge.sessions import SessionRun
from bridge.settings import Settings


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that is admitted.

    Attributes:
        settings: Those in force, narrowed by the profile that it asks for.
        servers: Those to connect before it begins.
        tolerant: Whether it begins without servers that fail or take long.
        check: What is wrong with it, as far as is known.
    """

    run_id: str
    request: RunRequest
    limits: Limits
    settings: Settings
    servers: tuple[str, ...]
    tolerant: bool
    program: Reading
    skills: SkillUse
    check: Check
    caller: RunCaller
    gate: RunContext
    packages: PackageSet = NOTHING
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A sandbox that a run has.

    Attributes:
        guest: Returns it once its guest waits for a program.
        waited: Whether it may have waited, and died, before the run got it.
        session: The run's part in its session, if it is in one.
    """

    guest: Callable[[], Awaitable[GuestSession]]
    waited: bool
    session: SessionRun | None = None


def run_frame(
    run: PreparedRun,
    tools: Mapping[str, tuple[Tool, ...]],
    session: GuestSession,
    known: ToolInventory,
    guide: GuestGuide,
    *,
    number: int = 0,
    state: str = "",
) -> Run:
    """Return the frame that starts its program.

    Args:
        number: Of the run in its session, if it is in one.
        state: What that begins with, as base64.
    """
    loaded, reach = tuple(tools), run.program.references.reach
    # In the configuration's order. A server may have been removed from it meanwhile.
    stubs = [
        known.stubs(name, None if reach is None else reach.get(name, frozenset()))
        for name in sorted(filter(known.aliases.__contains__, loaded), key=known.place)
    ]
    stubs = [
        {**stub, "refused": run.refused[stub["name"]]} if stub["name"] in run.refused else stub
        for stub in stubs
    ]
    # What only `runtime` knows is no use to a program that cannot ask it.
    distant = isinstance(session.sandbox, DistantSandbox)
    return Run(
        code=run.request.code,
        argv=list(run.request.argv),
        servers=stubs,
        discovered=known.discovered(loaded) if reach is None else [],
        capabilities=guide.capabilities(loaded, run.limits) if reach is None else "",
        limits={
            # The host stops the program, and knows when questions made it wait.
            "timeout": run.limits.longest_timeout + 2 * MAX_WAIT_SECONDS,
            "output_bytes": run.limits.output_bytes,
            # What is larger is printed. At a terminal a value is no output, as long as it fits.
            "result_bytes": run.limits.result_bytes
            if run.caller.is_shown
            else min(run.limits.result_bytes, run.limits.output_tokens * BYTES_PER_TOKEN),
            "shown_bytes": run.limits.shown_bytes,
            "frame_bytes": MAX_GUEST_FRAME_BYTES,
            "out_bytes": run.limits.out_bytes,
            "out_files": run.limits.out_files,
            # How long it waits for the host, which destroys it, to read its last frame.
            **({"answer_seconds": 20.0} if distant else {}),
            **guest_limits(session.sandbox.isolation, run.limits),
        },
        paths=list(run.packages.paths),
        session=number,
        name=run.request.name,
        state=state,
        files=frame_files(run.request.files) if run.request.files else [],
        skills=run.skills.sent(),
        packages=guide.allowed_packages,
        names=dict(run.program.names),
    )
