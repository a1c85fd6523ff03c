"""Names of files on their way into a sandbox or out of it. Pure.

Owns the rules for both ways: code that makes a file of the host's by a name from elsewhere
may rely on them. They are stricter than any file system, so that a name means the same to all of
them, to a terminal and to the reader.
"""

from __future__ import annotations

import unicodedata

MAX_NAME_BYTES = 1024  # A client or a guest may send a name of megabytes.

_REFUSED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def name_problem(name: str) -> str:
    """Return why a file cannot be called so, as what follows "its name"; empty if it can."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES:,} bytes"
    if any(_is_refused(character) for character in name):
        return "holds control characters or what is no text"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES:,} bytes"
    if name.startswith("/"):
        return "begins with a slash; it must be relative"
    if "\\" in name:
        return "holds a backslash; directories are parted by /"
    parts = name.split("/")
    if not all(part not in ("", ".", "..") for part in parts):
        return 'has a part that is empty, "." or ".."'
    if len(parts) > 10:
        return "has more than 10 parts"
    if any(len(part.encode()) > 255 for part in parts):
        return "has a part of more than 255 bytes"  # What file systems take.
    return ""


def quoted(name: str) -> str:
    cut = name if len(name) <= 200 else f"{name[:199]}…"
    shown = "".join(
        character.encode("unicode_escape").decode("ascii") if _is_refused(character) else character
        for character in cut
    )
    return f"`{shown}`"


def _is_refused(character: str) -> bool:
    # parts of words and of emoji; other format characters hide or reverse text
    return unicodedata.category(character) in _REFUSED and character not in "\u200c\u200d"
