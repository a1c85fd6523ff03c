"""An installed type checker's view of a program that failed.

Owns how a checker is found, run and read. It gets the program under a stub of what a run has, in a
directory of its own, with an environment that leads to nobody's configuration, and within bounds of
time and output; it reads the program and executes nothing of it. Whatever it says is a note: a
program that runs may still have no types.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

import anyio
from anyio.abc import Process

from bridge.catalog.entries import ServerEntry
from bridge.catalog.guard import MAX_SCANNED_CHARS
from bridge.catalog.prose import one_line
from bridge.catalog.typed import environment_stub
from bridge.model import Finding

RULE = "type-check"

SECONDS = 4.0
"""For one check; a checker that takes longer is stopped, and says nothing."""

MAX_OUTPUT_BYTES = 256 * 1024
MAX_NOTES = 8
"""Of one program: who mends these gets the next."""

MAX_MESSAGE_CHARS = 300

FILE = "program.py"

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "ty": ("check", "--no-progress", "--color", "never", "--output-format", "concise"),
    "mypy": (
        "--config-file=",
        "--cache-dir=/dev/null",
        "--disable-error-code=top-level-await",
        "--follow-imports=silent",
        "--hide-error-context",
        "--ignore-missing-imports",
        "--no-color-output",
        "--no-error-summary",
        "--show-column-numbers",
    ),
}
"""How each is told to print one line per problem, and to read no configuration."""

_LINE = re.compile(
    r"[^:\n]{0,200}program\.py:(?P<line>\d{1,7}):(?P<column>\d{1,7}): error"
    r"(?:\[(?P<rule>[\w-]{1,60})\])?:? (?P<text>[^\n]{1,2000})"
)
_RULE_BEHIND = re.compile(r"\s+\[(?P<rule>[\w-]{1,60})\]$")

_NOT_SO_HERE = frozenset(
    {"import-not-found", "import-untyped", "top-level-await", "unresolved-import"}
)
"""What a checker cannot know: the image's packages, and that `await` works at the top."""

_TOP_LEVEL = re.compile(r"`?await`? outside|__future__|[Mm]odule [\"'`]mcp\b")


@dataclass(frozen=True, kw_only=True)
class Checker:
    """A type checker that is installed."""

    name: str
    path: str


def find_checker(wanted: str, search: str) -> Checker | None:
    """Return the checker of the settings; None if it is off or not there.

    Args:
        wanted: "off", "auto", a name or a path.
        search: Directories, as in PATH.
    """
    if wanted in ("", "off"):
        return None
    beside = str(Path(sys.executable).parent)
    for name in _ARGUMENTS if wanted == "auto" else (wanted,):
        kind = Path(name).name
        path = shutil.which(name, path=os.pathsep.join((beside, search)))
        if kind in _ARGUMENTS and path is not None:
            return Checker(name=kind, path=path)
    return None


async def type_notes(
    checker: Checker, code: str, servers: Sequence[ServerEntry]
) -> tuple[Finding, ...]:
    """Return what a checker has to say of a program; nothing if it fails or takes too long."""
    if len(code) > MAX_SCANNED_CHARS:
        return ()
    stub = environment_stub(servers)
    offset = stub.count("\n") + 1
    async with anyio.TemporaryDirectory(prefix="mcp-bridge-types-") as directory:
        place = anyio.Path(directory)
        await (place / FILE).write_text(f"{stub}\n{code}\n", encoding="utf-8", errors="replace")
        output = await _output((checker.path, *_ARGUMENTS[checker.name], FILE), directory)
    return _notes(checker, output, offset, code.count("\n") + 1)


def not_installed(wanted: str) -> Finding:
    """Return the note that the checker of the settings is not there."""
    message = f"the type checker {wanted!r} that the settings name is not installed"
    return Finding(line=0, rule=RULE, severity="note", message=message, source="preflight")


def _notes(checker: Checker, output: str, offset: int, lines: int) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for match in _LINE.finditer(output):
        line, text, rule = int(match["line"]) - offset, match["text"], match["rule"] or ""
        behind = _RULE_BEHIND.search(text)
        if not rule and behind is not None:
            rule, text = behind["rule"], text[: behind.start()]
        if not 0 < line <= lines or rule in _NOT_SO_HERE or _TOP_LEVEL.search(text):
            continue
        said = one_line(text, MAX_MESSAGE_CHARS)
        found.append(
            Finding(
                line=line,
                column=int(match["column"]),
                rule=RULE,
                severity="note",
                message=f"{checker.name}: {said}{f' [{rule}]' if rule else ''}",
                source="preflight",
            )
        )
        if len(found) >= MAX_NOTES:
            break
    return tuple(found)


async def _output(command: Sequence[str], directory: str) -> str:
    """Run a command to its end, or to ours; return what it printed."""
    environment = {
        "HOME": directory,
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "PATH": "/usr/bin:/bin",
        "TMPDIR": directory,
        "XDG_CACHE_HOME": directory,
        "XDG_CONFIG_HOME": directory,
        # One run's curiosity is not worth all processors.
        "RAYON_NUM_THREADS": "1",
        "TY_MAX_PARALLELISM": "1",
    }
    try:
        # Cancelled in the middle, it would leave a process that nobody waits for.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                command,
                stdin=DEVNULL,
                stderr=DEVNULL,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
    except OSError:
        return ""
    try:
        with anyio.move_on_after(SECONDS):
            return await _read(process)
        return ""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                # Whatever it has started goes with it.
                os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def _read(process: Process) -> str:
    """Return the beginning of what a process prints, up to a bound."""
    parts: list[bytes] = []
    size = 0
    assert process.stdout is not None
    async for part in process.stdout:
        parts.append(part)
        size += len(part)
        if size > MAX_OUTPUT_BYTES:
            break
    else:
        await process.wait()
    return b"".join(parts)[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
