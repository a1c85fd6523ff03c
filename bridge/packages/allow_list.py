"""Whether a package may be used here. Pure.

A requested package needs an entry of `allow` with its name. Its own requirements are allowed with
it. The versions that an entry names hold for both.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from bridge.errors import PackageRefusedError
from bridge.packages.requirements import Wanted
from bridge.settings.dependencies import Allowed


def entries_for(name: str, allow: Iterable[Allowed]) -> tuple[Allowed, ...]:
    # Names hold none of the other characters that mean something in such a pattern.
    return tuple(entry for entry in allow if fnmatch.fnmatchcase(name, entry.name))


def check_wanted(wanted: Iterable[Wanted], allow: Sequence[Allowed], place: str) -> None:
    """Check that the requested packages are allowed; `place` is the settings file, for errors."""
    missing = [one.name for one in wanted if not entries_for(one.name, allow)]
    if missing:
        raise _refused(tuple(dict.fromkeys(missing)), allow, place)


def check_resolved(found: Mapping[str, str], allow: Sequence[Allowed]) -> None:
    """Check the versions of resolved packages. What an allowed package needs is allowed."""
    for name, version in found.items():
        entries = entries_for(name, allow)
        if entries and not any(_has(entry, version) for entry in entries):
            texts = ", ".join(entry.text for entry in entries[:8])
            message = f"{name} {version} is not allowed here; of it there is {texts}."
            raise PackageRefusedError(message, remedy=f"Ask for a version within {texts}.")


def _has(entry: Allowed, version: str) -> bool:
    if not entry.versions:
        return True
    return SpecifierSet(entry.versions).contains(Version(version), prereleases=True)


def constraints(names: Iterable[str], allow: Sequence[Allowed]) -> tuple[str, ...]:
    """Return the versions that the entries leave, as requirements that ask for nothing.

    A constraint cannot say that any of several entries will do, nor what a pattern names;
    `check_resolved` does that.
    """
    exact = [entry.name for entry in allow if "*" not in entry.name]
    found = []
    for name in sorted({*names, *exact}):
        entries = entries_for(name, allow)
        if len(entries) == 1 and entries[0].versions:
            found.append(f"{name}{entries[0].versions}")
    return tuple(found)


def nothing_allowed(names: Sequence[str], place: str) -> PackageRefusedError:
    message = f"No packages can be asked for here, so not {_some(names)} either."
    remedy = (
        f"The person who runs the bridge can allow them in {place}: [dependencies] with "
        f"allow = [{_quoted(names)}]."
    )
    return PackageRefusedError(message, remedy=remedy)


def _refused(names: tuple[str, ...], allow: Sequence[Allowed], place: str) -> PackageRefusedError:
    known = [entry.name for entry in allow]
    near = dict.fromkeys(match for name in names for match in get_close_matches(name, known, n=2))
    are, what = ("is", "it") if len(names) == 1 else ("are", "them")
    message = f"{_some(names)} {are} not allowed here."
    message += f" Near: {_some([*near])}." if near else ""
    message += f" Allowed: {_some([entry.text for entry in allow])}."
    remedy = f"To allow {what}, add {_quoted(names)} to `allow` of [dependencies] in {place}."
    return PackageRefusedError(message, remedy=remedy)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names[:8])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
