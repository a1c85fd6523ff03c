"""Layers are claimed only as far as they are seen to hold."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from bridge.model import HostKernel, Isolation, Limits
from bridge.sandbox.backend import guest_limits
from bridge.sandbox.layers import (
    MANDATORY,
    brings_own_kernel,
    is_gvisor,
    own_kernel,
    require_mandatory_layers,
    this_kernel,
    verify_isolation,
)
from bridge.sandbox.syscalls import UNKNOWN, UNKNOWN_ERRNO
from tests.raised import raises_code

GOOD: dict[str, Any] = {
    "interfaces": ["lo", "sit0", "ip6tnl0"],  # Idle tunnel devices are no network.
    "root_read_only": True,
    "mounts": {"/tmp": {"noexec": True}, "/workspace": {"noexec": True}},
    "cap_eff": "0000000000000000",
    "no_new_privs": 1,
    "uid": 65534,
    "seccomp": 2,
    "seccomp_filters": 1,
    "uid_map": [[0, 100000, 65536]],
    "namespaces": {"ipc": "ipc:[4026532181]"},
    "unmasked": [],
    "settings_read_only": True,
    "rlimits": {"core": 0, "nofile": 1024},
    "label": "docker-default (enforce)",
    "denials": {
        "read-only-root": "EROFS",
        "no-capabilities": "EPERM",
        "unprivileged-user": "EPERM",
        "no-network": "EAFNOSUPPORT",
        "own-seccomp": "ENOSYS",
        "sized-tmpfs-noexec": "EACCES",
        "landlock": "EACCES",
    },
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
    "private-ipc": ("namespaces", {"ipc": "ipc:[4026531839]"}),
    "masked-proc": ("unmasked", ["/proc/kcore"]),
    "ulimits": ("rlimits", {"core": None, "nofile": 1024}),
    "apparmor": ("label", "unconfined"),
    "landlock": ("denials", {"landlock": "allowed"}),
    "network-calls-refused": ("denials", {"no-network": "allowed"}),
    "memory-limit": ("memory_limit_bytes", None),
    "pids-limit": ("pids_limit", None),
    "cpu-limit": ("cpu_limit", None),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_seen_to_hold_stays_and_one_seen_not_to_is_reported(layer: str) -> None:
    asked = Isolation(backend="x", layers=(layer,))
    good = verify_isolation(asked, GOOD)
    assert good.layers == good.verified == (layer,)
    key, bad = LAYERS[layer]
    seen = verify_isolation(asked, {**GOOD, key: bad})
    assert seen.layers == seen.verified == ()
    assert seen.weaker == (f"{layer}: asked for, but seen from inside not to hold",)


@pytest.mark.parametrize("layer", list(GOOD["denials"]))
def test_an_attempt_that_was_let_through_disproves_what_the_files_say(layer: str) -> None:
    facts = {**GOOD, "denials": {**GOOD["denials"], layer: "allowed"}}
    seen = verify_isolation(Isolation(backend="x", layers=(layer,)), facts)
    assert (seen.layers, len(seen.weaker)) == ((), 1)


def test_what_is_tried_for_our_filter_is_on_no_list_of_ours() -> None:
    """Else the attempt would say that the filter is not in force."""
    assert "memfd_create" in UNKNOWN
    assert UNKNOWN_ERRNO == errno.ENOSYS


@pytest.mark.parametrize(
    ("layers", "facts"),
    [
        # gVisor's read-only root answers EACCES, as one would that is merely not ours.
        (("read-only-root", "landlock"), {"denials": {"read-only-root": "EACCES"}}),
        (("read-only-root", "landlock"), {"denials": {"landlock": "ENOENT"}}),
        (("own-seccomp",), {"seccomp": 2}),
        (("own-seccomp",), {"seccomp": 1, "seccomp_filters": 1}),
        *(((layer,), {}) for layer in LAYERS),
    ],
)
def test_what_the_facts_do_not_show_is_left_as_the_backend_gave_it(
    layers: tuple[str, ...], facts: dict[str, Any]
) -> None:
    asked = Isolation(backend="x", layers=layers)
    assert verify_isolation(asked, facts) == asked


HOST = HostKernel(release="6.1", version="#1 SMP", boot_id="a-b")
GVISOR = {"kernel": "4.4.0", "kernel_version": "#1 SMP 2016", "seccomp": 0}


def claims(*layers: str) -> Isolation:
    return Isolation(backend="podman", oci_runtime="runsc", layers=layers, host_kernel=HOST)


def test_a_kernel_of_its_own_is_believed_when_it_is_seen() -> None:
    asked = claims("own-kernel", "user-namespace")
    require_mandatory_layers(asked, GVISOR)
    seen = verify_isolation(asked, {**GVISOR, "uid_map": [[0, 0, 4294967295]]})
    # Its own table of ids says nothing of the host's.
    assert seen.layers == ("own-kernel", "user-namespace")
    assert seen.verified == ("own-kernel",)
    assert seen.host_kernel is None


@pytest.mark.parametrize("facts", [{"boot_id": "a-b"}, {"kernel_version": "#1 SMP"}, {}])
def test_a_kernel_that_is_the_hosts_or_is_not_shown_lets_nothing_run(facts: dict[str, Any]) -> None:
    with raises_code("oci_runtime_broken", match="runsc .* no kernel other than the host's"):
        require_mandatory_layers(claims("own-kernel"), facts)


@pytest.mark.parametrize("layer", [name for name in MANDATORY if name in LAYERS])
def test_a_mandatory_layer_that_is_contradicted_lets_nothing_run(layer: str) -> None:
    key, bad = LAYERS[layer]
    require_mandatory_layers(Isolation(backend="x", layers=(layer,)), GOOD)
    require_mandatory_layers(Isolation(backend="x"), {**GOOD, key: bad})
    with raises_code("isolation_broken", match=layer):
        require_mandatory_layers(Isolation(backend="x", layers=(layer,)), {**GOOD, key: bad})


def test_the_guest_limits_itself_only_where_the_engine_does_not() -> None:
    limits = Limits(memory_bytes=100, pids=10, open_files=20)
    strong = Isolation(backend="x", layers=("memory-limit", "pids-limit", "ulimits"))
    assert guest_limits(strong, limits) == {}
    watched = Isolation(backend="x", layers=("memory-watch", "pids-limit", "ulimits"))
    assert guest_limits(watched, limits) == {}
    missing = {"data_bytes": 150, "processes": 40, "open_files": 20}
    assert guest_limits(Isolation(backend="x"), limits) == missing


OWN_HOST = HostKernel(release="6.1.0-9-amd64", version="#1 SMP Debian", boot_id="a-b-c")


OWN_KERNELS = """
runsc runsc-kvm io.containerd.runsc.v1 gvisor kata kata-qemu io.containerd.kata.v2 krun crun-vm
"""


def test_runtimes_are_known_by_name() -> None:
    assert all(map(brings_own_kernel, OWN_KERNELS.split()))
    for runtime in ("runc", "crun", "youki", ""):
        assert not brings_own_kernel(runtime)
        assert not is_gvisor(runtime)


@pytest.mark.parametrize(
    ("facts", "own"),
    [
        # gVisor has no boot id; its build and release are its own.
        ({"kernel": "4.4.0", "kernel_version": "#1 SMP Sun Jan 10 15:06:54 PST 2016"}, True),
        # Kata may run the very build that the host runs; it booted by itself all the same.
        ({"boot_id": "d-e", "kernel": OWN_HOST.release, "kernel_version": OWN_HOST.version}, True),
        # A release can be lied about with a personality; neither the boot nor the build can.
        ({"boot_id": "a-b-c", "kernel": "2.6.60", "kernel_version": "#9"}, False),
        ({"kernel": "2.6.60", "kernel_version": OWN_HOST.version}, False),
        ({"kernel": OWN_HOST.release}, False),
        ({}, None),
    ],
)
def test_a_kernel_is_told_by_its_boot_its_build_its_release(
    facts: dict[str, Any], own: bool | None
) -> None:
    assert own_kernel(facts, OWN_HOST) is own


def test_of_a_remote_engines_kernel_the_release_is_known_and_of_this_one_all() -> None:
    remote = HostKernel(release="6.1.0-9-amd64")
    assert own_kernel({"boot_id": "x", "kernel": "4.4.0"}, remote) is True
    assert own_kernel({"boot_id": "x", "kernel": "6.1.0-9-amd64"}, remote) is False
    assert own_kernel({"boot_id": "x", "kernel": "4.4.0"}, HostKernel()) is None
    here = this_kernel()
    facts = {"boot_id": here.boot_id, "kernel": here.release, "kernel_version": here.version}
    assert own_kernel(facts, here) is False
