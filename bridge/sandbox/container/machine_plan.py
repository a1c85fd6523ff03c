"""What to do about podman's virtual machine, decided from what podman printed.

Owns the reading of `podman info`, `podman system connection list`, `podman machine list` and of
the words podman refuses with. Pure: no I/O, no clock. Its actions are `start` and `init`, nothing
else; a machine's settings (rootful or not, volumes, CPUs) are the user's and are never changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bridge.errors import EngineDownError, EngineNotFoundError, SandboxError
from bridge.sandbox.container.machine_command import CommandResult

DEFAULT_MACHINE = "podman-machine-default"
"""The name podman gives to a machine when it is told none."""

DETAIL_CHARS = 500
"""Most of podman's own words that an error repeats."""

MACHINE_PLATFORMS = frozenset({"darwin", "win32", "cygwin"})
"""Where containers cannot run without a virtual machine."""

_REMOTE_CLIENT = "Cannot connect to Podman"
"""Printed by podman's remote client, and by nothing else."""

_DISK_FULL = ("no space left on device", "not enough space", "disk quota exceeded")

_NO_VIRTUALISATION = (
    "hcs_e_hyperv_not_installed",
    "0x80370102",
    "enabled in the bios",
    "virtual machine platform",
    "virtualization is not available",
    "hypervisor.framework",
    "hv_unsupported",
    "hv_error",
)

_HELPER_MISSING = re.compile(
    r"could not find \\?\"(?P<found>[\w.-]+)\\?\" in one of"
    r"|exec: \\?\"(?P<exec>[\w./-]+)\\?\": executable file not found"
)

_ALREADY_UP = re.compile(
    r"already running|already starting or running|already in the process of being started"
    r"|only one VM can be active"
)

_LEFTOVER = "another instance of"
"""podman 4 on macOS: the machine's process survived a failed stop; waiting does not help."""

_OTHER_UP = (
    re.compile(r"VM (?P<name>\S+) is currently running or starting: only one VM"),
    re.compile(r"(?P<name>\S+) already starting or running"),
    re.compile(r"machine (?P<name>\S+): VM already running"),
)


Action = Literal["none", "ready", "wait", "start", "init"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One line of `podman machine list`."""

    name: str
    default: bool
    running: bool
    starting: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The next step.

    Attributes:
        action: "none": nothing, podman works without a machine. "ready": the machine is up.
            "wait": it is coming up by somebody else's hand. "start", "init": podman's commands.
        machine: Its name; empty for "none".
    """

    action: Action
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What podman said, as far as it was asked.

    Attributes:
        platform: `sys.platform`.
        env: The environment podman runs with; it may name another engine.
        info: `podman info --format json`.
        connections: `podman system connection list --format json`; None when not asked.
        machines: `podman machine list --format json`; None when not asked.
    """

    platform: str
    env: Mapping[str, str]
    info: CommandResult
    connections: CommandResult | None = None
    machines: CommandResult | None = None


def concerns_machine(platform: str, env: Mapping[str, str], info: CommandResult) -> bool:
    """Return whether a machine can have anything to do with how podman answered.

    On Linux podman runs containers itself unless it was told to be a remote client, which shows
    when it cannot connect. A user who names a host or a connection in the environment has an
    engine of their own somewhere, and a machine would not be it.

    Raises:
        EngineNotFoundError: There is no podman.
    """
    if info.missing:
        message = "podman is not installed."
        raise EngineNotFoundError(message, remedy="Install podman; see podman.io/docs/installation")
    if env.get("CONTAINER_HOST") or env.get("CONTAINER_CONNECTION"):
        return False
    if platform in MACHINE_PLATFORMS:
        return True
    return not info.ok and _REMOTE_CLIENT in info.stderr + info.stdout


def decide(seen: Observed) -> Plan:
    """Return the next step towards a podman that answers.

    Raises:
        SandboxError: No step of ours would help; the message says why.
    """
    if not concerns_machine(seen.platform, seen.env, seen.info):
        return Plan(action="none")
    if _connects_elsewhere(seen.connections):
        if seen.info.ok:
            return Plan(action="none")
        raise _remote_engine_down(seen.info)
    machines = parse_machines(seen.machines)
    chosen = _choose(machines, _connected_machine(seen.connections))
    if seen.info.ok:
        if chosen is None:
            return Plan(action="none")
        return Plan(action="ready", machine=chosen.name)
    if seen.info.timed_out:
        message = "podman did not answer in time."
        raise EngineDownError(message, remedy="Restart its machine: `podman machine stop`, `start`")
    if chosen is None:
        if machines:
            raise _ambiguous(machines)
        if seen.platform not in MACHINE_PLATFORMS:
            # Linux in remote mode: a local podman is one package away, a VM is not called for.
            raise _remote_engine_down(seen.info)
        return Plan(action="init", machine=DEFAULT_MACHINE)
    if chosen.running or chosen.starting:
        return Plan(action="wait", machine=chosen.name)
    return Plan(action="start", machine=chosen.name)


def parse_machines(result: CommandResult | None) -> tuple[Machine, ...]:
    """Return the machines of `podman machine list --format json`.

    Raises:
        EngineDownError: podman refused to list them, or printed something else.
    """
    if result is None:
        return ()
    if not result.ok:
        raise failure(result, "list")
    rows = _json_list(result.stdout)
    if rows is None:
        message = f"`podman machine list` printed no JSON list: {_cut(result.stdout)}"
        raise EngineDownError(message, remedy="Update podman.")
    return tuple(
        Machine(
            # The table marks the default with a star, and some versions did so in JSON.
            name=row["Name"].rstrip("*"),
            default=row.get("Default") is True,
            running=row.get("Running") is True,
            starting=row.get("Starting") is True,
        )
        for row in rows
        if isinstance(row.get("Name"), str) and row["Name"]
    )


def raced(result: CommandResult, verb: str, machine: str) -> bool:
    """Return whether a command failed only because somebody else was quicker."""
    said = result.stderr + result.stdout
    if verb == "init":
        return "VM already exists" in said
    if verb == "start" and _ALREADY_UP.search(said) and _LEFTOVER not in said:
        return other_machine(machine, said) is None
    return False


def other_machine(machine: str, said: str) -> str | None:
    """Return the machine that podman says is in the way of ours, if it names one."""
    for pattern in _OTHER_UP:
        if match := pattern.search(said):
            name = match["name"].strip('":')
            return None if name == machine else name
    return None


def failure(result: CommandResult, verb: str, machine: str = "") -> SandboxError:
    """Return the error for a `podman machine` command that failed."""
    said = result.stderr + "\n" + result.stdout
    command = f"podman machine {verb} {machine}".strip()
    if result.timed_out:
        message = f"`{command}` did not finish in time."
        return EngineDownError(message, remedy=f"Run `{command}` yourself and see where it stops.")
    message = f"`{command}` failed: {_cut(_reason(result))}"
    return EngineDownError(message, remedy=_remedy(machine, said, command))


def _remedy(machine: str, said: str, command: str) -> str:
    low = said.lower()
    if any(mark in low for mark in _DISK_FULL):
        return (
            "Free disk space: a new machine takes about 3 GB at first and grows to its disk size; "
            "see `podman system df` and `podman machine list`."
        )
    if any(mark in low for mark in _NO_VIRTUALISATION):
        return (
            "This computer offers no virtualisation: enable it in the firmware (Windows: also the "
            "Virtual Machine Platform; a cloud machine: nested virtualisation), or use docker."
        )
    if match := _HELPER_MISSING.search(said):
        helper = (match["found"] or match["exec"]).rsplit("/", 1)[-1]
        return f"podman's helper {helper} is missing: reinstall podman with its own installer."
    if "as root" in said:
        return "podman machines belong to ordinary users: run the bridge without sudo."
    if other := other_machine(machine, said):
        return (
            f"The machine {other} runs instead: use it with `podman system connection default "
            f"{other}`, or stop it with `podman machine stop {other}`."
        )
    if "does not exist" in said:
        return "See `podman machine list`; create one with `podman machine init`."
    if _LEFTOVER in said:
        return f"End the process it names, or run `podman machine stop {machine}`, then try again."
    if "vfkit exited" in said or "krunkit exited" in said or "vzerrordomain" in low:
        return (
            f"macOS could not start the virtual machine: run `{command} --log-level=debug`, and if "
            "the machine is damaged make a new one (`podman machine rm`, `podman machine init`)."
        )
    return f"Run `{command}` yourself to see all it says."


def _choose(machines: tuple[Machine, ...], connected: str | None) -> Machine | None:
    """Return the machine podman talks to: its connection's, the marked, the usual, or the only."""
    named = {machine.name: machine for machine in machines}
    if connected is not None and connected in named:
        return named[connected]
    for machine in machines:
        if machine.default:
            return machine
    if DEFAULT_MACHINE in named:
        return named[DEFAULT_MACHINE]
    return machines[0] if len(machines) == 1 else None


def _default_connection(result: CommandResult | None) -> Mapping[str, Any] | None:
    if result is None or not result.ok:
        return None
    for row in _json_list(result.stdout) or ():
        if row.get("Default") is True:
            return row
    return None


def _connects_elsewhere(result: CommandResult | None) -> bool:
    row = _default_connection(result)
    # Versions before 4.1 do not say; then the machine list decides.
    return row is not None and row.get("IsMachine") is False


def _connected_machine(result: CommandResult | None) -> str | None:
    row = _default_connection(result)
    if row is None or not isinstance(row.get("Name"), str):
        return None
    # A machine has two connections: its own name, and one for root's socket inside it.
    name: str = row["Name"].rstrip("*")
    return name.removesuffix("-root")


def _json_list(text: str) -> list[Mapping[str, Any]] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if value is None:  # some versions print null for an empty list
        return []
    if not isinstance(value, list):
        return None
    return [row for row in value if isinstance(row, dict)]


def _remote_engine_down(info: CommandResult) -> EngineDownError:
    message = f"podman cannot reach the engine it is set to use: {_cut(_reason(info))}"
    return EngineDownError(message, remedy="See `podman system connection list`.")


def _ambiguous(machines: tuple[Machine, ...]) -> EngineDownError:
    names = ", ".join(machine.name for machine in machines[:10])
    message = f"podman has several machines and none is the default: {names}."
    return EngineDownError(message, remedy="Start the one to use: `podman machine start NAME`.")


def _reason(result: CommandResult) -> str:
    """Return the line that says why: podman's last "Error:" line, or whatever there is."""
    lines = [line.strip() for line in (result.stderr or result.stdout).splitlines()]
    for line in reversed(lines):
        if line.startswith("Error:"):
            return line.removeprefix("Error:").strip()
    return next((line for line in reversed(lines) if line), "it said nothing")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= DETAIL_CHARS else text[: DETAIL_CHARS - 1] + "…"
