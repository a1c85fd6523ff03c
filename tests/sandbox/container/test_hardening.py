"""The whole of what containers are created with. A change here is a change of the sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.model import HostKernel, Isolation, Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.container.facts import EngineFacts
from bridge.sandbox.container.hardening import (
    GVISOR_TASKS,
    Placement,
    container_config,
    container_name,
    isolation,
)
from bridge.sandbox.proc_entries import masked_by_engines
from tests.sandbox.container.test_facts import ROOT
from tests.sandbox.golden import is_golden

DOCKER = replace(ROOT, version="20.10.24", mandatory_access="apparmor")
PODMAN = replace(DOCKER, kind="podman", version="4.3.1", cgroup_version="2", mandatory_access="")
ROOTLESS = replace(
    PODMAN,
    rootless=True,
    cgroup_version="1",
    limits_memory=False,
    limits_pids=False,
    limits_cpu=False,
    obeys_ulimits=False,
)
SPEC = LaunchSpec(
    run_id="run-1",
    argv=("python3", "-I", "-S", "-c", "pass"),
    env={"B": "2", "A": "1=1"},
    limits=Limits(cpus=0.5),
)
PLACEMENT = Placement(
    image="localhost/mcp-code-bridge-runtime:slim",
    user="65534:65534",
    oci_runtime="",
    labels={"org.mcp-code-bridge.owner": "42"},
)


@pytest.mark.parametrize("facts", [DOCKER, PODMAN, ROOTLESS], ids=["docker", "podman", "rootless"])
def test_the_create_call_is_this(facts: EngineFacts, request: pytest.FixtureRequest) -> None:
    """Limits that would be refused or ignored are not asked for; only docker takes a runtime."""
    config = container_config(SPEC, facts, replace(PLACEMENT, oci_runtime="runsc"))
    assert is_golden(request.node.callspec.id, config)


def test_what_an_engine_is_told_beyond_its_defaults() -> None:
    """Our filter stands beside no-new-privileges; only podman has modes of user namespaces.

    podman adds our masks to its own, and docker takes ours for its own.
    """
    placement = replace(PLACEMENT, seccomp="/run/x/own.json", user_namespace="auto:size=65536")
    host = container_config(SPEC, PODMAN, placement)["HostConfig"]
    masks = masked_by_engines(local=False)
    given = ["no-new-privileges", "seccomp=/run/x/own.json", f"mask={':'.join(masks)}"]
    assert host["SecurityOpt"] == given
    assert host["UsernsMode"] == "auto:size=65536"
    assert not {"MaskedPaths", "ReadonlyPaths"} & set(host)
    assert container_config(SPEC, DOCKER, PLACEMENT)["HostConfig"]["MaskedPaths"] == masks
    assert {"/proc/interrupts", "/proc/sys/fs", "/sys/firmware"} <= set(masks)


@pytest.mark.parametrize(
    ("user", "owner"),
    [("1000", ",uid=1000"), ("1000:100", ",uid=1000,gid=100"), ("nobody", ""), ("", "")],
)
def test_writable_directories_belong_to_the_user(user: str, owner: str) -> None:
    config = container_config(SPEC, DOCKER, replace(PLACEMENT, user=user))
    mount = config["HostConfig"]["Tmpfs"]["/tmp"]
    assert mount.endswith(f"nr_inodes=16384{owner},size=67108864")


def test_ulimits_stay_below_what_the_host_allows() -> None:
    placement = replace(PLACEMENT, max_open_files=256, max_processes=100)
    config = container_config(SPEC, DOCKER, placement)
    assert config["HostConfig"]["Ulimits"][:2] == [
        {"Name": "nofile", "Soft": 256, "Hard": 256},
        {"Name": "nproc", "Soft": 100, "Hard": 100},
    ]


def test_more_cpus_than_there_are_means_all() -> None:
    spec = replace(SPEC, limits=Limits(cpus=64))
    config = container_config(spec, DOCKER, PLACEMENT)
    assert config["HostConfig"]["NanoCpus"] == 2_000_000_000


LAYERS = (
    "no-network",
    "read-only-root",
    "sized-tmpfs-noexec",
    "no-capabilities",
    "no-new-privileges",
    "private-ipc",
    "masked-proc",
    "unprivileged-user",
)
LIMIT_LAYERS = ("memory-limit", "pids-limit", "cpu-limit", "ulimits")


def test_isolation_lists_layers_and_what_is_missing() -> None:
    own = replace(PLACEMENT, seccomp="{}")
    assert isolation(SPEC, DOCKER, own, oci_runtime="runc") == Isolation(
        backend="docker",
        oci_runtime="runc",
        layers=(*LAYERS, "seccomp", "own-seccomp", "apparmor", *LIMIT_LAYERS),
    )
    lacking = ["own-seccomp: declined"]
    assert isolation(SPEC, ROOTLESS, PLACEMENT, oci_runtime="runc", lacking=lacking) == Isolation(
        backend="podman",
        oci_runtime="runc",
        layers=(*LAYERS, "seccomp", "user-namespace"),
        weaker=(
            "own-seccomp: declined",
            "memory limit: best effort, rootless podman on cgroup v1 applies none",
            "pids limit: best effort, rootless podman on cgroup v1 applies none",
            "cpu limit: best effort, rootless podman on cgroup v1 applies none",
            "ulimits: best effort, rootless podman's API leaves them to the guest",
        ),
    )


def test_ids_are_remapped_by_dockers_daemon_or_on_podmans_being_told() -> None:
    remapping = replace(DOCKER, remaps_ids=True)
    told = replace(PLACEMENT, user_namespace="auto:size=65536")
    for facts, placement in ((remapping, PLACEMENT), (PODMAN, told)):
        found = isolation(SPEC, facts, placement, oci_runtime="runc")
        assert "user-namespace" in found.layers
    assert "user-namespace" not in isolation(SPEC, PODMAN, PLACEMENT, oci_runtime="runc").layers


@pytest.mark.parametrize("runtime", ["runsc", "kata-qemu"])
def test_a_kernel_of_its_own_is_claimed_and_no_filter_of_the_hosts(runtime: str) -> None:
    host = HostKernel(release="6.1")
    found = isolation(SPEC, PODMAN, PLACEMENT, oci_runtime=runtime, host_kernel=host)
    assert "own-kernel" in found.layers
    assert not {"seccomp", "own-seccomp"} & set(found.layers)
    assert found.host_kernel == host
    plain = isolation(SPEC, PODMAN, PLACEMENT, oci_runtime="runc", host_kernel=host)
    assert plain.host_kernel is None


def test_an_oci_runtime_told_to_apply_no_limits_is_not_said_to() -> None:
    facts = replace(DOCKER, limits_memory=False, limits_pids=False, unlimited=("runsc",))
    found = isolation(SPEC, facts, PLACEMENT, oci_runtime="runsc")
    assert (
        found.weaker[0] == "memory limit: best effort, docker tells runsc to ignore control groups"
    )


@pytest.mark.parametrize("user", ["0:0", "root", ""])
def test_a_root_user_inside_is_called_weaker(user: str) -> None:
    account = isolation(SPEC, DOCKER, replace(PLACEMENT, user=user), oci_runtime="runc")
    assert "unprivileged-user" not in account.layers
    assert account.weaker == ("unprivileged user: MCP_BRIDGE_CONTAINER_USER asks for root",)


def test_an_engine_without_seccomp_is_called_weaker() -> None:
    account = isolation(SPEC, replace(DOCKER, seccomp=False), PLACEMENT, oci_runtime="runc")
    assert "seccomp" not in account.layers
    assert account.weaker[0].startswith("seccomp")


@pytest.mark.parametrize(
    ("run_id", "expected"),
    [
        ("run-1", "mcp-code-bridge-run-1-ab12"),
        ("../../x y\n", "mcp-code-bridge-..-..-x-y--ab12"),
        ("x" * 500, "mcp-code-bridge-" + "x" * 64 + "-ab12"),
    ],
)
def test_names_hold_only_what_engines_take(run_id: str, expected: str) -> None:
    assert container_name(run_id, "ab12") == expected


def test_gvisors_own_threads_do_not_use_up_the_programs_processes() -> None:
    placement = replace(PLACEMENT, tasks_per_process=GVISOR_TASKS)
    host = container_config(SPEC, DOCKER, placement)["HostConfig"]
    assert host["PidsLimit"] == SPEC.limits.pids * GVISOR_TASKS
