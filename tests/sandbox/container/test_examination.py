"""What is made of what is seen from inside of a container like the one a command will have."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.model import Isolation
from bridge.sandbox.container.sandbox import (
    UNEXAMINED,
    examination_config,
    judged,
    lacks_python,
)
from tests.raised import raises_code

ISOLATION = Isolation(
    backend="podman", layers=("no-capabilities", "sized-tmpfs-noexec", "memory-limit")
)
FACTS: dict[str, Any] = {
    "cap_eff": "0000000000000000",
    "mounts": {"/tmp": {"noexec": True}, "/workspace": {"noexec": False}},
}


def test_what_holds_is_verified_and_what_does_not_runs_nothing() -> None:
    assert judged(ISOLATION, FACTS).verified == ("no-capabilities", "sized-tmpfs-noexec")
    with raises_code("isolation_broken", match="no-capabilities"):
        judged(ISOLATION, {**FACTS, "cap_eff": "00000000a80425fb"})


def test_an_image_without_python_is_said_not_to_be_looked_into() -> None:
    made = judged(ISOLATION, None)
    assert (made.verified, made.weaker) == ((), (UNEXAMINED,))
    gvisor = Isolation(backend="podman", oci_runtime="runsc", layers=("own-kernel",))
    with raises_code("oci_runtime_broken"):
        judged(gvisor, None)


def test_it_is_the_same_container_but_for_what_it_runs() -> None:
    """No variable is passed on: some are secrets."""
    config = {"Image": "i", "User": "1:1", "Env": ["TOKEN=x"], "Entrypoint": ["aws"], "Cmd": []}
    made = examination_config(
        {**config, "HostConfig": {"ReadonlyRootfs": True}, "WorkingDir": "/workspace/x"}
    )
    assert made["Entrypoint"][0] == "python3"
    assert (made["Env"], made["WorkingDir"]) == ([], "/")
    assert (made["Image"], made["HostConfig"]) == ("i", {"ReadonlyRootfs": True})


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        ('exec: "python3": executable file not found in $PATH: unknown', True),
        ("executable file `python3` not found in $PATH: No such file or directory", True),
        ('error finding executable "python3" in PATH', True),
        ("no space left on device", False),
        ("crun: open executable: Permission denied", False),
    ],
)
def test_only_a_missing_python_is_taken_for_one(said: str, lacks: bool) -> None:
    assert lacks_python(said) is lacks
