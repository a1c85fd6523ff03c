"""Explains bubblewrap's failures, from its stderr and the kernel's settings. Pure.

Owns the remedies, one per cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bridge.errors import LaunchError, SandboxError

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
    """The kernel's settings for user namespaces; None if it has no such setting.

    Attributes:
        userns_clone: kernel.unprivileged_userns_clone (Debian's and Arch's kernels).
        apparmor_restricts: kernel.apparmor_restrict_unprivileged_userns.
    """

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


def classify(said: str, kernel: KernelSettings) -> SandboxError:
    said = said.strip()[-MAX_SAID:]
    unknown = re.search(r"Unknown option (\S+)", said)
    if unknown:
        message = f"This bubblewrap is too old: it does not know {unknown[1]}."
        return LaunchError(
            message, remedy="Install bubblewrap 0.5 or newer.", code="oci_runtime_broken"
        )
    capable = "Run the bridge as root or as an ordinary user."
    setuid = "is installed setuid, which forbids what is needed"
    for regex, problem, remedy in (
        ("setuid" if kernel.setuid else "(?!)", setuid, SETUID_REMEDY),
        (r"Can't mount proc on", "may not mount a fresh /proc here", CONTAINER_REMEDY),
        (_NO_NAMESPACE, "may not make namespaces here", _namespace_remedy(kernel)),
        ("Unexpected capabilities", "was started with capabilities", capable),
    ):
        if re.search(regex, said, re.IGNORECASE):
            return LaunchError(
                f"bubblewrap {problem}: {said}", remedy=remedy, code="oci_runtime_broken"
            )
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
