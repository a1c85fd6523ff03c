"""Which packages programs may ask for, from `[dependencies]` of `config.toml`. Pure.

Owns the keys, their bounds and their defaults. Whether a package is allowed is decided, and whether
it can be had is found out, by `bridge.wheels`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bridge.errors import SettingsError
from bridge.model import MEBIBYTE, Json
from bridge.settings import parsers
from bridge.settings.removed import insist_not_removed

MAX_PATTERNS = 500
"""More packages than anybody has looked at."""

MAX_PATTERN_CHARS = 200

DEFAULT_BYTES = 512 * MEBIBYTE
"""Of one set of packages, unpacked: the usual ones for data take a third of it."""

MOST_BYTES = 16 * 1024 * MEBIBYTE

DEFAULT_CACHE_BYTES = 4 * 1024 * MEBIBYTE

DEFAULT_SECONDS = 300.0
"""A hundred megabytes take a third of it where one comes each second."""

_PATTERN = re.compile(r"([A-Za-z0-9*][A-Za-z0-9._*-]*)\s*([<>=!~].*)?")


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """One entry of `allow`.

    Attributes:
        text: As it was written.
        name: Normalised; "*" in it stands for any characters.
        versions: Specifiers, such as "==2.*"; empty for any.
    """

    text: str
    name: str
    versions: str = ""


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The table.

    Attributes:
        allow: Without any every package is refused.
        index: URL of a simple index, or a directory of wheels; it may hold a password. Empty for
            what uv itself is configured to use.
        max_bytes: Of all packages of a run together, installed.
        cache: Where what is installed is kept; None for the bridge's own place.
        cache_bytes: What may be kept there.
        timeout: Seconds, for finding and fetching what a run asks for.
        lock_days: After how many days versions are looked for anew; 0 for never.
    """

    allow: tuple[Allowed, ...] = ()
    index: str = field(default="", repr=False)
    max_bytes: int = DEFAULT_BYTES
    cache: Path | None = None
    cache_bytes: int = DEFAULT_CACHE_BYTES
    timeout: float = DEFAULT_SECONDS
    lock_days: int = 0

    @property
    def directory(self) -> Path | None:
        """The directory of wheels, where the index is one."""
        return None if "://" in self.index or not self.index else Path(self.index)


def parse_dependencies(table: Json, place: str) -> Dependencies:
    """Return the `dependencies` table at `place`; one that allows nothing where there is none.

    Raises:
        SettingsError: It has a key or a value that cannot be.
    """
    if table is None:
        return Dependencies()
    if not isinstance(table, Mapping):
        raise SettingsError(f'{place} must be a table, [dependencies] with allow = ["polars"].')
    values: dict[str, object] = {}
    for key, value in table.items():
        insist_not_removed(f"dependencies.{key}", f"{place}.{key}")
        if key not in _KEYS:
            raise SettingsError(f"{place}.{key} is not a setting. {parsers.suggestion(key, _KEYS)}")
        try:
            values[key] = _KEYS[key](value)
        except ValueError as error:
            raise SettingsError(f"{place}.{key} {error}.") from None
    return Dependencies(**values)  # type: ignore[arg-type]  # parsed


def normalised(name: str) -> str:
    """Return a package's name as names are compared; a "*" in it stays."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _allow(value: Json) -> tuple[Allowed, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError('must be a list of packages such as ["polars", "pandas==2.*", "types-*"]')
    if len(value) > MAX_PATTERNS:
        raise ValueError(f"has more than {MAX_PATTERNS} entries")
    return tuple(_allowed(text.strip()) for text in value)


def _allowed(text: str) -> Allowed:
    # Only here: most configurations have no such table, and it takes milliseconds.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    found = _PATTERN.fullmatch(text) if len(text) <= MAX_PATTERN_CHARS else None
    if found is None:
        message = f'has {text[:MAX_PATTERN_CHARS]!r}, which is no package such as "pandas==2.*"'
        raise ValueError(message)
    versions = (found[2] or "").strip()
    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        raise ValueError(f"has {text!r}, whose {versions!r} says nothing of versions") from None
    return Allowed(text=text, name=normalised(found[1]), versions=versions)


def _index(value: Json) -> str:
    if not isinstance(value, str) or not value.strip() or re.search(r"[\s\0-\x1f\x7f]", value):
        message = "must be the address of a simple index or a directory, without blanks in it"
        raise ValueError(message)
    if "://" not in value:
        path = parsers.path(value)
        if not path.is_absolute():
            message = "must be an absolute path (or begin with ~), or an address with https://"
            raise ValueError(message)
        return str(path)
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # Not shown: it may hold a password.
        message = "must be an address with https:// (or http://), or a directory's absolute path"
        raise ValueError(message)
    return value


def _cache(value: Json) -> Path:
    path = parsers.path(value) if isinstance(value, str) else Path()
    if not path.is_absolute():
        raise ValueError("must be an absolute path (or begin with ~)")
    return path


def _size(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError('must be a size such as "512m"')
    size = parsers.parse_size(str(value))
    if not MEBIBYTE <= size <= MOST_BYTES:
        raise ValueError(f"must be between 1m and {MOST_BYTES // 1024**3}g")
    return size


def _seconds(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 3600:
        raise ValueError("must be a number of seconds from 1 to 3600")
    return float(value)


def _days(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 3660:
        raise ValueError("must be a whole number of days from 0 to 3660")
    return value


_KEYS: Mapping[str, Callable[[Json], object]] = {
    "allow": _allow,
    "index": _index,
    "max_bytes": _size,
    "cache": _cache,
    "cache_bytes": _size,
    "timeout": _seconds,
    "lock_days": _days,
}
