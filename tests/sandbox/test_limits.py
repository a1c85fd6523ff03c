"""Profiles."""

from __future__ import annotations

from bridge.sandbox.limits import limits_for
from bridge.settings import Settings


def test_the_standard_profile_is_what_the_settings_say() -> None:
    limits = limits_for(Settings(memory=1024**3, pids=64, cpus=2, timeout=9), 4)
    assert (limits.memory_bytes, limits.pids, limits.cpus) == (1024**3, 64, 2)
    assert limits.timeout == 4


def test_the_strict_profile_only_narrows() -> None:
    limits = limits_for(Settings(profile="strict", cpus=4), 60)
    assert (limits.memory_bytes, limits.cpus, limits.timeout) == (128 * 1024**2, 0.5, 5)
    tiny = limits_for(Settings(profile="strict", memory=64 * 1024**2, cpus=0.1), 2)
    assert (tiny.memory_bytes, tiny.cpus, tiny.timeout) == (64 * 1024**2, 0.1, 2)


def test_the_writable_directories_fit_into_the_memory_limit() -> None:
    """Their contents count towards it, so together they must not exceed it."""
    limits = limits_for(Settings(memory=64 * 1024**2))
    assert limits.tmp_bytes + limits.workspace_bytes < limits.memory_bytes
