"""A sandbox with its guest up and waiting for a program.

Owns the handshake: launch, send the guest package, check its `hello`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from bridge.errors import ChannelClosedError, LaunchError
from bridge.guest.protocol.wire import PROTOCOL, Hello, Pong, WireError
from bridge.model import Isolation
from bridge.rpc.channel import Channel
from bridge.sandbox.backend import Backend, LaunchSpec, Sandbox
from bridge.sandbox.bundle import bundle_bytes
from bridge.sandbox.layers import require_mandatory_layers, verified

MISSED_PINGS = 3
"""Questions in a row without an answer, after which a distant sandbox counts as lost."""


@dataclass(frozen=True, kw_only=True)
class ReadySandbox:
    """One sandbox that waits for its `Run` frame.

    Attributes:
        facts: What its guest sees of its isolation.
        isolation: The layers in force, without those that the facts contradict.
    """

    sandbox: Sandbox
    channel: Channel
    facts: Mapping[str, Any]
    isolation: Isolation

    @property
    def is_whole(self) -> bool:
        """Whether another program can be sent to it."""
        return self.channel.is_whole

    async def wait_dead(self) -> None:
        """Return once its guest sends what it must not, or has ended."""
        try:
            # A run may have ended before its questions were answered, but not before many.
            for _ in range(MISSED_PINGS + 1):
                if not isinstance(await self.channel.receive(), Pong):
                    return
        except (WireError, ChannelClosedError):
            return


@asynccontextmanager
async def open_guest(backend: Backend, spec: LaunchSpec) -> AsyncIterator[ReadySandbox]:
    """Start a sandbox and bring its guest up; leaving destroys it.

    Raises:
        SandboxError: It could not be started, its guest never said hello, or what that sees from
            inside contradicts a layer that must hold.
    """
    async with backend.launch(spec) as sandbox:
        channel = Channel(sandbox)
        hello = await _shake_hands(sandbox, channel)
        require_mandatory_layers(sandbox.isolation, hello.facts)
        isolation = verified(sandbox.isolation, hello.facts)
        yield ReadySandbox(sandbox=sandbox, channel=channel, facts=hello.facts, isolation=isolation)


async def _shake_hands(sandbox: Sandbox, channel: Channel) -> Hello:
    problem = "did not answer within 30 s"
    # A loaded laptop that compiles the guest under gVisor has been seen to take ten.
    with anyio.move_on_after(30.0):
        try:
            await channel.write((bundle_bytes(),))
            frame = await channel.receive()
        except (WireError, ChannelClosedError) as error:
            problem = f"broke the channel before it was up: {error}"
        else:
            if isinstance(frame, Hello) and frame.protocol == PROTOCOL:
                return frame
            problem = "ended before it was up" if frame is None else f"answered {frame!r:.200}"
    diagnostics = sandbox.diagnostics().strip()
    message = f"The sandbox {problem}."
    if diagnostics:
        message = f"{message} It said: {diagnostics}"
    raise LaunchError(message, remedy="Run `mcp-code-bridge doctor`; the image needs Python 3.9+.")
