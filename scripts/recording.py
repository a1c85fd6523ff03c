"""Record a run in a terminal, as docs/images/run.svg.

Each command is run in a pseudo-terminal, on bubblewrap, with real servers that the bridge finds in
a client's configuration, in a clone of this repository as it was at its 100th commit. What is drawn
is what was left on the screen, behind a prompt, with long lines wrapped between words. So that the
next recording is the same, times of day are replaced by noon, and durations are rounded up to whole
seconds; nothing else is changed.
"""

from __future__ import annotations

import fcntl
import html
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "run.svg"

COMMITS = 100
"""Of the clone. Its numbers stay what they are, whatever is committed later."""

COLUMNS = 96
MAX_OUTPUT_BYTES = 64 * 1024
"""Of one command; more is no picture."""

MAX_SECONDS = 120
"""Of one command, on a busy machine."""

SERVERS = {"git": {"command": "mcp-server-git"}, "time": {"command": "mcp-server-time"}}

COMMANDS = (
    "mcp-code-bridge servers",
    "mcp-code-bridge run repository_report.py -- .",
    "mcp-code-bridge run -c 'await mcp_git.git_logs(repo_path=\".\")'",
)

# The fonts are those of the reader's machine: nothing is fetched.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>DESCRIPTION</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: system-ui, sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def prepare(home: Path) -> tuple[Path, dict[str, str]]:
    """Make a home with servers and a clone in it; return the clone and the environment."""
    (home / ".claude.json").write_text(json.dumps({"mcpServers": SERVERS}))
    project = home / "project"
    _git("clone", "--quiet", "--no-checkout", str(ROOT), str(project))
    history = _git("-C", str(ROOT), "rev-list", "--first-parent", "--reverse", "HEAD").split()
    _git("-C", str(project), "checkout", "--quiet", "--detach", history[COMMITS - 1])
    program = (ROOT / "examples" / "repository_report.py").read_text("utf-8")
    # Of the clone, so that it stays clean.
    (project / ".git" / "info" / "exclude").write_text("repository_report.py\n")
    (project / "repository_report.py").write_text(program)
    environ = {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
    }
    return project, environ


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def screen(command: str, directory: Path, environ: Mapping[str, str]) -> str:
    """Return what a command leaves on a terminal.

    Raises:
        RuntimeError: It takes too long, or prints too much.
    """
    reader, writer = pty.openpty()
    with os.fdopen(reader, "rb", buffering=0) as output:
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        arguments = ["timeout", str(MAX_SECONDS), "bash", "-c", command]
        process = subprocess.Popen(
            arguments, cwd=directory, env=environ, stdin=writer, stdout=writer, stderr=writer
        )
        os.close(writer)
        written = b""
        try:
            while (more := output.read(4096)) and len(written) < MAX_OUTPUT_BYTES:
                written += more
        except OSError:
            # How Linux says that the other end of a pseudo-terminal is closed.
            pass
    if process.wait() == 124 or len(written) >= MAX_OUTPUT_BYTES:
        raise RuntimeError(f"{command!r} took too long, or printed too much")
    return left(written.decode())


def left(written: str) -> str:
    """Return what is left of a terminal's text: what was erased or written over is gone."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in written.split("\n"))
    return "\n".join(lines).replace("\x1b[J", "").rstrip()


def normalised(text: str) -> str:
    """Return a text with the time of day replaced, and durations rounded up."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "2026-01-01T12:00:00", text)
    return re.sub(r"\b\d+\.\d+ s\b", lambda found: f"{math.ceil(float(found[0][:-2]))} s", text)


def drawn(session: Mapping[str, str]) -> str:
    """Return a picture of commands and what each left on the screen, as SVG."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for command, text in session.items():
            console.print(Text.assemble(("$ ", "green"), (command, "bold")))
            console.print(Text.from_ansi(text))
            console.print()
        said = html.escape(" ".join(session), quote=False).replace("{", "{{").replace("}", "}}")
        return console.export_svg(
            title="mcp-code-bridge",
            code_format=TEMPLATE.replace("DESCRIPTION", f"A terminal: {said}"),
            unique_id="run",
        )


def main() -> None:
    """Record the commands and write the picture."""
    with tempfile.TemporaryDirectory(prefix="recording-") as name:
        project, environ = prepare(Path(name))
        session = {each: normalised(screen(each, project, environ)) for each in COMMANDS}
    PICTURE.write_text(drawn(session), encoding="utf-8")
    for command, text in session.items():
        print(f"$ {command}\n{text}\n")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
