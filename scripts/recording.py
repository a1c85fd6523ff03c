"""Record two runs and an approval in a terminal, as the animation docs/images/run.svg.

Each command is run in a pseudo-terminal, on bubblewrap, with real servers that the bridge finds in
a client's configuration, in a clone of this repository as it was at its 100th commit. The picture
shows what was left on the screen, behind a prompt, with long lines wrapped between words. The lines
appear command by command, at a reader's pace. So that the next recording is the same, times of day
are replaced by noon, and durations are rounded up to whole seconds.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "run.svg"

COMMITS = 100
"""Of the clone. Its numbers stay what they are, whatever is committed later."""

COLUMNS = 64
"""Few enough to be read on a phone."""

MAX_OUTPUT_BYTES = 64 * 1024
"""Of one command; more is no picture."""

MAX_SECONDS = 120
"""Of one command, on a busy machine."""

SERVERS = {"git": {"command": "mcp-server-git"}, "time": {"command": "mcp-server-time"}}

SETTINGS = """\
[policy.servers]
git = {trust = true}
time = {trust = true}

[[policy.rules]]
name = "writes"
effect = "write"
action = "ask"
reason = "it changes the repository"
"""

COMMANDS = {
    "mcp-code-bridge run repository_report.py -- .": "",
    "mcp-code-bridge run -c 'await mcp_git.git_create_branch("
    'repo_path=".", branch_name="fix")\'': "1",
}
"""Each command, with the answer to its question."""

STEP_SECONDS = 2.5
"""Between a command, what it prints, and what it prints after an answer."""

# The fonts are those of the reader's machine: nothing is fetched.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>DESCRIPTION</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: system-ui, sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
@media (prefers-reduced-motion: no-preference) {{ STEPS }}
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
    settings = home / ".config" / "mcp-code-bridge"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text(SETTINGS)
    project = home / "project"
    _git("clone", "--quiet", "--no-checkout", str(ROOT), str(project))
    history = _git("-C", str(ROOT), "rev-list", "--first-parent", "--reverse", "HEAD").split()
    _git("-C", str(project), "switch", "--quiet", "-C", "main", history[COMMITS - 1])
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


def screen(command: str, answer: str, directory: Path, environ: Mapping[str, str]) -> str:
    """Return what a command leaves on a terminal where a person answers its question.

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
                if answer and written.endswith(b": "):
                    os.write(reader, f"{answer}\n".encode())
                    answer = ""
        except OSError:
            # How Linux says that the other end of a pseudo-terminal is closed.
            pass
    if process.wait() == 124 or len(written) >= MAX_OUTPUT_BYTES:
        raise RuntimeError(f"{command!r} took too long, or printed too much")
    return left(written.decode())


def left(written: str) -> str:
    """Return what is left of a terminal's text: what was erased or written over is gone."""
    ended_status = r"[^\n]*\n(?:\x1b\[\?25h)?\r\x1b\[1A\x1b\[2K"
    text = re.sub(ended_status, "", written)
    # All sequences but colours.
    text = re.sub(r"\x1b(?:\[[?0-9;]*[A-Za-ln-z]|\(B)|\x0f", "", text)
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(lines).strip().removeprefix("\x1b[0m").strip()


def normalised(text: str) -> str:
    """Return a text with the time of day replaced, and durations rounded up."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "2026-01-01T12:00:00", text)
    text = text.replace("\x1b[7m", "\x1b[1m")  # A background would not appear with its line.
    return re.sub(r"\b\d+\.\d+ s\b", lambda found: f"{math.ceil(float(found[0][:-2]))} s", text)


def drawn(session: Mapping[str, str]) -> str:
    """Return a picture of commands and what each left on the screen, as SVG.

    Its lines appear step by step, over and over. A command is a step, and so is what it prints
    until a question has an answer, and after that.
    """
    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        steps: list[int] = []
        for command, text in session.items():
            shown = [Text.assemble(("$ ", "green"), (command, "bold"))]
            # A prompt ends in a colon, its answer is a number or a letter.
            shown += [Text.from_ansi(part) for part in re.split(r"(?<=: \w)\n", text)]
            for part in shown:
                console.print(part)
                steps.append(len(console.render_lines(part)))
            console.print()
            steps[-1] += 1
        said = html.escape(" ".join(session), quote=False).replace("{", "{{").replace("}", "}}")
        code = TEMPLATE.replace("DESCRIPTION", f"A terminal: {said}")
        picture = console.export_svg(
            title="mcp-code-bridge",
            code_format=code.replace("STEPS", animation(steps)),
            unique_id="run",
        )
    line = r'<text class="([^"]*)"([^>]*url\(#run-line-(\d+)\))'
    return re.sub(line, r'<text class="\1 line-\3"\2', picture)


def animation(steps: Sequence[int]) -> str:
    """Return styles, for a format string, by which steps of so many lines each appear in turn."""
    cycle = STEP_SECONDS * (len(steps) + 2)
    rules, first = [], 0
    for number, length in enumerate(steps):
        begin = 100 * number * STEP_SECONDS / cycle
        rules.append(f"@keyframes step-{number} {{ 0% {{ opacity: 0 }}")
        rules.append(f"  {begin:.1f}%, 100% {{ opacity: 1 }} }}")
        lines = ", ".join(f".line-{line}" for line in range(first, first + length))
        rules.append(f"{lines} {{ animation: step-{number} {cycle:g}s step-end infinite }}")
        first += length
    return "\n".join(rules).replace("{", "{{").replace("}", "}}")


def main() -> None:
    """Record the commands and write the picture."""
    with tempfile.TemporaryDirectory(prefix="recording-") as name:
        project, environ = prepare(Path(name))
        session = {
            command: normalised(screen(command, answer, project, environ))
            for command, answer in COMMANDS.items()
        }
    PICTURE.write_text(drawn(session), encoding="utf-8")
    for command, text in session.items():
        print(f"$ {command}\n{text}\n")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
