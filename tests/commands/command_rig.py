"""A place on the host for commands to run in, full of what they must not see."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bridge.commands.runner import Commands
from bridge.model import CommandRequest, CommandResult
from bridge.settings import Settings, load
from bridge.settings.commands import parse_commands

PEEK = Path(__file__).with_name("peek.py")
SYSTEM_PYTHON = "/usr/bin/python3"
ORDINARY_ID = 61234
"""Some user's who is not there: the owner of workspaces when the tests are root."""

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
FILE_SECRET = "anotherSecret/fromTheFile+0123456789abcd"
CANARY = "canary-5b1f"


@dataclass(frozen=True, kw_only=True)
class Place:
    root: Path  # Holds the others, and nothing that is granted.
    home: Path
    workspace: Path
    peek: Path  # The stand-in executable.

    def settings(self, environ: dict[str, str] | None = None, **table: Any) -> Settings:
        own = {
            "HOME": str(self.home),
            "PATH": f"{self.peek.parent}:/usr/bin:/bin",
            "MCP_BRIDGE_STATE_DIR": str(self.root / "state"),
            "CANARY": CANARY,
            **(environ or {}),
        }
        profile = {"executables": ["peek"], "workspace": str(self.workspace), **table}
        return replace(load({}, own), commands=parse_commands({"tool": profile}, "commands"))

    def outside(self, asked: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
        done = subprocess.run(
            [SYSTEM_PYTHON, str(self.peek)],
            input=json.dumps(asked).encode(),
            capture_output=True,
            env=environ,
            cwd=self.workspace,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def place() -> Iterator[Place]:
    """Make one, outside of /tmp, which sandboxes have for themselves."""
    root = Path(tempfile.mkdtemp(prefix="mcb-commands-", dir="/var/tmp"))
    try:
        root.chmod(0o755)
        home, workspace, tools = root / "home", root / "ws", root / "tools" / "bin"
        for directory in (home / ".aws" / "sso" / "cache", workspace / "out", tools):
            directory.mkdir(parents=True)
        (home / ".ssh-canary").write_text(CANARY)
        (home / ".aws" / "config").write_text("[default]\nregion = eu-west-1\n")
        credentials = home / ".aws" / "credentials"
        credentials.write_text(f"[default]\naws_secret_access_key = {FILE_SECRET}\n")
        credentials.chmod(0o600)
        (home / ".aws" / "other-canary").write_text(CANARY)
        (root / "outside.txt").write_text(CANARY)
        (workspace / "a.txt").write_text("hello\nworld\n")
        (workspace / "leads-out").symlink_to(root / "outside.txt")
        peek = tools / "peek"
        peek.write_text(f"#!{SYSTEM_PYTHON}\n{PEEK.read_text()}")
        peek.chmod(0o755)
        if os.getuid() == 0:
            for path in (workspace, workspace / "out"):
                os.chown(path, ORDINARY_ID, ORDINARY_ID)
        yield Place(root=root, home=home, workspace=workspace, peek=peek)
    finally:
        shutil.rmtree(root)


async def run_peek(
    commands: Commands | Settings, asked: dict[str, Any], *words: str
) -> dict[str, Any]:
    result = await run(commands, ["peek", *words], stdin=json.dumps(asked))
    assert result.status == "success", (result.error, result.stages)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def run(given: Commands | Settings, *stages: list[str], **request: Any) -> CommandResult:
    asked = CommandRequest(profile="tool", stages=tuple(map(tuple, stages)), **request)
    if isinstance(given, Commands):
        return await given.run(asked)
    async with Commands(given) as commands:
        return await commands.run(asked)


@contextmanager
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield int(server.getsockname()[1])
