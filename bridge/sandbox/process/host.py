"""Reads this machine's kernel settings and features, and finds the user for sandboxes.

Also checks that a sandbox's user can reach its host paths, and explains bubblewrap's failures with
one remedy per cause.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import LaunchError, SandboxError
from bridge.sandbox.backend import WORKSPACE, LaunchSpec, group_of
from bridge.sandbox.ownership import output_of, read_text
from bridge.sandbox.process.command import UID


def find_command(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of a command on the bridge's search path; None if not found."""
    found = shutil.which(name, path=environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin")
    return os.path.realpath(found) if found is not None else None


def unprivileged_uid() -> int | None:
    """Return the programs' user outside if the bridge is root; None for the bridge's own."""
    is_root = os.getuid() == 0 and is_mapped(UID, read_text("/proc/self/uid_map"))
    return UID if is_root else None


def find_setpriv(environ: Mapping[str, str]) -> str:
    """Return the path of a `setpriv` that can switch to another user here, or "". Blocks."""
    setpriv, look = find_command("setpriv", environ), find_command("id", environ)
    if not (setpriv and look):
        return ""
    shown = output_of([*become(UID, UID, setpriv=setpriv), look]) or ""
    return setpriv if set(re.findall(r"\b\d+\b", shown)) == {str(UID)} else ""


def become(uid: int | None, gid: int | None, *, setpriv: str, python: str = "") -> list[str]:
    """Return the words that start a command as a user and a group, without other groups.

    Without `setpriv`, which is 10 ms faster, `python` changes the user.
    """
    if uid is None:
        return []
    if setpriv:
        return [setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]
    return [python, "-I", "-S", "-c", _BECOME, str(uid), str(gid)]


_BECOME = """
import os, sys
uid, gid = map(int, sys.argv[1:3])
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(frozen=True, kw_only=True)
class SubordinateIds:
    """The host's ids that only the bridge's user has, and that sandboxes run as.

    The kernel counts watches, signals, descriptors in flight and pipes for each id.
    """

    unshare: str
    uids: range
    gids: range

    def command(self, uid: int) -> list[str]:
        """Return the words that start a command as a random one of the ids."""
        outside = secrets.choice(self.uids), secrets.choice(self.gids)
        kinds = zip(("users", "groups"), outside, strict=True)
        maps = [f"--map-{kind}={own},{uid},1" for kind, own in kinds]
        return [self.unshare, "--user", *maps, f"--setgid={uid}", f"--setuid={uid}", "--"]


def find_subordinate_ids(uid: int, environ: Mapping[str, str]) -> SubordinateIds | None:
    """Return this user's subordinate ids if a process can run as one of them. Blocks."""
    try:
        names = {pwd.getpwuid(os.getuid()).pw_name, str(os.getuid())}
    except KeyError:
        return None
    uids, gids = (_first_range(read_text(f"/etc/{file}"), names) for file in ("subuid", "subgid"))
    unshare, true = find_command("unshare", environ), find_command("true", environ)
    if not (uids and gids and unshare and true):
        return None
    found = SubordinateIds(unshare=unshare, uids=uids, gids=gids)
    return found if output_of([*found.command(uid), true]) is not None else None


def _first_range(table: str, names: set[str]) -> range:
    for line in table.splitlines():
        name, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if name in names and first.isdecimal() and count.isdecimal() and int(count):
            return range(int(first), int(first) + int(count))
    return range(0)


def kernel_settings(bwrap: str) -> KernelSettings:
    mode = 0
    with suppress(OSError):
        mode = Path(bwrap).stat().st_mode
    return KernelSettings(
        userns_clone=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        apparmor_restricts=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        in_container=in_container(),
        setuid=bool(mode & stat.S_ISUID),
    )


def in_container() -> bool:
    marks = (Path("/run/.containerenv"), Path("/.dockerenv"))
    return any(mark.exists() for mark in marks) or "container=" in read_text("/proc/1/environ")


def is_mapped(uid: int, uid_map: str) -> bool:
    """Return whether /proc/self/uid_map maps a user id.

    Root in a user namespace with a single id is an ordinary user outside.
    """
    for line in uid_map.splitlines():
        words = line.split()
        if len(words) == 3 and int(words[0]) <= uid < int(words[0]) + int(words[2]):
            return True
    return False


def counts_processes_per_namespace(release: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _number(path: str) -> int | None:
    value = read_text(path)
    return int(value) if value.isdecimal() else None


_COMMAND_REMEDY = (
    "The bridge runs as root, and commands as the owner of the workspace, or as user nobody "
    "(65534) if that is root. Give the workspace to an ordinary user who may use all "
    "these paths, or run the bridge as that user."
)


def outside_ids(spec: LaunchSpec, nobody_uid: int | None) -> tuple[int | None, int | None]:
    """Return a sandbox's user and group outside; None for the bridge's own. Blocks.

    If the bridge is root, programs run as `nobody_uid`. Commands run as the owner of the workspace,
    whose files they write, or as `nobody_uid` if that is root.
    """
    if nobody_uid is None:
        return None, None
    uid, gid = nobody_uid, nobody_uid
    if spec.command is None:
        for bind in spec.binds:
            change = "Give it to them (`chown 65534`)" if bind.writable else "Let others read it"
            change += ", in a place that every user may enter, such as /srv"
            if bind.executable:
                change = "Remove `cache` from [dependencies], or set it to a directory that every "
                change += "user may reach"
            remedy = f"The bridge runs as root, and programs as nobody (65534). {change}; or run "
            remedy += "the bridge as an ordinary user."
            require_reachable(bind.source, uid, uid, bind.writable, remedy)
        return uid, gid
    for bind in spec.binds:
        if bind.inside == WORKSPACE:
            owner = Path(bind.source).stat().st_uid
            if owner != 0 and is_mapped(owner, read_text("/proc/self/uid_map")):
                uid, gid = owner, group_of(owner)
    for bind in spec.binds:
        require_reachable(bind.source, uid, gid, bind.writable, _COMMAND_REMEDY)
    for tool in spec.command.executables:
        for path in tool.executes:
            require_reachable(path, uid, gid, False, _COMMAND_REMEDY)
    return uid, gid


def require_reachable(path: str, uid: int, gid: int, writable: bool, remedy: str) -> None:
    problem = ""
    for parent in reversed(Path(path).parents):
        if not _may(parent, uid, gid, 0o1):
            problem = f"may not enter {parent}"
            break
    wanted = 0o4 | (0o2 if writable else 0) | (0o1 if Path(path).is_dir() else 0)
    if not problem and not _may(Path(path), uid, gid, wanted):
        problem = f"may not {'write to' if writable else 'read'} it"
    if problem:
        message = f"{path} cannot be put into a sandbox: user {uid} {problem}."
        raise LaunchError(message, remedy=remedy)


def _may(path: Path, uid: int, gid: int, wanted: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == gid else 0
    return (stat.S_IMODE(found.st_mode) >> shift) & wanted == wanted


MAX_SAID = 600  # Characters of another program's output kept in a message.

INSTALL_REMEDY = (
    "Install bubblewrap (Debian and Ubuntu: `apt install bubblewrap`; Fedora: `dnf install "
    "bubblewrap`; Arch: `pacman -S bubblewrap`)."
)

APPARMOR_REMEDY = (
    "This system's AppArmor restricts user namespaces (Ubuntu 23.10 and later). Either give "
    "bubblewrap a profile: `printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile bwrap "
    "/usr/bin/bwrap flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee /etc/apparmor.d/bwrap` and "
    "`sudo systemctl reload apparmor`; or lift the restriction for everything: `sudo sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0`."
)

CLONE_REMEDY = (
    "User namespaces are turned off for ordinary users: `sudo sysctl -w "
    "kernel.unprivileged_userns_clone=1`."
)

MAXIMUM_REMEDY = (
    "The kernel allows no (more) user namespaces: `sudo sysctl -w user.max_user_namespaces=15000`."
)

CONTAINER_REMEDY = (
    "The bridge seems to run inside a container that does not allow namespaces. Run it outside, or "
    "let this container make them (docker: `--security-opt seccomp=unconfined --security-opt "
    "systempaths=unconfined`; podman: `--security-opt seccomp=unconfined --security-opt "
    "unmask=ALL`). The weaker tier, MCP_BRIDGE_RUNTIME=landlock, needs none."
)

SETUID_REMEDY = (
    "Make bubblewrap an ordinary program, `sudo chmod u-s /usr/bin/bwrap`, on a kernel that "
    "allows unprivileged user namespaces."
)

BROKEN_REMEDY = (
    "See whether `bwrap --ro-bind / / true` works, and reinstall bubblewrap if it does not; "
    "`mcp-code-bridge doctor` tries again."
)


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """The kernel's settings for user namespaces; None if it has no such setting."""

    userns_clone: int | None = None
    max_user_namespaces: int | None = None
    apparmor_restricts: int | None = None
    in_container: bool = False
    setuid: bool = False


_NO_NAMESPACE = (
    r"No permissions to cre?ate? ?a? ?new namespace|Creating new namespace failed"
    r"|setting up uid map|setting up gid map|loopback: Failed|Failed to make / slave"
    r"|unshare user ns|Unable to create user namespace"
    # What podman's own list of system calls refuses first.
    r"|Can't set hostname"
)


def bubblewrap_failed(said: str, kernel: KernelSettings) -> SandboxError:
    said = said.strip()[-MAX_SAID:]
    unknown = re.search(r"Unknown option (\S+)", said)
    if unknown:
        message = f"This bubblewrap is too old: it does not know {unknown[1]}."
        remedy = "Install bubblewrap 0.5 or newer."
        return LaunchError(message, remedy=remedy, code="oci_runtime_broken")
    capable = "Run the bridge as root or as an ordinary user."
    setuid = "is installed setuid, which forbids what is needed"
    for regex, problem, remedy in (
        ("setuid" if kernel.setuid else "(?!)", setuid, SETUID_REMEDY),
        (r"Can't mount proc on", "may not mount a fresh /proc here", CONTAINER_REMEDY),
        (_NO_NAMESPACE, "may not make namespaces here", _namespace_remedy(kernel)),
        ("Unexpected capabilities", "was started with capabilities", capable),
    ):
        if re.search(regex, said, re.IGNORECASE):
            message = f"bubblewrap {problem}: {said}"
            return LaunchError(message, remedy=remedy, code="oci_runtime_broken")
    message = f"bubblewrap did not start the sandbox: {said or 'it wrote nothing'}."
    return LaunchError(message, remedy=BROKEN_REMEDY)


def stage_failed(said: str, kernel: KernelSettings) -> SandboxError:
    said = said.strip()[:MAX_SAID]
    if said.startswith("mounting ") and kernel.apparmor_restricts:
        # Ubuntu's own profile for bubblewrap takes all capabilities from what it starts.
        message = f"AppArmor keeps the sandbox from being finished: {said}."
        return LaunchError(message, remedy=APPARMOR_REMEDY, code="oci_runtime_broken")
    message = f"The sandbox could not be finished: {said or 'it wrote nothing'}."
    return LaunchError(message, remedy=BROKEN_REMEDY)


def _namespace_remedy(kernel: KernelSettings) -> str:
    if kernel.max_user_namespaces == 0:
        return MAXIMUM_REMEDY
    if kernel.userns_clone == 0:
        return CLONE_REMEDY
    if kernel.apparmor_restricts:
        return APPARMOR_REMEDY
    if kernel.in_container:
        return CONTAINER_REMEDY
    return f"{MAXIMUM_REMEDY} If that is not it: {CONTAINER_REMEDY}"
