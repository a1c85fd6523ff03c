"""Settings and hooks that all servers of a pool share, and the addresses made from them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from bridge.model import MEBIBYTE, ServerSettings, ServerSpec
from bridge.upstream.client_features import Roots
from bridge.upstream.http import HttpEndpoint
from bridge.upstream.launch import Containers
from bridge.upstream.oauth import Logins
from bridge.upstream.stdio import ServerLog, StdioEndpoint, log_path
from bridge.upstream.transport import Endpoint


class StartAdmission(Protocol):
    """Decides on each start, in two steps that may raise a BridgeError."""

    async def permit(self, spec: ServerSpec) -> None:
        """Check that a server may start, in the task that needs it; may ask the user."""

    async def start(self, spec: ServerSpec) -> None:
        """Check and record a start that happens next, in the connection's owner task."""


class OpenAdmission(StartAdmission):
    """Allows every start and records none; for a pool without a gate."""


MAX_MESSAGE_BYTES = 64 * MEBIBYTE
"""Limit of a server's or a program's message, equal to that of the channel into a sandbox."""


@dataclass(eq=False, repr=False)
class PoolSettings:
    """What all servers of a pool share."""

    _: KW_ONLY
    log_dir: Path
    environ: Mapping[str, str]
    call_timeout: float = 60.0
    start_timeout: float = 30.0  # Longest start, and longest wait for one.
    start_patience: float = 0.0  # Longest start of a package runner, which may have to install.
    patient: bool = False  # Whether callers wait for `start_patience` too.
    # Time until an unused connection is closed. None means half an hour over HTTP, where many
    # servers end an unused session, and never over stdio.
    idle_seconds: float | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES
    logins: Logins | None = None
    roots: Sequence[Path] = ()
    server_settings: Mapping[str, ServerSettings] = field(default_factory=dict)
    admission: StartAdmission = field(default_factory=OpenAdmission, init=False)
    containers: Containers = field(default_factory=Containers, init=False)
    # Called with a server's name when its list of tools changed, or when its change notifications
    # were lost; only if the list was requested before.
    on_tools_changed: Callable[[str], None] | None = field(default=None, init=False)

    def roots_of(self, spec: ServerSpec) -> Roots:
        """Return the configured roots, else the client's if no argument names a directory."""
        # As "--root=/a" or "/a:/b"; an argument may be no path, or longer than one can be.
        parts = (part for word in spec.args for part in re.split("[=:,]", word) if part)
        has = any(os.path.isdir(Path(spec.cwd or "", part)) for part in parts)  # noqa: PTH112
        return self.roots or (() if has or spec.transport != "stdio" else None)

    def endpoint(self, spec: ServerSpec) -> Endpoint:
        if spec.transport != "stdio":
            return HttpEndpoint(spec, max_message_bytes=self.max_message_bytes, logins=self.logins)
        return StdioEndpoint(
            spec,
            environ=self.environ,
            log=ServerLog(log_path(self.log_dir, spec.name)),
            max_message_bytes=self.max_message_bytes,
            containers=self.containers,
        )
