"""What a host holds that a sandbox may not reach: planted, so that probes find it outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.background.rig import person

CANARY = "canary-of-the-host"


@contextmanager
def planted(directory: Path) -> Iterator[Mapping[str, object]]:
    secret = directory / "secret"
    secret.write_text(CANARY)
    abstract = f"mcp-code-bridge-test-{os.getpid()}"
    with ExitStack() as stack:
        port = _bind_listener(stack, socket.AF_INET6, ("::", 0))
        _bind_listener(stack, socket.AF_UNIX, f"\0{abstract}")
        _bind_listener(stack, socket.AF_UNIX, str(directory / "s"))
        sleeper = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", "input()"],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"CANARY": CANARY},
            )
        )
        stack.callback(sleeper.kill)
        yield {
            "directory": str(directory),
            "secret": str(secret),
            "mount": _mount_of(),
            "port": port,
            "datagrams": _answer(stack),
            "abstract": abstract,
            "socket": str(directory / "s"),
            "pid": sleeper.pid,
            "name": socket.gethostname(),
            "canary": CANARY,
            "bridge": _background_bridge(stack),
        }


def _background_bridge(stack: ExitStack) -> Mapping[str, str]:
    """Start a background bridge, and return its files."""
    home = stack.enter_context(tempfile.TemporaryDirectory(prefix="mcb-"))
    user = stack.enter_context(person(Path(home), MCP_BRIDGE_WARM="0"))
    with user.client() as client:
        client.initialize()
    [instance] = user.instances()
    return {name: getattr(instance, name) for name in ("directory", "socket", "lock", "record")}


def _bind_listener(stack: ExitStack, family: int, address: object) -> int:
    listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(address)  # type: ignore[arg-type]  # of whichever family
    listener.listen(64)
    name = listener.getsockname()
    return int(name[1]) if isinstance(name, tuple) else 0


def _answer(stack: ExitStack) -> int:
    resolver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    resolver.bind(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            question, asker = resolver.recvfrom(100)
            if question == b"end":
                return
            resolver.sendto(b"answer", asker)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = int(resolver.getsockname()[1])

    def end() -> None:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"end", ("127.0.0.1", port))
        thread.join()

    stack.callback(end)
    return port


def _mount_of() -> str:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = sorted({line.split()[4] for line in lines})
    inside = ("/proc", "/sys", "/dev", "/tmp", "/run", "/etc", "/var/tmp")
    return next(
        (f" {point} " for point in points if point != "/" and not point.startswith(inside)),
        " /nowhere ",
    )
