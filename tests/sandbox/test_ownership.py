"""Who owns what, and whether the owner lives."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bridge.background_instance import process_start
from bridge.sandbox.ownership import IDENTITY_LABEL, Owner, current_owner, is_dead

ME = current_owner()


def test_a_word_brings_an_owner_back() -> None:
    assert Owner.parse(ME.labels()[IDENTITY_LABEL]) == ME
    for text in ("", "x", "1_2", f"{ME}_", "x_1_2_3_4"):
        assert Owner.parse(text) is None
    assert os.uname().nodename not in ME.labels().values(), "labels name no host"


LIVING = {
    "this process": ME,
    # What cannot be judged from here.
    "of another host": replace(ME, host="other", boot="other", start="1"),
    "of another namespace": replace(ME, namespace="1", start="1"),
    "another user's": replace(ME, pid=1, start=process_start(1)),
    "beyond all pids": replace(ME, pid=1 << 70),
}


@pytest.mark.parametrize("name", LIVING)
def test_what_may_live_is_not_dead(name: str) -> None:
    assert not is_dead(LIVING[name], judge=current_owner())


def test_a_process_that_ended_and_another_of_its_number_or_boot_are_dead() -> None:
    for other in (replace(ME, start="1"), replace(ME, boot="earlier")):
        assert is_dead(other, judge=ME)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert is_dead(replace(ME, pid=child.pid, start="1"), judge=ME)
