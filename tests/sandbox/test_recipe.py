"""What a sandbox is made from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from bridge.model import Limits
from bridge.runs.sandboxes import recipe_for
from bridge.sandbox.limits import limits_for
from bridge.settings import Settings

SETTINGS = Settings()
USUAL = recipe_for(limits_for(SETTINGS))

WITH_THE_RUN = {
    "timeout",
    "output_bytes",
    "output_tokens",
    "result_bytes",
    "frame_bytes",
    "tool_calls",
    "concurrent_calls",
}
"""Limits that the host or the `Run` frame enforces, whatever sandbox the run is in."""


def test_a_run_with_a_time_limit_of_its_own_takes_any() -> None:
    assert recipe_for(limits_for(SETTINGS, 100.0)) == USUAL
    assert USUAL.limits.timeout == SETTINGS.max_timeout


@pytest.mark.parametrize("name", sorted(field.name for field in fields(Limits)))
def test_every_limit_is_the_sandboxs_or_the_runs(name: str) -> None:
    """A new limit is not forgotten: it makes another sandbox until it is named here."""
    limits = limits_for(SETTINGS)
    other = replace(limits, **{name: (getattr(limits, name) or 1) + 1})  # type: ignore[arg-type]
    same = recipe_for(other) == USUAL
    assert same == (name in WITH_THE_RUN)
