"""The limits of a run, from its settings. Pure."""

from __future__ import annotations

from bridge.model import Limits
from bridge.settings import Settings


def limits_for(settings: Settings, timeout: float | None = None) -> Limits:
    """Return the limits of a run that asks for `timeout` seconds."""
    return Limits(
        timeout=min(timeout or settings.timeout, settings.max_timeout),
        longest_timeout=settings.max_timeout,
        memory_bytes=settings.memory,
        pids=settings.pids,
        cpus=settings.cpus,
        tmp_bytes=max(min(Limits.tmp_bytes, settings.memory // 4), settings.memory // 8),
        workspace_bytes=settings.memory // 4,
        output_bytes=_output_bytes(settings),
        output_tokens=settings.output_tokens,
        out_bytes=settings.artifact_run_bytes,
        shown_bytes=settings.shown_bytes,
        directories=bool(settings.offered_directories),
    )


def _output_bytes(settings: Settings) -> int:
    """Return the limit of each stream: both and the files must fit into a run's artifact limit."""
    # Showing an output's beginning and end takes that much.
    return max(min(Limits.output_bytes, settings.artifact_run_bytes // 3), 256 * 1024)
