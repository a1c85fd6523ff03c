"""What engines and commands say, word for word, and the error that is made of it.

`testdata/said.json` holds what real ones said (Docker 20.10, podman 4.3, bubblewrap 0.8 and 0.9);
the golden data has the code and the remedy for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BridgeError
from bridge.sandbox.container import faults as engines
from bridge.sandbox.container.command_runner import CompletedCommand
from bridge.sandbox.container.image import build_failure
from bridge.sandbox.container.remote import SshTarget
from bridge.sandbox.image import rootfs
from bridge.sandbox.process import faults
from bridge.sandbox.process.faults import KernelSettings
from tests.sandbox.golden import is_golden

SAID: dict[str, list[Any]] = json.loads(
    (Path(__file__).parent / "testdata/said.json").read_text(encoding="utf-8")
)

ERRORS: Mapping[str, Callable[[Any], BridgeError]] = {
    "an engine": lambda said: engines.from_text(said, doing="start it", engine="podman"),
    "a build": lambda said: build_failure("docker", "build x", said),
    "the Debian recipe": lambda said: rootfs.failure(CompletedCommand(exit_code=1, stderr=said)),
    "OpenSSH": SshTarget(destination="me@big", port="22", socket="/s").failure,
    "bubblewrap": lambda row: faults.classify(row[0], KernelSettings(**row[1])),
    "the stage": lambda row: faults.stage_failed(row[0], KernelSettings(**row[1])),
}


@pytest.mark.parametrize("who", SAID)
def test_each_cause_has_its_code_and_remedy(who: str) -> None:
    made = [ERRORS[who](said) for said in SAID[who]]
    assert is_golden(f"remedies for {who}", [[error.code, error.remedy] for error in made])


@pytest.mark.parametrize("who", ["an engine", "a build", "the Debian recipe"])
def test_long_words_are_cut_and_the_cause_is_kept(who: str) -> None:
    told = SAID[who][0]
    assert told.split(":")[-1].strip() in ERRORS[who](told).message
    assert len(ERRORS[who]("x" * 100_000).message) < 3000


def test_the_words_of_bubblewrap_are_cut() -> None:
    assert len(faults.classify("x" * 100_000, KernelSettings()).message) < 1000
    assert "apt install bubblewrap" in faults.not_installed("bwrap").remedy


def test_words_never_heard_before_are_passed_on() -> None:
    found = engines.from_text("frobnication\n  failed. ", doing="attach", engine="docker")
    assert found.message == "docker could not attach: frobnication failed."
    assert "doctor" in found.remedy


def test_a_recipe_that_takes_too_long_says_so() -> None:
    late = CompletedCommand(exit_code=None, stderr="Get: 1 ...", timed_out=True)
    assert "not built in time" in rootfs.failure(late).message
