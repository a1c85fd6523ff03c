"""Files of variables, as editors and shells have them: pure.

Owns the reading of `NAME=value` lines with comments, quotes and `export`. Nothing is expanded in
them. A line that is none of this is passed over, as those who write such files expect.
"""

from __future__ import annotations

import re

MAX_ENV_FILE_BYTES = 256 * 1024
"""More than a process can be started with."""

MAX_VARIABLES = 4096

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)\"""")
_ESCAPE = re.compile(r"\\(.)")


def parse_env_file(text: str) -> dict[str, str]:
    """The variables that a file sets; the last line of a name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        found[match[1]] = _value(match[2])
        if len(found) >= MAX_VARIABLES:
            break
    return found


def _value(written: str) -> str:
    quoted = _QUOTED.match(written)
    if quoted is None:
        return re.split(r"\s#", written, maxsplit=1)[0].strip()
    if quoted[1] is not None:
        return quoted[1]
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], quoted[2])
