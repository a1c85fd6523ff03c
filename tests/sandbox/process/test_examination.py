"""What is made of what the stage sees before a command starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import pytest

from bridge.errors import LaunchError, SandboxError
from bridge.model import Isolation
from bridge.sandbox.process import stage
from bridge.sandbox.process.command import judged, unexpected_mounts
from bridge.sandbox.process.sandbox import receive_examination
from bridge.sandbox.process.stage_loader import compiled_examination
from tests.raised import raises_code
from tests.waiting import PATIENCE_SECONDS

PLACES = {"/": False, "/usr/lib": False, "/workspace": False, "/workspace/out": True, "/proc": True}
ISOLATION = Isolation(
    backend="bubblewrap",
    layers=("granted-paths-only", "named-executables-only", "sized-tmpfs-noexec", "memory-limit"),
)
FACTS: dict[str, Any] = {
    "mounts": {"/tmp": {"noexec": True}, "/workspace": {"noexec": False}},
    "mount_table": [["/", True], ["/workspace", True]],
    "denials": {"named-executables-only": "EACCES", "sized-tmpfs-noexec": "allowed"},
}


@pytest.mark.parametrize(
    ("row", "stray"),
    [
        (["/", True], False),
        (["/", False], True),
        (["/workspace", True], False),
        (["/workspace", False], True),
        (["/workspace/out", False], False),
        (["/workspace/out/below", False], False),
        (["/workspace/outer", False], True),
        (["/usr/lib/mounted\\040here", True], False),
        (["/usr/lib/mounted\\040here", False], True),
        (["/srv", True], True),
        (["/proc/acpi", False], False),
    ],
)
def test_a_mount_that_was_not_asked_for_or_can_be_written_to_is_a_stray(
    row: list[Any], stray: bool
) -> None:
    assert bool(unexpected_mounts([row], PLACES)) is stray
    assert unexpected_mounts([], PLACES) is None


def test_what_is_seen_is_verified_and_what_cannot_be_seen_is_not() -> None:
    made = judged(ISOLATION, PLACES, {**FACTS, "denials": {"named-executables-only": "EACCES"}})
    assert made.layers == ISOLATION.layers
    assert made.verified == ISOLATION.layers[:3]


@pytest.mark.parametrize(
    ("seen", "layer"),
    [
        ({"mount_table": [["/", True], ["/srv", True]]}, "granted-paths-only"),
        ({"mount_table": [["/workspace", False]]}, "granted-paths-only"),
        ({"denials": {"named-executables-only": "allowed"}}, "named-executables-only"),
    ],
)
def test_what_may_not_be_ends_it(seen: Mapping[str, Any], layer: str) -> None:
    with raises_code("isolation_broken", match=layer):
        judged(ISOLATION, PLACES, {**FACTS, **seen})


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    """Status and leave: a reading and a writing end of each."""
    ends = (*os.pipe(), *os.pipe())
    yield ends
    for end in ends:
        os.close(end)


async def test_leave_is_given_after_the_judgement_only(pipes: tuple[int, int, int, int]) -> None:
    status, told, waits, permission = pipes
    os.set_blocking(waits, False)
    os.write(told, json.dumps({"pid": 2}).encode() + b"\nok")

    def judge(facts: Mapping[str, Any]) -> Isolation:
        assert facts == {"pid": 2}
        with pytest.raises(BlockingIOError):
            os.read(waits, 2)
        return ISOLATION

    with anyio.fail_after(PATIENCE_SECONDS):
        assert await receive_examination(status, permission, judge) == (ISOLATION, b"ok")
    assert os.read(waits, 10) == b"go"


@pytest.mark.parametrize("said", [b"no object\n", b"[1]\n", b"x" * 60_000 + b"\n"])
async def test_an_answer_that_is_none_gets_no_leave(
    pipes: tuple[int, int, int, int], said: bytes
) -> None:
    status, told, waits, permission = pipes
    os.set_blocking(waits, False)
    os.write(told, said)

    def refuse(facts: Mapping[str, Any]) -> Isolation:
        raise SandboxError("no", code="isolation_broken")

    with anyio.fail_after(PATIENCE_SECONDS):
        with pytest.raises(LaunchError):
            await receive_examination(status, permission, refuse)
        os.write(told, b"{}\n")
        with raises_code("isolation_broken"):
            await receive_examination(status, permission, refuse)
    with pytest.raises(BlockingIOError):
        os.read(waits, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="there is a mount table")
@pytest.mark.parametrize("answer", [b"go", b"g", b""])
def test_the_stage_goes_on_with_leave_only(pipes: tuple[int, int, int, int], answer: bytes) -> None:
    status, told, waits, permission = pipes
    wanted = {"code": compiled_examination(sys.executable), "attempts": [], "unnamed": ""}
    os.write(permission, answer)
    os.close(permission)
    os.dup2(status, permission)  # for the fixture to close
    ours = {**wanted, "permission": os.dup(waits)}
    if answer == stage.PERMISSION:
        stage.await_permission(ours, told)
    else:
        with pytest.raises(OSError, match="no permission"):
            stage.await_permission(ours, told)
    facts = json.loads(os.read(status, 1 << 20))
    assert "/" in [place for place, _ in facts["mount_table"]]
    assert facts["denials"] == {}
