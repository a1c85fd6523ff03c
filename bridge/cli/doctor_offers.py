"""`doctor`'s part on packages and directories: what is configured, and whether it works."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from bridge.model import Directory
from bridge.settings import Settings

INDEX_SECONDS = 5.0
"""For an index to answer; it is asked for nothing in particular."""

MAX_SHOWN = 8
"""Packages that are named."""


@dataclass(frozen=True, kw_only=True)
class PackageCheck:
    """Whether programs can have packages.

    Attributes:
        allow: What is allowed; empty where nothing is.
        index: Where they come from, without a password.
        resolver: "uv" or "pip"; empty for neither.
        problem: Why they cannot be had; empty if nothing speaks against it.
    """

    allow: tuple[str, ...] = ()
    index: str = ""
    resolver: str = ""
    cache: str = ""
    problem: str = ""


async def check_packages(settings: Settings) -> PackageCheck:
    """Look at what packages need, asking the index whether it is there."""
    dependencies = settings.dependencies
    if not dependencies.allow:
        return PackageCheck()
    # Only here: `packaging` costs milliseconds, and few configurations have packages.
    from bridge.wheels.resolving import find_tool

    tool = find_tool(settings.environ)
    shown = dependencies.index.rpartition("@")[2] if "@" in dependencies.index else ""
    scheme = urlsplit(dependencies.index).scheme
    problem = await _problem(settings)
    if not problem and tool is None:
        problem = "there is neither uv nor pip to look for them with: install uv"
    if not problem and not settings.packages_allowed:
        problem = f"the profile {settings.profile} allows none"
    return PackageCheck(
        allow=tuple(entry.text for entry in dependencies.allow),
        index=f"{scheme}://{shown}" if shown else dependencies.index,
        resolver=tool.name if tool is not None else "",
        cache=str(dependencies.cache or settings.state_dir / "packages"),
        problem=problem,
    )


async def _problem(settings: Settings) -> str:
    dependencies = settings.dependencies
    directory = dependencies.directory
    if directory is not None:
        if not os.access(directory, os.R_OK | os.X_OK) or not directory.is_dir():
            return f"{directory} is no directory that can be read"
        return "" if any(directory.glob("*.whl")) else f"there is no wheel in {directory}"
    from bridge.wheels.fetching import client

    try:
        async with client(dependencies) as http:
            answer = await http.head(f"{dependencies.index.rstrip('/')}/", timeout=INDEX_SECONDS)
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"the index does not answer: {type(error).__name__}"
    # Many have no page of all packages.
    refused = answer.status_code in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN)
    return f"the index refuses us: {answer.status_code}" if refused else ""


def describe_packages(check: PackageCheck) -> str:
    """Return what there is to say of packages."""
    if not check.allow:
        return "packages: none are allowed; [dependencies] of config.toml allows some\n"
    names = ", ".join(check.allow[:MAX_SHOWN])
    more = len(check.allow) - MAX_SHOWN
    names += f" and {more} more" if more > 0 else ""
    verdict = f"FAIL: {check.problem}" if check.problem else f"ok: found with {check.resolver}"
    about = f"      index: {check.index}\n      kept in: {check.cache}\n"
    return f"packages: {verdict}\n      allowed: {names}\n{about}"


def describe_directories(settings: Settings, *, root: bool) -> str:
    """Return which of the host's directories programs find; empty for none.

    Args:
        root: Whether the bridge is root, whose programs are nobody.
    """
    offered = {one.name for one in settings.offered_directories}
    lines = []
    for one in settings.directories:
        mode = "read and write" if one.writable else "read-only"
        note = "" if one.name in offered else f"; not with the profile {settings.profile}"
        lines.append(f"directory: {one.name}: {one.path} at {one.inside}, {mode}{note}\n")
        if root and not note and _closed(one):
            done, mend = ("write to", "chown 65534") if one.writable else ("read", "chmod o+rx")
            lines.append(
                f"      FAIL: the bridge is root and its programs are nobody (65534), who may not "
                f"{done} it: run `{mend} {shlex.quote(one.path)}`, or the bridge as an ordinary "
                "user\n"
            )
    return "".join(lines)


def _closed(one: Directory) -> bool:
    """Tell whether nobody may not use a directory as it is meant to be used."""
    try:
        found = Path(one.path).stat()
    except OSError:
        return True
    if one.writable and found.st_uid != 0:
        # In containers programs are its owner.
        return False
    wanted = 0o7 if one.writable else 0o5
    return found.st_mode & wanted != wanted


def offers_document(settings: Settings, packages: PackageCheck) -> Mapping[str, Any]:
    """Return the same for scripts."""
    return {
        "packages": asdict(packages),
        "directories": [asdict(one) for one in settings.directories],
    }
