"""What the clients have in common: a package of npm, a home of their own, a way to be started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(sys.executable).parent
TESTS = Path(__file__).parents[1]
PEERS = TESTS / "node"
"""Where the npm packages are that `make test` installs."""
MORE = TESTS / "clients" / "node"
"""Where those are that only `make test-all` does."""

BRIDGE = "code-bridge"
"""What the bridge is called in the clients' configurations."""

PATIENCE_SECONDS = 300.0
"""For one client with all its steps; it only ends what hangs."""

TAPPED = 'tee "$0.in" | "$@" | tee "$0.out"'
"""A shell script that starts a server and keeps what it is told and what it says."""


@dataclass(frozen=True)
class Setting:
    """Where and with what a client is started.

    Attributes:
        home: A directory that is the client's alone.
        url: Where the stand-in for its model listens.
        environ: The bridge's environment.
    """

    home: Path
    url: str
    environ: Mapping[str, str]

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def tap(self) -> Path:
        """What the files with the messages to and from the bridge are called, without suffix."""
        return self.home / "messages"

    def entry(self, **more: Any) -> dict[str, Any]:
        """Return the bridge as the configuration of most clients has a server."""
        command = [TAPPED, str(self.tap), str(SCRIPTS / "mcp-code-bridge")]
        return {"command": "/bin/sh", "args": ["-c", *command], "env": dict(self.environ), **more}

    def servers(self, **more: Any) -> str:
        return json.dumps({"mcpServers": {BRIDGE: self.entry(**more)}})

    def write(self, place: str, text: str) -> Path:
        path = self.home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


@dataclass(frozen=True)
class Start:
    """Arguments, and what the environment has beside what all clients are given."""

    arguments: Sequence[str]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Client:
    """A client from npm.

    Attributes:
        title: What it is called.
        package: What it is called on npm.
        program: What its command is called.
        packages: The directory whose package.json names it.
        start: Writes its configuration and returns how to start it.
        pictures: Whether it shows its model the pictures of results.
        wrapping: What it puts around a result's text, with that text as its first group.
    """

    title: str
    package: str
    program: str
    packages: Path
    start: Callable[[Setting], Start]
    pictures: bool = True
    wrapping: re.Pattern[str] = re.compile(r"(.*)", re.DOTALL)

    @property
    def path(self) -> Path:
        return self.packages / "node_modules" / ".bin" / self.program

    @property
    def version(self) -> str:
        pinned = json.loads((self.packages / "package.json").read_text())["dependencies"]
        return str(pinned[self.package])

    def unwrapped(self, text: str) -> str:
        """Return the text of a result without what the client puts around it."""
        found = self.wrapping.fullmatch(text)
        return found[1] if found else text

    def environ(self, setting: Setting) -> dict[str, str]:
        temporary = setting.home / "tmp"
        temporary.mkdir(exist_ok=True)
        return {
            "HOME": str(setting.home),
            "TMPDIR": str(temporary),
            "PATH": f"{SCRIPTS}{os.pathsep}{os.defpath}",
            "DISABLE_TELEMETRY": "1",
            # Whatever it would fetch from elsewhere it does not get.
            "HTTPS_PROXY": setting.url,
            "NO_PROXY": "127.0.0.1",
        }

    def run(self, setting: Setting) -> str:
        """Let it do what its model says until that is done; return all that it printed."""
        setting.project.mkdir(parents=True, exist_ok=True)
        start = self.start(setting)
        environ = {"CI": "1", "NO_COLOR": "1", **self.environ(setting), **start.environ}
        done = subprocess.run(
            [str(self.path), *start.arguments],
            cwd=setting.project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return done.stdout.decode(errors="replace")
