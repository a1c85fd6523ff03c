"""What Landlock is told, by its version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.sandbox.process import landlock
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.landlock import RUN, WRITE, LandlockRule, ruleset, version
from tests.sandbox.process.rig import run

LIST_ROOT = "import os\nprint(len(os.listdir('/')) > 0)"

RULES = (
    LandlockRule(path="/usr/lib", rights=RUN),
    LandlockRule(path="/usr/bin/python3", rights=RUN, is_file=True),
    LandlockRule(path="/tmp", rights=WRITE),
)


def test_a_kernel_without_it_is_told_nothing() -> None:
    assert ruleset(RULES, 0) is None
    assert "none" in landlock.describe_gaps(0)


FILES = (0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF, 0xFFFF, 0xFFFF)


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6, 7, 99])
def test_every_right_that_a_version_knows_is_handled(abi: int) -> None:
    """The kernel allows what is not handled. Newer versions add rights."""
    made, network = ruleset(RULES, abi), 3 if abi >= 4 else 0
    assert made is not None
    assert made["files"] == FILES[min(abi, 7) - 1]
    assert (made["network"], made["scopes"]) == (network, 3 if abi >= 6 else 0)
    assert all(rights & ~made["files"] == 0 for _, rights in made["rules"])
    connecting = ruleset(RULES, abi, connects=True)
    assert connecting is not None
    assert connecting["network"] == network & 1
    assert bool(landlock.describe_gaps(abi)) == (abi < 6)


def test_nothing_can_be_both_written_and_executed() -> None:
    assert WRITE & landlock.EXECUTE == 0
    assert RUN & landlock.WRITE_FILE == 0


def test_a_file_gets_no_rights_of_directories() -> None:
    """The kernel answers EINVAL to those, which is how a well-known project never had Landlock."""
    made = ruleset(RULES, 7)
    assert made is not None
    assert dict(made["rules"])["/usr/bin/python3"] == landlock.EXECUTE | landlock.READ_FILE


@pytest.mark.skipif(version() < 1, reason="this kernel has no Landlock")
async def test_it_is_in_force_on_top_of_the_mounts(backend: BubblewrapBackend) -> None:
    denied = await run(backend, LIST_ROOT)
    assert "PermissionError" in denied.err
    found = await backend._look_around()
    backend._found = replace(found, around=replace(found.around, landlock_abi=0))
    control = await run(backend, LIST_ROOT)
    assert control.out == "True\n", control.err


@pytest.mark.parametrize("abi", range(1, 8))
async def test_every_versions_ruleset_is_taken_by_this_kernel(
    abi: int, backend: BubblewrapBackend
) -> None:
    if abi > version():
        pytest.skip("this kernel's is older")
    found = await backend._look_around()
    backend._found = replace(found, around=replace(found.around, landlock_abi=abi))
    assert (await run(backend, "print('fine')")).out == "fine\n"
