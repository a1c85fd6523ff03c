"""`doctor --fix`: does what is safe here and needs no root, and prints the commands that need it.

Decides from the probes and from what the machine has (`Machine`), then asks before each step. Never
installs anything, and changes nothing of the system's: that is left to the commands it prints.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import stat
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

from bridge.cli.image import build_image
from bridge.cli.line import PROGRAM
from bridge.cli.output import visible, write_err
from bridge.cli.person import Person
from bridge.errors import (
    BridgeError,
    EngineDownError,
    EngineNotFoundError,
    EnginePermissionError,
    ImageBuildError,
    ImageMissingError,
    ImagePullError,
    SandboxError,
)
from bridge.sandbox.backend import Probe
from bridge.sandbox.container.command_runner import SystemRunner
from bridge.sandbox.container.image import DEFAULT_FALLBACK
from bridge.sandbox.process import host
from bridge.sandbox.process.faults import KernelSettings
from bridge.settings import Settings

STEP_SECONDS = 900.0
"""For one command: a virtual machine starts within two minutes, an image of 1 GB comes in ten."""

SUBORDINATE_IDS = 65_536
"""What a rootless container may use; fewer, and images cannot be unpacked."""

FIRST_SUBORDINATE = 100_000
"""Where ranges begin by the distributions' own tools."""

_INSTALL = {
    "apt-get": "apt-get install -y",
    "dnf": "dnf install -y",
    "pacman": "pacman -S --noconfirm",
    "zypper": "zypper install -y",
    "apk": "apk add",
}
"""Package managers and how each installs, the first that is there."""

_APPARMOR = """tee /etc/apparmor.d/bwrap >/dev/null <<'EOF'
abi <abi/4.0>,
include <tunables/global>
profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}
EOF"""

_BOOTED = Path("/run/systemd/system")
"""Is there where systemd started the system."""

_COMMANDS = (*_INSTALL, "bwrap", "podman", "docker", "mmdebstrap", "systemctl")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the steps depend on.

    Attributes:
        commands: Those of `_COMMANDS` that are installed.
        subordinate: The texts of /etc/subuid and /etc/subgid.
        own_docker: Whether this user has a Docker service of their own (rootless Docker).
        state: The state directory, its links followed; empty if there is none.
        state_fault: What is wrong with it: "open" to other users, "closed" to this one, or
            "foreign": another user's, and closed.
    """

    user: str
    uid: int
    platform: str
    commands: frozenset[str]
    kernel: KernelSettings = KernelSettings()
    subordinate: tuple[str, str] = ("", "")
    own_docker: bool = False
    state: str = ""
    state_fault: Literal["", "open", "closed", "foreign"] = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something to do as this user.

    Attributes:
        says: What it does, for the question.
        argv: The command; empty to build the image on `engine`.
    """

    says: str
    argv: tuple[str, ...] = ()
    engine: str = ""


@dataclass(frozen=True)
class Plan:
    """What `doctor --fix` does, and the lines of shell that are left to root."""

    steps: tuple[Step, ...]
    as_root: tuple[str, ...]


def plan(probes: Sequence[Probe], settings: Settings, machine: Machine) -> Plan:
    """Return what would make programs run here; nothing for what is not needed."""
    steps: list[Step] = []
    as_root: list[str] = []
    if machine.state_fault:
        _mend_state(settings, machine, steps, as_root)
    chosen = next((probe for probe in probes if probe.ok), None)
    if chosen is not None:
        if chosen.details.get("image") == DEFAULT_FALLBACK:
            steps.append(_build(chosen.backend))
        return Plan(tuple(steps), tuple(as_root))
    mends = False
    for probe in probes:
        found, commands = _mend(probe, settings, machine)
        steps += found
        mends = mends or bool(found or commands)
        as_root += [f"# for {probe.backend}:", *commands] if commands else []
    if not mends and machine.platform == "linux":
        as_root += _install(machine, "bubblewrap")
    return Plan(tuple(steps), tuple(as_root))


def _mend_state(
    settings: Settings, machine: Machine, steps: list[Step], as_root: list[str]
) -> None:
    """Add what makes the state directory this user's alone."""
    place, fault = machine.state, machine.state_fault
    if fault == "foreign":
        owner = shlex.join(("chown", "-R", machine.user, place))
        as_root += ["# for the bridge's state, if nothing else is in there:", f"sudo {owner}"]
        return
    argv = ("chmod", "go-rwx" if fault == "open" else "u+rwx", place)
    if place == str(settings.state_dir) and settings.state_dir.name == PROGRAM:
        says = f"Close {place} to other users." if fault == "open" else f"Let you use {place}."
        steps.append(Step(says=says, argv=argv))
    else:
        # A directory that somebody named, such as /var, may be there for others too.
        as_root += ["# for the bridge's state, if nothing else is in there:", shlex.join(argv)]


def _mend(
    probe: Probe, settings: Settings, machine: Machine
) -> tuple[Sequence[Step], Sequence[str]]:
    """Return the steps and root's commands for one backend that does not work."""
    name, code = probe.backend, probe.error_code
    named = settings.runtime == name
    if name == "bubblewrap":
        return (), _mend_bubblewrap(probe, machine)
    if code == ImageMissingError.code:
        if not settings.image:
            return (_build(name),), ()
        if settings.image.startswith("localhost/"):
            return (), ()
        says = f"Fetch the image {settings.image} on {name}."
        return (Step(says=says, argv=(name, "pull", settings.image)),), ()
    if code == EngineNotFoundError.code:
        package = "docker.io" if name == "docker" and "apt-get" in machine.commands else name
        return (), _install(machine, package) if named else ()
    if code == EnginePermissionError.code and name == "docker":
        return (), (_root(machine, f"usermod -aG docker {machine.user}"), "# then log in again")
    if code == EngineDownError.code and machine.platform == "darwin" and name == "podman":
        says = "Start podman's virtual machine (a minute)."
        return (Step(says=says, argv=("podman", "machine", "start")),), ()
    if code == EngineDownError.code and name == "docker" and machine.own_docker:
        argv = ("systemctl", "--user", "start", "docker")
        return (Step(says="Start your own Docker service.", argv=argv),), ()
    if code == EngineDownError.code and name == "docker" and "systemctl" in machine.commands:
        return (), (_root(machine, "systemctl enable --now docker"),)
    if name == "podman" and machine.uid != 0 and not _has_ids(machine):
        return (), _subordinate_ids(machine)
    return (), ()


def _mend_bubblewrap(probe: Probe, machine: Machine) -> tuple[str, ...]:
    """Return root's commands: bubblewrap needs nothing else."""
    if probe.error_code == EngineNotFoundError.code:
        # Else it is a Python that is missing.
        return _install(machine, "python3" if "bwrap" in machine.commands else "bubblewrap")
    kernel, commands = machine.kernel, []
    if kernel.in_container:
        return ()
    for wanted, value in (
        ("user.max_user_namespaces=15000", kernel.max_user_namespaces == 0),
        ("kernel.unprivileged_userns_clone=1", kernel.userns_clone == 0),
    ):
        if value:
            kept = _root(machine, "tee -a /etc/sysctl.d/99-user-namespaces.conf")
            commands += [f"echo {wanted} | {kept}", _root(machine, f"sysctl -w {wanted}")]
    if kernel.apparmor_restricts:
        commands += [_root(machine, _APPARMOR), _root(machine, "systemctl reload apparmor")]
    if kernel.setuid:
        commands.append(_root(machine, "chmod u-s /usr/bin/bwrap"))
    return tuple(commands)


def _build(engine: str) -> Step:
    says = (
        f"Build the runtime image on {engine}: fetches {DEFAULT_FALLBACK} (about 45 MB), or takes "
        "Debian's packages if no registry answers and mmdebstrap is there; one to three minutes."
    )
    return Step(says=says, engine=engine)


def _install(machine: Machine, package: str) -> tuple[str, ...]:
    known = next((how for name, how in _INSTALL.items() if name in machine.commands), "")
    if not known:
        return (f"# install {package}, by your system's way to install packages",)
    return (_root(machine, f"{known} {package}"),)


def _root(machine: Machine, command: str) -> str:
    return command if machine.uid == 0 else f"sudo {command}"


def _has_ids(machine: Machine) -> bool:
    names = (machine.user, str(machine.uid))
    return all(
        any(line.split(":")[0] in names for line in text.splitlines())
        for text in machine.subordinate
    )


def _subordinate_ids(machine: Machine) -> tuple[str, ...]:
    """Return the command that gives this user a range that nobody has."""
    ends = [FIRST_SUBORDINATE]
    for line in "\n".join(machine.subordinate).splitlines():
        words = line.split(":")
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            ends.append(int(words[1]) + int(words[2]))
    first = max(ends)
    ids = f"{first}-{first + SUBORDINATE_IDS - 1}"
    command = f"usermod --add-subuids {ids} --add-subgids {ids} {machine.user}"
    return _root(machine, command), "podman system migrate"


def this_machine(settings: Settings) -> Machine:
    """Return what this machine has."""
    search = settings.environ.get("PATH")
    home = Path(settings.environ.get("HOME") or "/")
    units = (home / ".config/systemd/user", Path("/usr/lib/systemd/user"))
    commands = {name for name in _COMMANDS if shutil.which(name, path=search)}
    state = Path(os.path.realpath(settings.state_dir))
    if not _BOOTED.is_dir():
        # In most containers it is installed, and can start nothing.
        commands.discard("systemctl")
    return Machine(
        user=_user(),
        uid=os.geteuid(),
        platform=sys.platform,
        commands=frozenset(commands),
        kernel=host.kernel_settings(host.find_command("bwrap", settings.environ)),
        subordinate=(host.text("/etc/subuid"), host.text("/etc/subgid")),
        own_docker=any((place / "docker.service").is_file() for place in units),
        state=str(state),
        state_fault=_state_fault(state),
    )


def _user() -> str:
    """Return this user's name; not what the environment says, which `sudo -E` leaves."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _state_fault(place: Path) -> Literal["", "open", "closed", "foreign"]:
    """Return what is wrong with a directory; see `Machine`."""
    try:
        found = place.stat()
    except OSError:
        return ""
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return ""
    if found.st_uid != os.geteuid():
        usable = os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
        return "" if usable else "foreign"
    if mode & 0o700 != 0o700:
        return "closed"
    return "open" if mode & 0o077 else ""


async def fix(
    found: Plan, settings: Settings, *, yes: bool, person: Person | None = None
) -> tuple[str, ...]:
    """Do the steps that are agreed to; return what was done.

    Args:
        yes: Whether all are agreed to. Without a person at a terminal, else none is.
    """
    person = person or Person(sys.stdin, sys.stderr)
    done = []
    for step in found.steps:
        write_err(visible(f"fix: {step.says}\n"))
        if step.argv:
            write_err(visible(f"     {shlex.join(step.argv)}\n"))
        if not yes and not person.attended:
            write_err("     not done: no person can be asked here; --yes does it\n")
        elif yes or await person.confirm("Do it?"):
            try:
                await _do(step, settings)
                done.append(step.says)
            except (BridgeError, OSError) as error:
                write_err(visible(f"     failed: {error}\n"))
    if not found.steps and not found.as_root:
        write_err("fix: there is nothing that it can do\n")
    return tuple(done)


async def _do(step: Step, settings: Settings) -> None:
    if step.engine:
        await _build_on(replace(settings, runtime=step.engine), build_image)
        return
    result = await SystemRunner(env=settings.environ)(step.argv, timeout=STEP_SECONDS)
    if not result.ok:
        raise SandboxError(f"{shlex.join(step.argv)}: {result.stderr.strip() or 'it failed'}")


Build = Callable[[SimpleNamespace, Settings], Awaitable[int]]


async def _build_on(settings: Settings, build: Build) -> None:
    """Build the image; without a registry from Debian's packages, if that is possible."""
    asked = SimpleNamespace(flavour="slim", offline=False, fresh=False, json=False)
    try:
        await build(asked, settings)
    except SandboxError as error:
        if shutil.which("mmdebstrap", path=settings.environ.get("PATH")) is None:
            if not isinstance(error, ImagePullError | ImageBuildError):
                raise
            command = " ".join(_install(this_machine(settings), "mmdebstrap"))
            remedy = f"Without a registry it is built from Debian's packages, after: {command}"
            raise type(error)(error.message, remedy=remedy) from error
        write_err(visible(f"     {error.message}\n     from Debian's packages instead:\n"))
        await build(SimpleNamespace(**{**vars(asked), "offline": True}), settings)


def commands_text(found: Plan) -> str:
    """Return root's commands, to be copied; empty for none."""
    if not found.as_root:
        return ""
    return "\n".join(("To be run by you; one sandbox is enough:", "", *found.as_root, "", ""))
