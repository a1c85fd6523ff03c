"""Whether command profiles could be used, found out without running a command.

Owns the report of `doctor` on them. What is wrong with a profile is said by those who would say it
when a command is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.engine.command_backends import insist_on_kernel
from bridge.engine.command_plan import Planner
from bridge.errors import BridgeError, NoSandboxError
from bridge.sandbox.backend import Probe
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from bridge.settings.parsers import ENGINES


@dataclass(frozen=True, kw_only=True)
class CommandCheck:
    """What was found out about one profile.

    Attributes:
        summary: What it runs, where; or what is wrong with it.
        notes: What is as likely meant as not.
    """

    name: str
    ok: bool
    summary: str
    remedy: str = ""
    notes: tuple[str, ...] = ()


def check_commands(settings: Settings, probes: Sequence[Probe]) -> list[CommandCheck]:
    """Return a report on each profile. Blocks, shortly.

    Args:
        probes: What was found out about backends; none of them is tried here.
    """
    profiles = settings.commands.values()
    planner = Planner(settings)
    return [_check(profile, settings, planner, probes) for profile in profiles]


def _check(
    profile: CommandProfile, settings: Settings, planner: Planner, probes: Sequence[Probe]
) -> CommandCheck:
    notes = []
    try:
        insist_on_kernel(settings, profile)
        unset = planner.check(profile)
        tried = _insist_on_backend(profile, probes)
    except BridgeError as error:
        summary = " ".join(filter(None, (error.message, error.host_detail)))
        return CommandCheck(name=profile.name, ok=False, summary=summary, remedy=error.remedy)
    if unset:
        notes.append(f"not set, so not passed on: {', '.join(unset)}")
    where = "bubblewrap"
    if profile.runtime == "container":
        where = f"containers of {profile.image}"
        notes.append("its image and executables are looked up when a command is run")
    if not tried:
        notes.append("what it runs in was not tried: MCP_BRIDGE_RUNTIME or its order leave it out")
    names = ", ".join(entry.rpartition("/")[2] for entry in profile.executables)
    return CommandCheck(
        name=profile.name,
        ok=True,
        summary=f"{names} in {where}, workspace {profile.workspace}",
        notes=tuple(notes),
    )


def _insist_on_backend(profile: CommandProfile, probes: Sequence[Probe]) -> bool:
    """See that what a profile runs in has not failed; return whether it was tried."""
    if profile.runtime == "container":
        tried = [probe for probe in probes if probe.backend in ENGINES or "/" in probe.backend]
    else:
        tried = [probe for probe in probes if probe.backend == "bubblewrap"]
    if tried and not any(probe.ok for probe in tried):
        summary = " ".join(f"{probe.backend}: {probe.summary}" for probe in tried)
        message = f"{profile.place}: nothing can run it. {summary}"
        raise NoSandboxError(message, remedy=tried[0].remedy)
    return bool(tried)
