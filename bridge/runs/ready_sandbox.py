"""A sandbox whose guest waits for a program, and the handshake that starts it."""

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
from bridge.sandbox.layers import require_mandatory_layers, verify_isolation

MISSED_PINGS = 3
"""Pings in a row without an answer after which a distant sandbox counts as lost."""


@dataclass(frozen=True, kw_only=True)
class ReadySandbox:
    """A sandbox that waits for its `Run` frame.

    Attributes:
        facts: The guest's view of its isolation.
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
        """Return when the guest has ended or has broken the protocol."""
        try:
            # A run may end before the answers to its pings arrive, which are few.
            for _ in range(MISSED_PINGS + 1):
                if not isinstance(await self.channel.receive(), Pong):
                    return
        except (WireError, ChannelClosedError):
            return


@asynccontextmanager
async def open_guest(backend: Backend, spec: LaunchSpec) -> AsyncIterator[ReadySandbox]:
    """Start a sandbox and its guest; leaving destroys the sandbox.

    Raises:
        SandboxError: The sandbox did not start, its guest sent no hello, or the guest's facts
            contradict a mandatory layer.
    """
    async with backend.launch(spec) as sandbox:
        channel = Channel(sandbox)
        hello = await _shake_hands(sandbox, channel)
        require_mandatory_layers(sandbox.isolation, hello.facts)
        isolation = verify_isolation(sandbox.isolation, hello.facts)
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
