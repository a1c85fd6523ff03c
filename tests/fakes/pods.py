"""The processes of the pods of `ApiServer`: bubblewrap, and what goes in and out."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

READ_BYTES = 32 * 1024


Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Document = dict[str, Any]


@dataclass
class RunningPod:
    """A pod's process, and who listens to it."""

    process: Process
    listener: Callable[[bytes], Awaitable[None]] | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    reason: str = ""


async def pass_stdin(
    receive: Receive, stdin: asyncio.StreamWriter, v5: bool, scope: anyio.CancelScope
) -> None:
    """Pass what comes over the websocket to a process, until it is closed."""
    while (message := await receive())["type"] == "websocket.receive":
        data = message["bytes"]
        if v5 and data == b"\xff\0":
            stdin.close()
            continue
        assert data[:1] == b"\0", "only stdin is written to"
        with suppress(OSError):
            stdin.write(data[1:])
            await stdin.drain()
    scope.cancel()


async def pump(stream: asyncio.StreamReader | None, channel: bytes, pod: RunningPod) -> None:
    assert stream is not None
    while data := await stream.read(READ_BYTES):
        if pod.listener is not None:
            with suppress(OSError, RuntimeError):
                await pod.listener(channel + data)


def sandbox_command(spec: Document) -> list[str]:
    """Return bubblewrap's words for a pod."""
    security = spec["securityContext"]
    words = [
        *("bwrap", "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc"),
        *("--cap-drop", "ALL", "--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin"),
        *("--uid", str(security["runAsUser"]), "--gid", str(security["runAsGroup"])),
        *("--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"),
    ]
    for name in ("bin", "lib", "lib64"):
        words += ["--symlink", f"usr/{name}", f"/{name}"]
    for mount in spec["containers"][0]["volumeMounts"]:
        words += ["--tmpfs", mount["mountPath"]]
    return [*words, "--remount-ro", "/", "--chdir", "/workspace", "--"]
