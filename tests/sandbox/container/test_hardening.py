"""The whole of what containers are created with. A change here is a change of the sandbox."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from bridge.model import HostKernel, Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.container.api import EngineFacts, docker_facts, podman_facts
from bridge.sandbox.container.hardening import (
    GVISOR_TASKS,
    Placement,
    container_config,
    container_name,
    isolation,
)
from tests.sandbox.golden import is_golden

TESTDATA = Path(__file__).parent / "testdata"


def read_recording(name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((TESTDATA / name).read_text(encoding="utf-8")))


ROOT = EngineFacts(
    kind="docker",
    version="20.10.24+dfsg1",
    rootless=False,
    oci_runtime="runc",
    cgroup_version="1",
    cpus=2,
    controllers=frozenset(("memory", "pids", "cpu")),
    obeys_ulimits=True,
    seccomp=True,
    mandatory_access="",
)
"""An engine as root, which applies every limit."""


def test_facts_of_real_engines() -> None:
    assert docker_facts(read_recording("docker-20.10-info.json")) == ROOT
    facts = podman_facts(read_recording("podman-4.3-root-info.json"))
    assert facts == replace(ROOT, kind="podman", version="4.3.1")
    facts = podman_facts(read_recording("podman-4.3-rootless-info.json"))
    assert facts.rootless
    assert not facts.controllers
    assert not facts.obeys_ulimits


def test_engines_say_what_is_under_them_and_whom_they_spare_limits() -> None:
    options = ["name=apparmor", "name=seccomp,profile=unconfined", "name=rootless"]
    facts = docker_facts({"SecurityOptions": options})
    assert (facts.rootless, facts.mandatory_access, facts.seccomp) == (True, "apparmor", False)
    info = {
        "SecurityOptions": ["name=seccomp,profile=default", "name=userns"],
        "KernelVersion": "6.1.0",
        "Driver": "overlay2",
        "Runtimes": {
            "runc": {"path": "runc"},
            "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--ignore-cgroups"]},
        },
    }
    facts = docker_facts(info)
    assert facts.remaps_ids
    assert (facts.kernel, facts.storage, facts.unlimited) == ("6.1.0", "overlay2", ("runsc",))
    host = {"kernel": "6.1.0", "ociRuntime": {"name": "/usr/bin/runsc"}}
    facts = podman_facts({"host": host, "store": {"graphDriverName": "overlay"}})
    assert (facts.kernel, facts.storage, facts.remaps_ids) == ("6.1.0", "overlay", False)
    assert facts.oci_runtime == "runsc"
    for facts in (docker_facts({}), podman_facts({})):
        assert "memory" not in facts.controllers
        assert not facts.seccomp


DOCKER = replace(ROOT, version="20.10.24", mandatory_access="apparmor")
PODMAN = replace(DOCKER, kind="podman", version="4.3.1", cgroup_version="2", mandatory_access="")
ROOTLESS = replace(
    PODMAN, rootless=True, cgroup_version="1", controllers=frozenset(), obeys_ulimits=False
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


WITH_RUNTIME = replace(PLACEMENT, oci_runtime="runsc")
CREATED = {
    "docker": (SPEC, DOCKER, WITH_RUNTIME),
    "podman": (SPEC, PODMAN, WITH_RUNTIME),
    "rootless": (SPEC, ROOTLESS, WITH_RUNTIME),
    # Beside no-new-privileges; and podman adds our masks to its own, while docker takes ours for
    # its own. Only podman has modes of user namespaces.
    "podman with our filter": (
        SPEC,
        PODMAN,
        replace(PLACEMENT, seccomp="/run/x/own.json", user_namespace="auto:size=65536"),
    ),
    # Ulimits stay below the host's, and gVisor's own threads do not use up the program's processes.
    "a small host": (
        replace(SPEC, limits=Limits(cpus=64)),
        DOCKER,
        replace(PLACEMENT, max_open_files=256, max_processes=100, tasks_per_process=GVISOR_TASKS),
    ),
}


@pytest.mark.parametrize("name", CREATED)
def test_the_create_call_is_this(name: str) -> None:
    assert is_golden(name, container_config(*CREATED[name]))


FILTERED = replace(PLACEMENT, seccomp="{}")
MAPPED = replace(PLACEMENT, user_namespace="auto:size=65536")
UNLIMITED = replace(DOCKER, controllers=frozenset(("cpu",)), unlimited=("runsc",))
LAYERS = {
    "docker": (DOCKER, FILTERED, "runc"),
    "podman": (PODMAN, PLACEMENT, "runc"),
    "rootless podman": (ROOTLESS, PLACEMENT, "runc"),
    "docker that remaps ids": (replace(DOCKER, remaps_ids=True), PLACEMENT, "runc"),
    "podman told to map ids": (PODMAN, MAPPED, "runc"),
    "gVisor": (PODMAN, PLACEMENT, "runsc"),
    "Kata": (PODMAN, PLACEMENT, "kata-qemu"),
    "gVisor told to ignore control groups": (UNLIMITED, PLACEMENT, "runsc"),
    "root by number": (DOCKER, replace(PLACEMENT, user="0:0"), "runc"),
    "root by name": (DOCKER, replace(PLACEMENT, user="root"), "runc"),
    "an image's own user": (DOCKER, replace(PLACEMENT, user=""), "runc"),
    "docker without seccomp": (replace(DOCKER, seccomp=False), PLACEMENT, "runc"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_claimed_and_called_weaker_is_this(name: str) -> None:
    facts, placement, runtime = LAYERS[name]
    lacking = ["own-seccomp: declined"] if facts is ROOTLESS else []
    host = HostKernel(release="6.1")
    claimed = isolation(
        SPEC, facts, placement, oci_runtime=runtime, lacking=lacking, host_kernel=host
    )
    assert is_golden(f"layers of {name}", asdict(claimed))


@pytest.mark.parametrize(
    ("user", "owner"),
    [("1000", ",uid=1000"), ("1000:100", ",uid=1000,gid=100"), ("daemon", ""), ("", "")],
)
def test_writable_directories_belong_to_the_user(user: str, owner: str) -> None:
    config = container_config(SPEC, DOCKER, replace(PLACEMENT, user=user))
    mount = config["HostConfig"]["Tmpfs"]["/tmp"]
    assert mount.endswith(f"nr_inodes=16384{owner},size=67108864")


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
