"""What a sandbox is made from. Pure.

Owns the value by which two sandboxes count as alike, so that one that waits is handed only to a run
that would have been given just such a one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bridge.model import Limits
from bridge.sandbox.backend import Bind
from bridge.settings import Settings

_DEFAULTS = Limits()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything of the settings and of a run that is settled when a sandbox starts.

    Attributes:
        packages: Where programs find packages of the host's, as text; empty for nowhere.
        binds: What of the host is in it.
        limits: What the sandbox is started under. Its timeout is the longest that a run may ask
            for: the deadline itself comes with the `Run` frame, but the limit on CPU time that
            backends derive from it is set before. What else is enforced later has its default
            here, since it makes no difference to a sandbox.
    """

    runtime: str
    oci_runtime: str
    image: str
    profile: str
    user: str
    packages: str
    limits: Limits
    binds: tuple[Bind, ...] = ()


def recipe_for(settings: Settings, limits: Limits, binds: tuple[Bind, ...] = ()) -> Recipe:
    """Return what the sandbox of a run is made from.

    Args:
        limits: The run's own.
        binds: What of the host it is to have.
    """
    return Recipe(
        runtime=settings.runtime,
        oci_runtime=settings.oci_runtime,
        image=settings.image,
        profile="strict" if settings.strict else settings.profile,
        user=settings.container_user,
        packages=str(settings.packages or ""),
        binds=binds,
        limits=replace(
            limits,
            timeout=max(limits.timeout, limits.longest_timeout),
            longest_timeout=_DEFAULTS.longest_timeout,
            output_bytes=_DEFAULTS.output_bytes,
            output_tokens=_DEFAULTS.output_tokens,
            result_bytes=_DEFAULTS.result_bytes,
            frame_bytes=_DEFAULTS.frame_bytes,
            tool_calls=_DEFAULTS.tool_calls,
            concurrent_calls=_DEFAULTS.concurrent_calls,
        ),
    )
