"""The packages that programs may import besides the standard library, where no image has them.

Owns reading a virtual environment: where its packages are and which Python it was made for.
Nothing of it is executed, and only its directory of packages is shown to programs.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import SettingsError

VARIABLE = "MCP_BRIDGE_PACKAGES"

MAX_CONFIG_BYTES = 64 * 1024
"""Of an environment's pyvenv.cfg, which has a few lines."""

_MAKER = "python3 -m venv"


@dataclass(frozen=True, kw_only=True)
class Packages:
    """A directory to import from.

    Attributes:
        named: As it was named: an environment, or the directory itself.
        directory: The directory itself, links resolved.
        version: Which Python it was made for; None when nothing says.
    """

    named: str
    directory: str
    version: tuple[int, int] | None

    def fits(self, version: Sequence[int]) -> bool:
        """Whether that Python can import from it: compiled packages are made for one version."""
        return self.version is None or tuple(version[:2]) == self.version


def read_packages(place: Path, *, as_stranger: bool, setting: str = VARIABLE) -> Packages:
    """Find the packages of a virtual environment, or take a directory as it is.

    Args:
        as_stranger: Whether they must be readable by users that own nothing.
        setting: Where the place is set, for errors.

    Raises:
        SettingsError: They cannot be offered; it says what to do.
    """
    version = None
    directory = place
    if (place / "pyvenv.cfg").is_file():
        version = _made_for(place, setting)
        directory = place / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"
    real = Path(os.path.realpath(directory))
    if not real.is_dir():
        message = f"{setting}: the packages in {place} cannot be offered: there is no {directory}."
        raise SettingsError(message, remedy=f"Make an environment with `{_MAKER} {place}`.")
    if as_stranger and not open_to_all(real):
        message = f"{setting}: the packages in {place} cannot be offered: as the bridge runs as "
        message += "root, programs run as nobody, who may not read them."
        remedy = "Make the environment where every user may read, such as below /opt or /srv."
        raise SettingsError(message, remedy=remedy)
    return Packages(named=str(place), directory=str(real), version=version)


def check_environment(place: Path, setting: str = VARIABLE) -> None:
    """See that a setting names a virtual environment, before any backend is tried.

    Raises:
        SettingsError: It does not.
    """
    if not place.is_dir():
        message = f"{setting}: there is no directory {place}."
        raise SettingsError(message, remedy=f"Make an environment with `{_MAKER} {place}`.")
    if not (place / "pyvenv.cfg").is_file():
        message = f"{setting}: {place} is no virtual environment: it has no pyvenv.cfg."
        raise SettingsError(message, remedy=f"Make one with `{_MAKER} DIRECTORY` and name that.")
    read_packages(place, as_stranger=False, setting=setting)


def other_version(
    packages: Packages, executables: Sequence[str], problems: Sequence[str]
) -> SettingsError:
    """Return the refusal of an environment that no Python here can use."""
    made_for = ".".join(map(str, packages.version or ()))
    message = (
        f"{VARIABLE}: {packages.named} was made for Python {made_for}, and sandboxes have another: "
        f"{'; '.join(problems)}."
    )
    remedy = f"Make it anew with `{executables[0]} -m venv --clear {packages.named}`."
    return SettingsError(message, remedy=remedy)


def open_to_all(path: Path) -> bool:
    """Whether any user can reach and read `path`, by the modes on the way to it."""
    try:
        on_the_way = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
        return on_the_way and bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _made_for(environment: Path, setting: str) -> tuple[int, int]:
    """Return the version in pyvenv.cfg; venv and virtualenv name its line differently."""
    try:
        with (environment / "pyvenv.cfg").open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_CONFIG_BYTES)
    except OSError as error:
        message = f"{setting}: {environment}/pyvenv.cfg cannot be read: {error.strerror}."
        raise SettingsError(message) from error
    found = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
    if found is None:
        message = f"{setting}: {environment}/pyvenv.cfg does not say which Python it is for."
        raise SettingsError(message, remedy=f"Make it anew with `{_MAKER} --clear {environment}`.")
    return int(found[1]), int(found[2])
