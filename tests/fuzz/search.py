"""How the fuzzers search: the same hundred examples each time among the other tests, random ones
and many of them under the profile of `make fuzz`, which `conftest` defines."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

FUZZING = settings.get_current_profile_name() == "fuzz"

searched = settings(
    deadline=None,
    derandomize=not FUZZING,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""Decorates what is searched."""
