"""`${VAR}` and `${VAR:-default}`, exactly as Claude Code expands them.

Measured with Claude Code 2.1: a variable that is set to nothing counts as set; an unset one without
a default stays as written; `$VAR`, `${VAR:=x}` and names with other characters are plain text; what
was put in is not expanded again; keys of `env` and `headers` are never expanded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The text with variables put in, and the names of those left as written."""
    unset: dict[str, None] = {}

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in environ:
            return environ[name]
        if default is not None:
            return str(default)
        unset[name] = None
        return match[0]

    # Behind the last brace nothing can match; looking there could cost quadratic time.
    end = text.rfind("}") + 1
    return _REFERENCE.sub(value, text[:end]) + text[end:], tuple(unset)
