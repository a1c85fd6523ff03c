"""What engines are asked for beyond their defaults, and what becomes of it when they decline."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import LaunchError
from bridge.sandbox.container.api import EngineFacts
from bridge.sandbox.container.connection import (
    AUTO_NAMESPACE,
    PURPOSES,
    ExtraLayers,
    choose_extra_layers,
    maps_cheaply,
    profile_text,
    write_profile,
)
from bridge.sandbox.syscalls import oci_profile
from tests.sandbox.container.test_hardening import ROOT

PODMAN = replace(ROOT, kind="podman", kernel="6.1.0-9-amd64", storage="overlay")
DOCKER = replace(PODMAN, kind="docker")


def layers_for(
    facts: EngineFacts,
    runtime_dir: Path,
    *,
    runtime: str = "runc",
    local: bool = True,
    owner: int = 0,
) -> ExtraLayers:
    return choose_extra_layers(
        facts, oci_runtime=runtime, runtime_dir=runtime_dir, local=local, owner=owner
    )


def test_docker_is_given_our_filter_itself_wherever_it_is(tmp_path: Path) -> None:
    for local in (True, False):
        found = layers_for(DOCKER, tmp_path / "run", local=local)
        assert {on: json.loads(text) for on, text in found.seccomp.items()} == {
            on: oci_profile(on) for on in PURPOSES
        }
        assert found.lacking == []
    assert not (tmp_path / "run").exists()


def test_podman_is_given_a_file_that_is_this_users_alone(tmp_path: Path) -> None:
    """Named after what is in it, so that bridges of two versions do not write over each other."""
    directory = tmp_path / "run"
    path = Path(layers_for(PODMAN, directory).seccomp["program"])
    assert json.loads(path.read_text()) == oci_profile()
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_ino
    assert write_profile(directory, "program") == path
    assert path.stat().st_ino == before
    path.write_text("{}")
    assert write_profile(directory, "program").read_text() == profile_text("program")
    files = {on: Path(name) for on, name in layers_for(PODMAN, directory).seccomp.items()}
    assert json.loads(files["networked"].read_text()) == oci_profile("networked")
    assert set(directory.iterdir()) == set(files.values())


@pytest.mark.parametrize(
    ("facts", "mode", "more", "why"),
    [
        (PODMAN, 0o700, {"local": False}, "podman needs a file on its own machine"),
        (replace(PODMAN, seccomp=False), 0o700, {}, "podman finds no seccomp here"),
        (PODMAN, 0o700, {"owner": os.getuid() + 12345}, "podman is another user's"),
        (PODMAN, 0o777, {}, "every user can write to it"),
    ],
)
def test_a_podman_that_cannot_use_our_filter_keeps_its_own_and_says_so(
    tmp_path: Path, facts: EngineFacts, mode: int, more: dict[str, Any], why: str
) -> None:
    assert layers_for(PODMAN, tmp_path, owner=os.getuid()).seccomp
    tmp_path.chmod(mode)
    found = layers_for(facts, tmp_path, **more)
    assert not found.seccomp
    assert found.lacking[0].startswith("own-seccomp: ")
    assert why in found.lacking[0]


@pytest.mark.parametrize("runtime", ["runsc", "kata"])
def test_a_kernel_of_its_own_needs_no_filter_of_the_hosts(tmp_path: Path, runtime: str) -> None:
    """gVisor, told to use one, answers EPERM to what should be unknown: then no thread starts."""
    assert layers_for(PODMAN, tmp_path, runtime=runtime) == ExtraLayers()


@pytest.mark.parametrize(
    ("facts", "cheap"),
    [
        (PODMAN, True),
        (replace(PODMAN, kernel="5.19.0"), True),
        (replace(PODMAN, kernel="5.15.0-100-generic"), False),
        (replace(PODMAN, kernel="unheard of"), False),
        (replace(PODMAN, storage="vfs"), False),
        (replace(PODMAN, rootless=True), False),
        (DOCKER, False),
    ],
)
def test_ids_are_remapped_where_no_image_is_copied_for_it(facts: EngineFacts, cheap: bool) -> None:
    assert maps_cheaply(facts) is cheap


SECCOMP = "podman could not create a container: opening seccomp profile failed: open /run/x"
NO_IDS = "podman could not create a container: could not find enough available IDs"
OTHER = "podman could not create a container: no space left on device"


def test_what_an_engine_declines_is_taken_back_once_and_reported() -> None:
    made = ExtraLayers(seccomp={"program": "/run/x"}, user_namespace=AUTO_NAMESPACE)
    assert not made.drop_declined(LaunchError(OTHER), proven=False)
    assert made.drop_declined(LaunchError(NO_IDS), proven=False)
    assert (made.seccomp, made.user_namespace) == ({"program": "/run/x"}, "")
    assert not made.drop_declined(LaunchError(NO_IDS), proven=False)
    assert made.drop_declined(LaunchError(SECCOMP), proven=False)
    assert not made.seccomp
    assert made.lacking == [f"own-seccomp: the engine declined ({SECCOMP})"]


def test_a_filter_that_worked_is_never_given_up() -> None:
    made = ExtraLayers(seccomp={"program": "/run/x"}, user_namespace=AUTO_NAMESPACE)
    assert not made.drop_declined(LaunchError(SECCOMP), proven=True)
    assert made.seccomp == {"program": "/run/x"}
    assert made.drop_declined(LaunchError(NO_IDS), proven=True)
    assert made.lacking == [f"user-namespace: the engine declined ({NO_IDS})"]
