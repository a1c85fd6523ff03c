"""The limits of a run, from the settings and the strict profile. Pure."""

from __future__ import annotations

from bridge.model import MEBIBYTE, Limits
from bridge.settings import Settings

STRICT_CPUS = 0.5
STRICT_TIMEOUT = 5.0


def limits_for(settings: Settings, timeout: float | None = None) -> Limits:
    """Return the limits of a run that asks for `timeout` seconds.

    The strict profile lowers the settings' limits and never raises them.
    """
    wanted = settings.timeout if timeout is None else timeout
    if settings.strict:
        memory = min(settings.memory, 128 * MEBIBYTE)
        return Limits(
            timeout=min(wanted, STRICT_TIMEOUT),
            longest_timeout=min(settings.max_timeout, STRICT_TIMEOUT),
            memory_bytes=memory,
            pids=settings.pids,
            cpus=min(settings.cpus or STRICT_CPUS, STRICT_CPUS),
            tmp_bytes=memory // 4,
            workspace_bytes=memory // 4,
            output_bytes=_output_bytes(settings),
            output_tokens=settings.output_tokens,
            out_bytes=settings.artifact_run_bytes,
            shown_bytes=settings.shown_bytes,
        )
    return Limits(
        timeout=wanted,
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
    )


def _output_bytes(settings: Settings) -> int:
    """Return the limit of each stream: both and the files must fit into a run's artifact limit."""
    # Showing an output's beginning and end takes that much.
    return max(min(Limits.output_bytes, settings.artifact_run_bytes // 3), 256 * 1024)
