"""SSH as an engine: an SSH server on loopback, through which podman of this machine is reached."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import Engine, find
from tests.ssh_rig import fleet

SLOTS = 16
"""Enough for 8 runs at once and the sandboxes that wait."""

CLOSE_SECONDS = 10.0
"""For OpenSSH's client to end."""


@dataclass(frozen=True, kw_only=True)
class SshEngine(Engine):
    """Podman behind an SSH server.

    Attributes:
        near: The same podman without SSH.
        config: The bridge's settings file.
    """

    near: Engine
    config: Path

    @property
    def environ(self) -> Mapping[str, str]:
        """What the bridge has to be told to use it, with the same image."""
        return {**super().environ, "MCP_BRIDGE_CONFIG": str(self.config)}


def find_near() -> Engine | str:
    """Return the podman to be reached over SSH, or why it cannot be."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [name for name in ("ssh", "sshd") if shutil.which(name, path=path) is None]
    return f"there is no command {missing[0]} here" if missing else find("podman")


@contextmanager
def ssh_engine(near: Engine, directory: Path) -> Iterator[SshEngine]:
    """Start an SSH server, and give podman behind it as an engine."""
    with fleet(1, own_storage=False) as hosts:
        control = directory / "control"
        port = str(hosts.hosts[0].port)
        client = ("ssh", "-F", str(hosts.client), "-p", port, "-S", str(control))
        # The floor is spared a connection for each run, as the bridge is.
        master = subprocess.Popen([*client, "-M", "-N", "127.0.0.1"], stdin=subprocess.DEVNULL)
        try:
            yield SshEngine(
                name="ssh",
                version=f"to podman {near.version}",
                run=(*client, "127.0.0.1", *near.run),
                image=near.image,
                near=near,
                config=hosts.config(directory, slots=SLOTS),
            )
        finally:
            master.terminate()
            master.wait(CLOSE_SECONDS)
