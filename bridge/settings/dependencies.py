"""The packages that programs may request, from `[dependencies]` of `config.toml`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bridge.guest.protocol.distributions import DATA, normalize_name
from bridge.model import MEBIBYTE, Json
from bridge.settings import fields

SET = "@data"  # Means the usual packages for data work.

_PATTERN = re.compile(r"([A-Za-z0-9*][A-Za-z0-9._*-]*)\s*([<>=!~].*)?")


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """One entry of `allow`: the text, its normalised name glob, and its version specifiers."""

    text: str
    name: str
    versions: str = ""


def _allow(value: Json, place: str) -> tuple[Allowed, ...]:
    """Return a list of packages: names with "*" or versions, or `@data` for the usual ones."""
    found = fields.several(fields.line, none=True)(value, place)
    data = [name for name in DATA if SET in found]
    wanted = [*(text for text in found if text != SET), *data]
    return tuple(fields.parse_text(_parse_allowed, text, place) for text in wanted)


def _parse_allowed(text: str) -> Allowed:
    # Imported late: it takes milliseconds, and most configurations have no such table.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ValueError('is not a package such as "polars", "pandas==2.*" or "types-*"')
    versions = (found[2] or "").strip()
    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        raise ValueError(f"has {versions!r}, which is not a version specifier") from None
    return Allowed(text=text, name=normalize_name(found[1]), versions=versions)


def _index(value: Json, place: str) -> str:
    """Return an http or https address, or the absolute path of a directory."""
    text = value if isinstance(value, str) else ""
    if text.startswith(("/", "~")):
        return str(fields.path(text, place))
    parts = urlsplit(text)
    blank = re.search(r"[\s\0-\x1f\x7f]", text)
    if blank or parts.scheme not in ("http", "https") or not parts.hostname:
        # The message omits the value, which may contain a password.
        problem = "an address with https:// (or http://), or a directory's absolute path"
        fields.fail(place, f"must be {problem}, without blanks in it")
    return text


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The `[dependencies]` table.

    Attributes:
        allow: Packages that a run may request, such as "pandas==2.*" or "types-*". Their own
            dependencies are allowed too. By default every package is refused.
        index: URL of a simple index, which may contain a password, or a directory of wheels.
            Empty for the index that uv is configured for.
        max_bytes: Total size of a run's installed packages.
        cache: Directory of installed packages; None for the bridge's own.
        cache_bytes: Maximum size of `cache`.
        timeout: Seconds to resolve and download a run's packages.
        lock_days: Days until versions are resolved again; 0 for never.
    """

    allow: tuple[Allowed, ...] = fields.key(_allow, ())
    index: str = fields.key(_index, "", repr=False)
    # The usual packages for data need a third of this.
    max_bytes: int = fields.key(fields.size(MEBIBYTE), 512 * MEBIBYTE)
    cache: Path | None = fields.key(fields.path, None)
    cache_bytes: int = fields.key(fields.size(MEBIBYTE), 4 * 1024 * MEBIBYTE)
    timeout: float = fields.key(fields.seconds(3600), 300.0)
    lock_days: int = fields.key(fields.whole(3660, 0), 0)

    @property
    def directory(self) -> Path | None:
        return None if "://" in self.index or not self.index else Path(self.index)
