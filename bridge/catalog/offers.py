"""Texts on the packages and host directories that programs may use. Pure.

They contain names and modes, never a host path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bridge.catalog.prose import joined, one_line
from bridge.model import Directory

_NAME_CHARS = 60
_LINE_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Offers:
    """The packages and directories that programs may use.

    Attributes:
        packages: Entries of `allow`, or words for any; empty if packages are not allowed.
        installed: Name and version of the packages that programs find, the best known first.
        roots: Names of the client's and the settings' roots.
        python: The version of Python; empty if it is not known yet.
        time_zone: That of programs.
        listed_only: Whether programs may use only the servers that their run lists.
    """

    packages: tuple[str, ...] = ()
    installed: tuple[tuple[str, str], ...] = ()
    directories: tuple[Directory, ...] = ()
    roots: tuple[str, ...] = ()
    python: str = ""
    time_zone: str = "UTC"
    listed_only: bool = False


def offers_line(offers: Offers) -> str:
    """Return the end of the sentence "Importable: the standard library" in a description."""
    parts = [f" of Python {offers.python}"] if offers.python else []
    # The versions matter of those whose functions changed; the guide has all.
    names = [
        f"{name} {version}" if name in ("numpy", "pandas") else name
        for name, version in offers.installed
    ]
    parts += [f", {joined(names, _LINE_CHARS)}." if names else "."]
    if offers.packages:
        parts.append(f" With `packages`: {joined(offers.packages, _LINE_CHARS)}.")
    if offers.directories:
        parts.append(f" Directories: {joined(_directories(offers), _LINE_CHARS)}.")
    return "".join(parts)


def offers_section(offers: Offers) -> str:
    """Return the guide's section on them, in Markdown; empty if there are none."""
    lines = []
    if offers.installed:
        names = joined([" ".join(pair) for pair in offers.installed], 4 * _LINE_CHARS)
        lines.append(f"Installed: {names}.")
    if offers.packages:
        names = joined(offers.packages, 4 * _LINE_CHARS)
        lines.append(
            f"Packages, from an index and for this run only: {names}. Ask for them with "
            '`packages=["name==1.*"]`, or in the code:\n'
            '```python\n# /// script\n# dependencies = ["name==1.*"]\n# ///\n```'
        )
    if offers.directories:
        paths = joined(_directories(offers), 4 * _LINE_CHARS)
        lines.append(f"The user's directories: {paths}.")
    if offers.roots:
        names = joined([one_line(name, _NAME_CHARS) for name in offers.roots], _LINE_CHARS)
        lines.append(
            f"The user also works in: {names}. Programs cannot see those; the user can offer them "
            "as [directories] of the bridge's settings."
        )
    return "## Packages and directories\n" + "\n".join(lines) + "\n\n" if lines else ""


def _directories(offers: Offers) -> list[str]:
    return [
        f"`{one.inside}` ({'read and write' if one.writable else 'read-only'})"
        for one in offers.directories
    ]


def root_names(roots: Iterable[tuple[str, str]], own: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of roots: the client's name, else the last part of the address.

    Args:
        roots: Name and address of each of the client's roots.
        own: Paths of the settings' roots.
    """
    found: dict[str, None] = {}
    for name, address in (*roots, *(("", path) for path in own)):
        last = address.rstrip("/").rpartition("/")[2]
        shown = (one_line(text, _NAME_CHARS).strip() for text in (name, last))
        found.setdefault(next(filter(None, shown), ""))
    return tuple(filter(None, found))[:40]  # A client may have any number.
