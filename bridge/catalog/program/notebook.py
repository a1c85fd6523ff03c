"""Notebook commands in a program: left out, or read as what they mean. Pure."""

from __future__ import annotations

import re
import shlex

_PIP = r"[!%]? *(?:(?:\{sys\.executable\}|python3?) +-m +|uv +)?pip3? +install\b"

COMMAND = (
    r"(?m:^)[ \t]*(?:%(?:matplotlib|load_ext|reload_ext|autoreload|config)\b[^\n]*"
    rf"|%%(?:time|timeit|capture)\b[^\n]*|%time[ \t]+|{_PIP}[^\n]*)"
)
"""Matches a command of one certain meaning, with the rest of its line if that belongs to it."""

_PACKAGES = "pass  # packages: "
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:[<>=!~]=?[\w.*,<>=!~]+)?")
_SILENT = re.compile(r"[ \t]*(?:[12&]?>>?[ \t]*\S+|\|[ \t]*(?:tail|head|grep)\b.*)$")
_FLAGS = re.compile(
    r"-[qUy]+|--(?:quiet|upgrade|user|yes|no-input|no-cache-dir|prefer-binary|force-reinstall"
    r"|disable-pip-version-check|break-system-packages|root-user-action=\w+|progress-bar=?\w*)"
)


def read_command(text: str) -> str:
    """Return what replaces a command; the command itself if it may mean something else."""
    install = re.match(rf"([ \t]*){_PIP}(.*)", text)
    if install is None:
        return text[: len(text) - len(text.lstrip())] if text.lstrip().startswith("%time ") else ""
    words = install[2]
    while (shorter := _SILENT.sub("", words)) != words:
        words = shorter
    try:
        wanted = [word for word in shlex.split(words) if not _FLAGS.fullmatch(word)]
    except ValueError:
        return text
    if not wanted or not all(map(_REQUIREMENT.fullmatch, wanted)):
        return text
    return f"{install[1]}{_PACKAGES}{' '.join(wanted)}"


def packages_in(code: str) -> tuple[str, ...]:
    """Return the packages that the commands of a program install, once the commands are read."""
    lines = re.findall(rf"(?m)^[ \t]*{_PACKAGES}(.+)$", code)
    return tuple(dict.fromkeys(name for line in lines for name in line.split()))
