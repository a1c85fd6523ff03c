"""Attacks on what this version does not have: that it does not have it.

Attack 39 needs a network that is partly open. Its author finds this test in the way, and writes
the attack in its place.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from bridge.model import Limits, RunRequest
from bridge.sandbox.backend import LaunchSpec
from bridge.settings import Settings


@pytest.mark.guarantee("no-partial-network")
def test_no_run_has_a_network_that_could_be_partly_open() -> None:
    for kind in (Settings, Limits, RunRequest, LaunchSpec):
        names = " ".join(field.name for field in fields(kind))
        assert not any(word in names for word in ("network", "proxy", "allow_hosts", "domain"))
