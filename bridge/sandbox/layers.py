"""Which layers of isolation hold, once the sandbox has looked at itself. Pure.

A backend says what it asked for. The guest reports what it sees from inside. Where the two
disagree, the layer is reported as missing: no layer is claimed that could be seen not to hold.
The report comes from inside before any user code runs, so user code cannot shape it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bridge.model import Isolation, Limits

PROCESSES_FACTOR = 4
"""Where no cgroup limits processes, the kernel counts them per user id over all sandboxes of that
id; so the limit leaves room for several at once."""

Check = Callable[[Mapping[str, Any]], bool | None]
"""Whether a layer is seen to hold; None when the facts do not tell."""


def _equals(key: str, value: object) -> Check:
    def check(facts: Mapping[str, Any]) -> bool | None:
        return facts[key] == value if key in facts else None

    return check


def _no_network(facts: Mapping[str, Any]) -> bool | None:
    found = facts.get("interfaces")
    if not isinstance(found, list):
        return None
    # Kernels put tunnel devices without addresses into every new network namespace.
    harmless = ("lo", "tunl0", "sit0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0")
    return all(name in harmless or str(name).startswith("ip6") for name in found)


def _no_capabilities(facts: Mapping[str, Any]) -> bool | None:
    text = facts.get("cap_eff")
    if not isinstance(text, str):
        return None
    return text.strip("0") == ""


def _unprivileged(facts: Mapping[str, Any]) -> bool | None:
    return facts["uid"] != 0 if "uid" in facts else None


def _limited(key: str) -> Check:
    def check(facts: Mapping[str, Any]) -> bool | None:
        # Absent means that the guest cannot see its control group, which proves nothing.
        return facts[key] is not None if key in facts else None

    return check


def _user_namespace(facts: Mapping[str, Any]) -> bool | None:
    found = facts.get("uid_map")
    if not isinstance(found, list):
        return None
    return found != [[0, 0, 4294967295]]


def _own_seccomp(facts: Mapping[str, Any]) -> bool | None:
    if facts.get("seccomp") == 0:
        return False
    # Kernels before 5.9 do not count filters.
    counted = facts.get("seccomp") == 2 and facts.get("seccomp_filters", 0) >= 1
    return True if counted else None


def _tmpfs_noexec(facts: Mapping[str, Any]) -> bool | None:
    found = facts.get("mounts")
    if not isinstance(found, dict) or not found:
        return None
    return all(isinstance(mount, dict) and bool(mount.get("noexec")) for mount in found.values())


_CHECKS: Mapping[str, Check] = {
    "no-network": _no_network,
    "read-only-root": _equals("root_read_only", True),
    "sized-tmpfs-noexec": _tmpfs_noexec,
    "no-capabilities": _no_capabilities,
    "no-new-privileges": _equals("no_new_privs", 1),
    "unprivileged-user": _unprivileged,
    "seccomp": _equals("seccomp", 2),
    "own-seccomp": _own_seccomp,
    "user-namespace": _user_namespace,
    "memory-limit": _limited("memory_limit_bytes"),
    "pids-limit": _limited("pids_limit"),
    "cpu-limit": _limited("cpu_limit"),
}


def verified(isolation: Isolation, facts: Mapping[str, Any]) -> Isolation:
    """Return `isolation` without the layers that `facts` contradict.

    Args:
        isolation: What the backend put in force.
        facts: What the guest read of itself when it started.
    """
    held, missing = [], list(isolation.weaker)
    for layer in isolation.layers:
        check = _CHECKS.get(layer)
        seen = check(facts) if check is not None else None
        if seen is False:
            missing.append(f"{layer}: asked for, but seen from inside not to hold")
        else:
            held.append(layer)
    return replace(isolation, layers=tuple(held), weaker=tuple(missing))


def guest_limits(isolation: Isolation, limits: Limits) -> dict[str, int]:
    """Return the limits that the guest must set on its worker, because the engine does not."""
    wanted: dict[str, int] = {}
    if "memory-limit" not in isolation.layers:
        wanted["address_space_bytes"] = limits.memory_bytes
    if "pids-limit" not in isolation.layers:
        wanted["processes"] = limits.pids * PROCESSES_FACTOR
    if "ulimits" not in isolation.layers:
        wanted["open_files"] = limits.open_files
    return wanted
