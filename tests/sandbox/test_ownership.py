"""Who owns what, and whether the owner lives."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from bridge.sandbox.ownership import IDENTITY_LABEL, Owner, current_owner, is_dead, process_start

ME = current_owner()


def test_a_word_brings_an_owner_back() -> None:
    assert Owner.parse(ME.labels()[IDENTITY_LABEL]) == ME
    for text in ("", "x", "1_2", f"{ME}_", "x_1_2_3_4"):
        assert Owner.parse(text) is None


def test_labels_name_no_host() -> None:
    assert os.uname().nodename not in ME.labels().values()


def test_this_process_lives() -> None:
    assert not is_dead(ME, judge=current_owner())


def test_a_process_that_ended_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert is_dead(replace(ME, pid=child.pid, start="1"), judge=ME)


def test_a_reused_pid_is_another_process() -> None:
    assert is_dead(replace(ME, start="1"), judge=ME)


def test_another_boot_of_this_host_is_over() -> None:
    assert is_dead(replace(ME, boot="earlier"), judge=ME)


def test_what_cannot_be_judged_from_here_lives() -> None:
    assert not is_dead(replace(ME, host="other", boot="other", start="1"), judge=ME)
    assert not is_dead(replace(ME, namespace="1", start="1"), judge=ME)


def test_another_users_process_is_not_dead() -> None:
    start = process_start(1)
    assert start is not None
    assert not is_dead(replace(ME, pid=1, start=start), judge=ME)


def test_a_pid_beyond_all_pids_is_no_reason_to_fail() -> None:
    assert not is_dead(replace(ME, pid=1 << 70), judge=ME)
