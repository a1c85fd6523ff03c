"""What is said of the host's directories in a sandbox, and how backends mount them."""

from __future__ import annotations

import pwd
from dataclasses import replace
from typing import Any

import pytest

from bridge.errors import LaunchError
from bridge.model import Isolation, Limits
from bridge.sandbox.backend import (
    NOBODY_ID,
    Bind,
    LaunchSpec,
    LayerReport,
    group_of,
    has_user_directories,
    reject_binds,
)
from bridge.sandbox.container.api import docker_facts, podman_facts
from bridge.sandbox.container.hardening import Placement, container_config
from bridge.sandbox.layers import require_mandatory_layers, verify_isolation
from tests.raised import raises_code

PACKAGES = Bind(source="/state/sets/1", inside="/packages", executable=True)
DATA = Bind(source="/srv/data", inside="/mnt/data")
OUT = Bind(source="/srv/out", inside="/mnt/out", writable=True)
ISOLATION = Isolation(backend="x", layers=("read-only:/packages",), weaker=())


@pytest.mark.guarantee("directories")
def test_what_can_be_written_to_is_told_as_weaker() -> None:
    report = LayerReport([])
    report.add_binds([PACKAGES, DATA, OUT])
    assert report.layers == ["read-only:/packages", "read-only:/mnt/data"]
    assert report.weaker == ["directory out: the host's own, writable at /mnt/out"]
    assert not has_user_directories([PACKAGES])
    assert has_user_directories([PACKAGES, DATA])


@pytest.mark.guarantee("directories")
def test_what_is_seen_to_be_writable_ends_the_sandbox() -> None:
    seen = {"binds": {"/packages": {"read_only": True}}}
    require_mandatory_layers(ISOLATION, seen)
    assert verify_isolation(ISOLATION, seen).verified == ("read-only:/packages",)
    contradicted: list[dict[str, Any]] = [{"/packages": {"read_only": False}}, {}]
    for binds in contradicted:
        with raises_code("isolation_broken", match="read-only:/packages"):
            require_mandatory_layers(ISOLATION, {"binds": binds})
    # An older guest, or one that could not look, contradicts nothing.
    require_mandatory_layers(ISOLATION, {})
    assert verify_isolation(ISOLATION, {}).verified == ()


def test_a_backend_without_mounts_says_which_have_them() -> None:
    reject_binds("landlock", ())
    with pytest.raises(LaunchError, match="cannot show programs /packages") as refusal:
        reject_binds("landlock", [PACKAGES])
    assert "bubblewrap, podman or docker" in refusal.value.remedy


def test_engines_are_told_in_their_own_words() -> None:
    spec = LaunchSpec(
        run_id="r", argv=("python3",), env={}, limits=Limits(), binds=(PACKAGES, DATA, OUT)
    )
    placement = Placement(image="i", user="1:1", oci_runtime="", labels={})
    docker = container_config(spec, docker_facts({}), placement)["HostConfig"]
    assert docker["Binds"] == []
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in docker["Mounts"]] == [
        ("/state/sets/1", "/packages", True),
        ("/srv/data", "/mnt/data", True),
        ("/srv/out", "/mnt/out", False),
    ]
    # It would make what is not there, on a machine that is not this one.
    elsewhere = container_config(spec, podman_facts({}), placement)["HostConfig"]
    assert elsewhere["Mounts"] == docker["Mounts"]
    here = replace(placement, local=True)
    podman = container_config(spec, podman_facts({}), here)["HostConfig"]
    assert podman["Binds"][2:] == [
        "/state/sets/1:/packages:ro,nosuid,nodev",
        "/srv/data:/mnt/data:ro,nosuid,nodev,noexec",
        "/srv/out:/mnt/out:rw,nosuid,nodev,noexec",
    ]
    without = container_config(replace(spec, binds=()), docker_facts({}), placement)
    assert "Mounts" not in without["HostConfig"]


def test_a_command_has_its_users_own_group_and_never_roots() -> None:
    ordinary = next(user for user in pwd.getpwall() if user.pw_uid != 0 and user.pw_gid != 0)
    assert group_of(ordinary.pw_uid) == pwd.getpwuid(ordinary.pw_uid).pw_gid
    assert group_of(0) == NOBODY_ID
    known = {user.pw_uid for user in pwd.getpwall()}
    assert group_of(next(uid for uid in range(54321, 65000) if uid not in known)) == NOBODY_ID
