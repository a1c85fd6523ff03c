"""As whom commands run."""

from __future__ import annotations

import pwd

from bridge.sandbox.job import STRANGER, group_of


def test_a_job_has_its_users_own_group_and_never_roots() -> None:
    """Whoever is unknown, or has root's group, gets one that owns nothing."""
    ordinary = next(user for user in pwd.getpwall() if user.pw_uid != 0 and user.pw_gid != 0)
    assert group_of(ordinary.pw_uid) == pwd.getpwuid(ordinary.pw_uid).pw_gid
    assert group_of(0) == STRANGER
    known = {user.pw_uid for user in pwd.getpwall()}
    assert group_of(next(uid for uid in range(54321, 65000) if uid not in known)) == STRANGER
