"""`doctor`'s part on packages and directories: what is configured, and whether it works."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import anyio

from bridge.errors import BridgeError
from bridge.model import Directory
from bridge.settings import Settings, packages_dir

INDEX_SECONDS = 10.0
"""For an index to tell of one package that is allowed."""

UVS_OWN = "what uv is configured to use"

MAX_SHOWN = 8
"""Packages that are named."""


@dataclass(frozen=True, kw_only=True)
class PackageCheck:
    """Whether programs can have packages.

    Attributes:
        allow: What is allowed; empty where nothing is.
        index: Where they come from, without a password.
        cache: Where they are kept.
        problem: Why they cannot be had; empty if nothing speaks against it.
    """

    allow: tuple[str, ...] = ()
    index: str = ""
    cache: str = ""
    problem: str = ""


async def check_packages(settings: Settings) -> PackageCheck:
    """Look at what packages need, asking the index whether it is there."""
    dependencies = settings.dependencies
    if not dependencies.allow:
        return PackageCheck()
    shown = dependencies.index.rpartition("@")[2] if "@" in dependencies.index else ""
    scheme = urlsplit(dependencies.index).scheme
    problem = "" if settings.packages_allowed else f"the profile {settings.profile} allows none"
    return PackageCheck(
        allow=tuple(entry.text for entry in dependencies.allow),
        index=f"{scheme}://{shown}" if shown else dependencies.index or UVS_OWN,
        cache=str(packages_dir(settings)),
        problem=problem or await _problem(settings),
    )


async def _problem(settings: Settings) -> str:
    """Have uv look for one package that is allowed, as it would for a program."""
    # Only here: few configurations have packages.
    from bridge.wheels.uv import Uv

    async def silent(_: str) -> None:
        return

    names = [entry.text for entry in settings.dependencies.allow if "*" not in entry.name]
    with TemporaryDirectory(prefix="mcp-code-bridge-") as place:
        try:
            uv = Uv(settings.dependencies, settings.environ, Path(place), None, silent)
            with anyio.fail_after(INDEX_SECONDS):
                await uv.resolve(names[:1], (), alone=True)
        except TimeoutError:
            return f"nothing was found within {INDEX_SECONDS:g} s"
        except BridgeError as error:
            return error.message
    return ""


def describe_packages(check: PackageCheck) -> str:
    """Return what there is to say of packages."""
    if not check.allow:
        return "packages: none are allowed; [dependencies] of config.toml allows some\n"
    names = ", ".join(check.allow[:MAX_SHOWN])
    more = len(check.allow) - MAX_SHOWN
    names += f" and {more} more" if more > 0 else ""
    verdict = f"FAIL: {check.problem}" if check.problem else "ok"
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
