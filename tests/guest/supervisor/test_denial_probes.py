"""What the guest tries before a program runs: harmless where nothing refuses it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.guest.supervisor import denial_probes as denials
from bridge.guest.supervisor.denial_probes import ALLOWED, ATTEMPTS


def traces() -> object:
    return (
        os.getresuid(),
        os.getgroups(),
        sorted(Path("/dev/fd").iterdir()),
        sorted(Path("/tmp").glob(".denied*")),
        sorted(Path("/").iterdir()),
    )


def test_attempts_leave_nothing_behind() -> None:
    before = traces()
    found = denials.denials()
    assert traces() == before
    assert set(found) <= set(ATTEMPTS)
    assert set(found.values()) <= {ALLOWED, *errno.errorcode.values()}


def test_without_a_sandbox_attempts_are_let_through() -> None:
    found = denials.denials()
    assert found["no-network"] in (ALLOWED, "ENETUNREACH")
    assert found["own-seccomp"] == ALLOWED
    assert found["landlock"] == ALLOWED
    if os.getuid() == 0:
        assert found["no-capabilities"] == found["unprivileged-user"] == ALLOWED
        assert found["read-only-root"] == ALLOWED


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (OSError(errno.EROFS, "read-only"), "EROFS"),
        (OSError(12345, "unheard of"), "12345"),
        (AttributeError("memfd_create"), None),
        (OSError("no number"), None),
    ],
)
def test_an_answer_is_an_errors_name_or_left_out(error: Exception, answer: str | None) -> None:
    def attempt() -> None:
        raise error

    found = denials.denials({"layer": attempt})
    assert found == ({} if answer is None else {"layer": answer})


FORMER_ROOT = """
import os
from bridge.guest.supervisor.denial_probes import unprivileged_user
os.setresuid(65534, 65534, 0)
unprivileged_user()
print(*os.getresuid())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can leave itself a way back")
def test_who_can_become_root_does_not_stay_it() -> None:
    argv = [sys.executable, "-c", FORMER_ROOT]
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert said.stdout == "65534 65534 0\n"
