"""Judges which layers of isolation hold, by a sandbox's report from inside. Pure.

The guest reports before any user code runs. A layer that the report contradicts counts as missing,
and one that it confirms as verified. An invisible layer, such as an unmounted cgroup, is neither.

Enforces: a sandbox that lacks a layer of `MANDATORY` is not used.

Does not: detect a kernel or an engine that lies consistently. The random boot id proves a kernel of
the sandbox's own, and build and release prove gVisor; a runtime's name proves nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.errors import LaunchError, SandboxError
from bridge.model import HostKernel, Isolation
from bridge.sandbox.backend import READ_ONLY, TMP
from bridge.sandbox.ownership import BOOT_ID, read_text

OWN_KERNEL = "own-kernel"  # The layer's name.

_MACHINES = re.compile(r"kata|krun|crun-vm|firecracker|cloud-hypervisor", re.IGNORECASE)


def is_gvisor(runtime: str) -> bool:
    return re.search(r"runsc|gvisor", runtime, flags=re.IGNORECASE) is not None


def brings_own_kernel(runtime: str) -> bool:
    return is_gvisor(runtime) or _MACHINES.search(runtime) is not None


def own_kernel(facts: Mapping[str, Any], host: HostKernel) -> bool | None:
    """Return whether a guest's kernel is not the host's; None if unknown."""
    for key, theirs in (
        ("boot_id", host.boot_id),
        ("kernel_version", host.version),
        ("kernel", host.release),
    ):
        seen = facts.get(key)
        if seen and theirs:
            return bool(seen != theirs)
    return None


def this_kernel() -> HostKernel:
    found = os.uname()
    return HostKernel(release=found.release, version=found.version, boot_id=read_text(BOOT_ID))


Check = Callable[[Mapping[str, Any]], bool | None]
"""Returns whether a layer holds; None if the facts do not show it."""

_OF_THE_HOSTS_KERNEL = ("user-namespace", "private-ipc", "apparmor", "selinux")
"""Layers of the host's kernel, invisible to a guest with a kernel of its own."""


def _check_attempt(layer: str, *answers: str) -> Check:
    """Return the check of an attempt: whether it was refused with one of `answers`."""

    def check(facts: Mapping[str, Any]) -> bool | None:
        denials = facts.get("denials")
        answer = denials.get(layer) if isinstance(denials, dict) else None
        if answer in answers:
            return True
        return False if answer == "allowed" else None

    return check


def _check_fact(key: str, kind: type, holds: Callable[[Any], bool | None]) -> Check:
    """Return the check of a fact, which is unknown if it is absent or of another type."""

    def check(facts: Mapping[str, Any]) -> bool | None:
        return holds(facts[key]) if key in facts and isinstance(facts[key], kind) else None

    return check


def _equals(key: str, value: object) -> Check:
    return _check_fact(key, object, lambda found: found == value)


def _check_limit(key: str) -> Check:
    # Absent means that the guest cannot see its control group, which proves nothing.
    return _check_fact(key, object, lambda found: found is not None)


def _is_harmless(device: object) -> bool:
    # Kernels put tunnel devices without addresses into every new network namespace.
    harmless = ("lo", "tunl0", "sit0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0")
    return device in harmless or str(device).startswith("ip6")


def _check_filter(facts: Mapping[str, Any]) -> bool | None:
    # Kernels before 5.9 do not count filters.
    none = facts.get("seccomp") == 0 or facts.get("seccomp_filters") == 0
    return False if none else None


def _check_masks(facts: Mapping[str, Any]) -> bool | None:
    shown, fixed = facts.get("unmasked"), facts.get("settings_read_only")
    if shown or fixed is False:
        return False
    return True if shown == [] and fixed else None


def _check_noexec(mounts: Mapping[str, Any]) -> bool | None:
    found = [isinstance(mount, dict) and bool(mount.get("noexec")) for mount in mounts.values()]
    return all(found) if found else None


def _check_bounds(found: Mapping[str, Any]) -> bool | None:
    if not {"core", "nofile"} <= set(found):
        return None
    return found["core"] == 0 and found["nofile"] is not None


_CONFINED = _check_fact(
    "label", str, lambda text: not text.startswith("unconfined") if text else None
)


_CHECKS: Mapping[str, tuple[Check, ...]] = {
    "no-network": (
        _check_fact("interfaces", list, lambda names: all(map(_is_harmless, names))),
        # Any other errno means that there is a network.
        _check_attempt(
            "no-network", "ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EAFNOSUPPORT", "EPERM"
        ),
    ),
    "read-only-root": (_equals("root_read_only", True), _check_attempt("read-only-root", "EROFS")),
    "sized-tmpfs-noexec": (
        _check_fact("mounts", dict, _check_noexec),
        _check_attempt("sized-tmpfs-noexec", "EACCES", "EPERM"),
    ),
    "no-capabilities": (
        _check_fact("cap_eff", str, lambda text: not text.strip("0")),
        _check_attempt("no-capabilities", "EPERM"),
    ),
    "no-new-privileges": (_equals("no_new_privs", 1),),
    "unprivileged-user": (
        _check_fact("uid", int, lambda uid: uid != 0),
        _check_attempt("unprivileged-user", "EPERM", "EINVAL"),
    ),
    "seccomp": (_equals("seccomp", 2),),
    "own-seccomp": (_check_filter, _check_attempt("own-seccomp", "ENOSYS")),
    "landlock": (_check_attempt("landlock", "EACCES"),),
    # The same attempt (listing a directory without a rule), with macOS's errno.
    "seatbelt": (_check_attempt("landlock", "EPERM"),),
    # Without a network namespace: the host's network, with the calls to reach it refused.
    "network-calls-refused": (_check_attempt("no-network", "EAFNOSUPPORT", "EPERM", "EACCES"),),
    "user-namespace": (_check_fact("uid_map", list, lambda ids: ids != [[0, 0, 4294967295]]),),
    "private-ipc": (
        # The initial IPC namespace on every Linux kernel.
        _check_fact(
            "namespaces",
            dict,
            lambda of: of["ipc"] != "ipc:[4026531839]" if of.get("ipc") else None,
        ),
    ),
    "masked-proc": (_check_masks,),
    "ulimits": (_check_fact("rlimits", dict, _check_bounds),),
    "apparmor": (_CONFINED,),
    "selinux": (_CONFINED,),
    # Commands only.
    "granted-paths-only": (_equals("unexpected_mounts", []),),
    "named-executables-only": (_check_attempt("named-executables-only", "EACCES"),),
    "memory-limit": (_check_limit("memory_limit_bytes"),),
    "pids-limit": (_check_limit("pids_limit"),),
    "cpu-limit": (_check_limit("cpu_limit"),),
}


def verify_isolation(isolation: Isolation, facts: Mapping[str, Any]) -> Isolation:
    """Return `isolation` without the layers that `facts` contradict."""
    held, seen, missing = [], [], list(isolation.weaker)
    for layer in isolation.layers:
        looks = _look(layer, isolation, facts)
        if False in looks:
            missing.append(f"{layer}: asked for, but seen from inside not to hold")
            continue
        held.append(layer)
        if True in looks:
            seen.append(layer)
    return replace(
        isolation, layers=tuple(held), weaker=tuple(missing), verified=tuple(seen), host_kernel=None
    )


def common(isolations: Sequence[Isolation]) -> Isolation:
    """Return the isolation of several sandboxes: their common layers, and all weaknesses."""
    first = isolations[0]
    return replace(
        first,
        layers=tuple(x for x in first.layers if all(x in i.layers for i in isolations)),
        weaker=tuple(dict.fromkeys(text for i in isolations for text in i.weaker)),
        verified=tuple(x for x in first.verified if all(x in i.verified for i in isolations)),
    )


def _look(layer: str, isolation: Isolation, facts: Mapping[str, Any]) -> Iterable[bool | None]:
    if layer == OWN_KERNEL:
        return [own_kernel(facts, isolation.host_kernel or HostKernel())]
    if layer in _OF_THE_HOSTS_KERNEL and OWN_KERNEL in isolation.layers:
        return []
    if layer.startswith(READ_ONLY):
        binds = facts.get("binds")
        if not isinstance(binds, dict):
            return [None]
        mount = binds.get(layer.removeprefix(READ_ONLY))
        return [isinstance(mount, dict) and mount.get("read_only") is True]
    return [check(facts) for check in _CHECKS.get(layer, ())]


def of_command(isolation: Isolation, facts: Mapping[str, Any]) -> Isolation:
    """Return a command's isolation as seen from inside."""
    # The workspace is the user's directory; all else that is writable is in memory.
    found = facts.get("mounts")
    mounts = {TMP: found[TMP]} if isinstance(found, dict) and TMP in found else {}
    seen = {**facts, "mounts": mounts}
    require_mandatory_layers(isolation, seen)
    return verify_isolation(isolation, seen)


MANDATORY = (
    "no-network", "read-only-root", "no-capabilities", "no-new-privileges", "unprivileged-user",
    "seccomp", "own-seccomp", "landlock", "seatbelt", "network-calls-refused",
    "granted-paths-only", "named-executables-only",
)  # fmt: skip
"""If one of these was requested and does not hold, its mechanism failed and cannot be trusted."""


def require_mandatory_layers(isolation: Isolation, facts: Mapping[str, Any]) -> None:
    """Raise SandboxError if the facts contradict a mandatory layer.

    If the OCI runtime promises a kernel of the sandbox's own, the facts must confirm it.
    """
    if OWN_KERNEL in isolation.layers and True not in _look(OWN_KERNEL, isolation, facts):
        named = isolation.oci_runtime
        message = f"{named} started a sandbox that shows no kernel other than the host's."
        remedy = f"See what the engine's configuration starts as {named}, or name another OCI "
        remedy += "runtime with MCP_BRIDGE_OCI_RUNTIME."
        raise LaunchError(message, remedy=remedy, code="oci_runtime_broken")
    claimed = [layer for layer in MANDATORY if layer in isolation.layers]
    claimed += [layer for layer in isolation.layers if layer.startswith(READ_ONLY)]
    refused = [layer for layer in claimed if False in _look(layer, isolation, facts)]
    if refused:
        raise SandboxError(
            f"The sandbox of {isolation.backend} is not what it should be, so nothing was run:"
            f" seen from inside, it lacks {', '.join(refused)}.",
            code="isolation_broken",
        )
