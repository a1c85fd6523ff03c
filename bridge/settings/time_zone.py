"""Finds the user's time zone, for sandboxes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_ZONE = re.compile(r"[A-Za-z0-9_+\-,.:<>][A-Za-z0-9_+\-/,.:<>]{0,99}")


def time_zone(environ: Mapping[str, str], etc: Path = Path("/etc")) -> str:
    """Return the user's time zone, a tz database name or POSIX rule; "UTC" if unknown."""
    texts = [environ["TZ"] or "UTC"] if "TZ" in environ else []
    link = str((etc / "localtime").resolve())
    texts += [link] if "zoneinfo/" in link else []
    with suppress(OSError):
        texts.append((etc / "timezone").read_text("ascii", "replace"))
    with suppress(OSError):
        # The last line of a tzfile is its current POSIX rule.
        texts.append(
            (etc / "localtime").read_bytes().strip().rpartition(b"\n")[2].decode("latin-1")
        )
    for text in texts:
        zone = text.strip().removeprefix(":").rpartition("zoneinfo/")[2]
        zone = re.sub("^(posix|right)/|^Etc/(?=UTC$)", "", zone)
        if _ZONE.fullmatch(zone) and ".." not in zone:
            return zone
    return "UTC"
