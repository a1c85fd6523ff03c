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
        # Both streams and the files must fit into a run's artifact limit; showing an output's
        # beginning and end takes 256 KiB.
        output_bytes=max(min(Limits.output_bytes, settings.artifact_run_bytes // 3), 256 * 1024),
        output_tokens=settings.output_tokens,
        out_bytes=settings.artifact_run_bytes,
        shown_bytes=settings.shown_bytes,
        directories=bool(settings.offered_directories),
    )
