"""Layers are claimed only as far as they are seen to hold."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.model import Isolation, Limits
from bridge.sandbox.layers import guest_limits, verified

GOOD: dict[str, Any] = {
    "interfaces": ["lo"],
    "root_read_only": True,
    "mounts": {"/tmp": {"noexec": True}, "/workspace": {"noexec": True}},
    "cap_eff": "0000000000000000",
    "no_new_privs": 1,
    "uid": 65534,
    "seccomp": 2,
    "seccomp_filters": 1,
    "uid_map": [[0, 100000, 65536]],
    "memory_limit_bytes": 1,
    "pids_limit": 1,
    "cpu_limit": 1.0,
}

LAYERS = {
    "no-network": ("interfaces", ["eth0", "lo"]),
    "read-only-root": ("root_read_only", False),
    "sized-tmpfs-noexec": ("mounts", {"/tmp": {"noexec": False}}),
    "no-capabilities": ("cap_eff", "00000000a80425fb"),
    "no-new-privileges": ("no_new_privs", 0),
    "unprivileged-user": ("uid", 0),
    "seccomp": ("seccomp", 0),
    "own-seccomp": ("seccomp", 0),
    "user-namespace": ("uid_map", [[0, 0, 4294967295]]),
    "memory-limit": ("memory_limit_bytes", None),
    "pids-limit": ("pids_limit", None),
    "cpu-limit": ("cpu_limit", None),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_seen_to_hold_stays_and_one_seen_not_to_is_reported(layer: str) -> None:
    """What a backend asked for is no proof; what the guest sees is."""
    asked = Isolation(backend="x", layers=(layer,))
    assert verified(asked, GOOD).layers == (layer,)
    key, bad = LAYERS[layer]
    seen = verified(asked, {**GOOD, key: bad})
    assert seen.layers == ()
    assert seen.weaker == (f"{layer}: asked for, but seen from inside not to hold",)


@pytest.mark.parametrize("layer", [*LAYERS, "private-ipc"])
def test_a_layer_the_facts_say_nothing_of_is_left_as_the_backend_gave_it(layer: str) -> None:
    """gVisor shows no cgroup files; that does not mean there is no limit."""
    assert verified(Isolation(backend="x", layers=(layer,)), {}).layers == (layer,)


@pytest.mark.parametrize("facts", [{"seccomp": 2}, {"seccomp": 1, "seccomp_filters": 1}])
def test_a_filter_that_cannot_be_told_from_another_is_left_as_given(facts: dict[str, Any]) -> None:
    """Kernels before 5.9 do not count filters."""
    layer = "own-seccomp"
    assert verified(Isolation(backend="x", layers=(layer,)), facts).layers == (layer,)


def test_idle_tunnel_devices_are_no_network() -> None:
    """Some kernels put them into every network namespace, without an address."""
    asked = Isolation(backend="x", layers=("no-network",))
    assert verified(asked, {"interfaces": ["lo", "sit0", "ip6tnl0"]}).layers == ("no-network",)


def test_the_guest_limits_itself_only_where_the_engine_does_not() -> None:
    """An address-space limit breaks programs that map much and use little: a last resort."""
    limits = Limits(memory_bytes=100, pids=10, open_files=20)
    strong = Isolation(backend="x", layers=("memory-limit", "pids-limit", "ulimits"))
    assert guest_limits(strong, limits) == {}
    assert guest_limits(Isolation(backend="x"), limits) == {
        "address_space_bytes": 100,
        "processes": 40,
        "open_files": 20,
    }
