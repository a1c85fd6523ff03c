"""Engines' accounts of themselves, recorded from real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from bridge.sandbox.container.facts import (
    EngineFacts,
    docker_facts,
    podman_facts,
    runtime_name,
)

TESTDATA = Path(__file__).parent / "testdata"


def recorded(name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((TESTDATA / name).read_text(encoding="utf-8")))


ROOT = EngineFacts(
    kind="docker",
    version="20.10.24+dfsg1",
    rootless=False,
    oci_runtime="runc",
    cgroup_version="1",
    cpus=2,
    limits_memory=True,
    limits_pids=True,
    limits_cpu=True,
    obeys_ulimits=True,
    seccomp=True,
    mandatory_access="",
)
"""An engine as root, which applies every limit."""


def test_docker() -> None:
    assert docker_facts(recorded("docker-20.10-info.json")) == ROOT


def test_podman_as_root() -> None:
    facts = podman_facts(recorded("podman-4.3-root-info.json"))
    assert facts == replace(ROOT, kind="podman", version="4.3.1")


def test_rootless_podman_on_cgroup_v1() -> None:
    """No controller is delegated, so no limit is claimed."""
    facts = podman_facts(recorded("podman-4.3-rootless-info.json"))
    assert facts.rootless
    assert (facts.limits_memory, facts.limits_pids, facts.limits_cpu) == (False, False, False)
    assert not facts.obeys_ulimits


def test_docker_options_are_read() -> None:
    info = {
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=unconfined", "name=rootless"]
    }
    facts = docker_facts(info)
    assert (facts.rootless, facts.mandatory_access, facts.seccomp) == (True, "apparmor", False)


def test_docker_says_what_is_under_it_and_whom_it_spares_limits() -> None:
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


def test_podman_says_what_is_under_it() -> None:
    info = {"host": {"kernel": "6.1.0"}, "store": {"graphDriverName": "overlay"}}
    facts = podman_facts(info)
    assert (facts.kernel, facts.storage, facts.remaps_ids) == ("6.1.0", "overlay", False)


def test_answers_without_anything_promise_nothing() -> None:
    for facts in (docker_facts({}), podman_facts({})):
        assert not facts.limits_memory
        assert not facts.seccomp


def test_a_runtime_has_the_same_name_by_path() -> None:
    assert runtime_name("/usr/bin/runsc") == runtime_name("runsc") == "runsc"
