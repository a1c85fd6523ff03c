"""What a person sees of an approval in real clients, in terminals of two sizes.

python -m tests.clients.screens [PROGRAM ...] writes tests/clients/screens/; it needs tmux.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.client import PATIENCE_SECONDS, PEERS, Client, Setting
from tests.clients.every import CLIENTS
from tests.clients.exchange import bridge_environ
from tests.clients.model import Call, Step, program, serving

SCREENS = Path(__file__).parent / "screens"
SIZES = ((80, 24), (120, 40))
LATE_SECONDS = 20.0
POLICY = '[policy.defaults]\nuntrusted = "ask"\nwrite = "ask"\n'

INTERACTIVE: Mapping[str, Sequence[str]] = {
    "claude": [
        "--mcp-config",
        "{home}/servers.json",
        "--strict-mcp-config",
        "--permission-mode",
        "default",
        "--allowedTools",
        "mcp__code-bridge",
    ],
    "codex": [],
    "gemini": ["--model", "gemini-2.5-pro", "--approval-mode", "yolo"],
    "qwen": ["--approval-mode", "yolo"],
    "copilot": ["--allow-all-tools", "--no-auto-update"],
    "opencode": ["--model", "stand-in/m"],
}
"""Arguments with which a client starts in a terminal."""

ONE = 'await mcp_filesystem.create_directory(path="/srv/x/newdir")'
MANY = 'for n in range(30): await mcp_filesystem.create_directory(path=f"/srv/x/newdir{n}")'

STEPS: Mapping[str, Sequence[Step]] = {
    "call": [program(ONE)],
    "plan": [
        program(MANY, mode="plan"),
        lambda results: Call({"apply": re.findall(r'apply=\\*"(\w+)', results[-1].text)[-1]}),
    ],
}

ASKS = re.compile(r"(Allow|Apply) .*filesystem")
PATHS = re.compile(r"/\S*(?:node_modules|/mcb\w{6,})\S*")
MOVING = re.compile(r"(?: · |\()?\b(?:\d+m )?\d+s\b|[⠀-⣿✢✳✶✻✽·•◦●○■⬝]")


class Terminal:
    """A terminal of its own, with one program in it."""

    def __init__(self, directory: Path, size: tuple[int, int]) -> None:
        self._tmux = ["tmux", "-S", str(directory / "tmux"), "-f", "/dev/null"]
        self._size = size

    def _do(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=False)
        return done.stdout

    def start(self, command: str, directory: Path) -> None:
        columns, rows = map(str, self._size)
        self._do("new-session", "-d", "-x", columns, "-y", rows, "-c", str(directory), command)
        self._do("set-option", "-g", "remain-on-exit", "on")

    def screen(self) -> str:
        return self._do("capture-pane", "-p")

    def keys(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def end(self) -> None:
        self._do("kill-server")


def run(client: Client, steps: Sequence[Step], size: tuple[int, int]) -> str:
    """Return the screen of a client while it asks, once it shows the same twice."""
    with tempfile.TemporaryDirectory(prefix="mcb") as name, serving(list(steps)) as model:
        directory = Path(name)
        files = {"command": str(PEERS / "node_modules/.bin/mcp-server-filesystem"), "args": [name]}
        environ = bridge_environ(directory / "bridge", {"filesystem": files})
        (directory / "bridge" / "config.toml").write_text(POLICY, encoding="utf-8")
        environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"
        setting = Setting(directory / "home", model.url, environ)
        setting.project.mkdir(parents=True)
        variables = {**client.start(setting).environ, **client.environ(setting)}
        variables["TERM"] = "xterm-256color"
        prepare(client, setting)
        arguments = [each.format(home=setting.home) for each in INTERACTIVE[client.program]]
        command = [*(f"{key}={text}" for key, text in variables.items()), str(client.path)]
        terminal = Terminal(directory, size)
        terminal.start(shlex.join(["env", "-i", *command, *arguments]), setting.project)
        try:
            return wait(terminal, setting)
        finally:
            terminal.end()


def wait(terminal: Terminal, setting: Setting) -> str:
    """Return the screen with the question; answer what the client asks before."""
    ends, before, asked = time.monotonic() + PATIENCE_SECONDS / 2, "", False
    said = setting.tap.with_suffix(".out")
    while time.monotonic() < ends:
        time.sleep(1)
        # Clocks and spinners run.
        screen = MOVING.sub("", terminal.screen())
        # Some screens have a picture that moves for ever.
        asks = bool(ASKS.search(screen) and ASKS.search(before))
        # Copilot lists the tools only when it has something to do.
        late = time.monotonic() > ends - PATIENCE_SECONDS / 2 + LATE_SECONDS
        listed = late or said.exists() and '"tools":[' in said.read_text().replace(" ", "")
        if screen == before or asks or (listed and not asked):
            keys = next((keys for text, keys in KEYS.items() if text in screen), ())
            if asks or (asked and not keys and "done" in screen):
                return screen
            terminal.keys(*keys)
            if not keys and not asked and listed:
                asked = True
                terminal.keys("go")
                time.sleep(1)
                terminal.keys("Enter")
        before = screen
    return before


KEYS: Mapping[str, Sequence[str]] = {
    "Do you want to use this API key": ["Up", "Enter"],
    "Yes, I trust this folder": ["Enter"],
    "Yes, continue": ["Enter"],
    "Use existing model": ["Down", "Enter"],
    "Do you want to proceed?": ["Enter"],
    "Press enter to continue": ["Enter"],
}
"""What a client asks before, and the keys that agree."""


def prepare(client: Client, setting: Setting) -> None:
    if client.program == "claude":
        known = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "bypassPermissionsModeAccepted": True,
        }
        known["projects"] = {str(setting.project): {"hasTrustDialogAccepted": True}}
        known["customApiKeyResponses"] = {"approved": ["none"], "rejected": []}
        setting.write(".claude.json", json.dumps(known))


def main(programs: Sequence[str]) -> None:
    SCREENS.mkdir(exist_ok=True)
    for client in CLIENTS:
        if client.program not in (programs or INTERACTIVE):
            continue
        for name, steps in STEPS.items():
            for size in SIZES:
                screen = run(client, steps, size)
                path = SCREENS / f"{client.program}-{name}-{size[0]}.txt"
                lines = PATHS.sub("~", screen).splitlines()
                path.write_text("\n".join(line.rstrip() for line in lines) + "\n")
                print(path.name, "asks" if ASKS.search(screen) else "does not ask")


if __name__ == "__main__":
    main(sys.argv[1:])
