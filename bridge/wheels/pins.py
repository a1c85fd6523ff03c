"""One package as it was found, and what a set of them still lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bridge.wheels.requirements import Wanted

MAX_PINS = 500
"""Packages of one run, what they need included."""


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One wheel.

    Attributes:
        name: As names are compared.
        url: Where it is; a password that the index has is not in it.
        file: The wheel's file name.
        sha256: As the index or the resolver told; empty for neither.
        requires: What its metadata says that it needs; None where that was not told, and was
            heeded by whoever found it.
    """

    name: str
    version: str
    url: str
    file: str
    sha256: str = ""
    requires: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Closure:
    """What a set of packages comes to, from what was asked for.

    Attributes:
        needed: Names that are really needed, with what needs each; empty for what was asked for.
        missing: Requirements that nothing in the set fulfils, with what has them.
    """

    needed: Mapping[str, str]
    missing: Mapping[str, str]


def applying(wanted: Iterable[Wanted], environment: Mapping[str, str]) -> tuple[Requirement, ...]:
    """Return the requirements whose markers hold, without those."""
    found = []
    for one in wanted:
        marker = one.requirement.marker
        if marker is None or marker.evaluate({**environment, "extra": ""}):
            found.append(_unmarked(one.requirement))
    return tuple(found)


def closure(
    wanted: Sequence[Requirement], pins: Mapping[str, Pin], environment: Mapping[str, str]
) -> Closure:
    """Return what is needed and what is missing, by the packages' own metadata.

    pip judges markers by the Python that it runs in, which is not the one that the packages are
    for: so it may bring too much, or leave something out.
    """
    needed: dict[str, str] = {}
    missing: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in wanted]
    while waiting:
        requirement, parent = waiting.pop()
        name = canonicalize_name(requirement.name)
        pin = pins.get(name)
        if pin is None or not requirement.specifier.contains(pin.version, prereleases=True):
            missing.setdefault(str(requirement), parent)
            continue
        needed.setdefault(name, parent)
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in pin.requires or ():
                further = _further(text, environment, extra)
                if further is not None:
                    waiting.append((further, name))
    return Closure(needed=needed, missing=missing)


def _further(text: str, environment: Mapping[str, str], extra: str) -> Requirement | None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        # Of a release from before there were rules; resolvers leave such lines out, too.
        return None
    marker = requirement.marker
    if marker is None:
        return requirement if not extra else None
    if not marker.evaluate({**environment, "extra": extra}):
        return None
    return _unmarked(requirement)


def _unmarked(requirement: Requirement) -> Requirement:
    copy = Requirement(str(requirement))
    copy.marker = None
    return copy
