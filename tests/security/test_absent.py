"""Attacks on what this version does not have: that it does not have it.

Attack 34 needs files that leave a sandbox, attack 39 a network that is partly open. Whoever adds
either finds these tests in the way, and writes the attacks in their place.
"""

from __future__ import annotations

from dataclasses import fields

from bridge.guest import wire
from bridge.model import Limits, RunRequest, RunResult
from bridge.sandbox.backend import LaunchSpec
from bridge.settings import Settings


def test_no_file_leaves_a_sandbox() -> None:
    """Attack 34: what comes out is one stream of frames, none of which is a file."""
    assert {"hello", "ready", "call", "cancel", "output", "done", "exited"} == wire.GUEST_TYPES
    named = [{field.name for field in fields(kind)} for kind in (RunResult, RunRequest)]
    for names in (*named, set(vars(wire.Done("ok"))), set(vars(wire.Output("stdout", "")))):
        assert not names & {"files", "artifacts", "outputs", "downloads", "mounts"}, names


def test_no_run_has_a_network_that_could_be_partly_open() -> None:
    """Attack 39: there is no list of allowed addresses, no proxy, and no switch for either."""
    for kind in (Settings, Limits, RunRequest, LaunchSpec):
        names = " ".join(field.name for field in fields(kind))
        assert not any(word in names for word in ("network", "proxy", "allow_hosts", "domain"))
