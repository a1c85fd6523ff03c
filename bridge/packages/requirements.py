"""Requirements in a call, and script metadata in a program's text (PEP 723). Pure."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from bridge.errors import InvalidRequestError, PackageRefusedError
from bridge.model.runs import SCRIPT_OPENING
from bridge.settings.dependencies import Allowed

MAX_REQUIREMENTS = 100  # A program may request any number; each is looked up on the index.
MAX_REQUIREMENT_CHARS = 500  # A program may request any text.

_KEYS = frozenset(("dependencies", "requires-python", "tool"))  # Top-level keys of the metadata.

_BLOCK = re.compile(r"(?m)^# /// script[ \t\r]*\n((?:^#(?: .*)?\r?\n)+)^# ///[ \t\r]*$")


class Wanted(NamedTuple):
    text: str
    name: str


class Script(NamedTuple):
    dependencies: tuple[str, ...] = ()
    requires_python: str = ""


def parse_requirements(texts: Iterable[str]) -> tuple[Wanted, ...]:
    texts = tuple(texts)
    if len(texts) > MAX_REQUIREMENTS:
        message = f"{len(texts)} packages are requested; a run may have {MAX_REQUIREMENTS}."
        raise InvalidRequestError(message)
    return tuple(sorted(set(map(_parse_requirement, texts))))


def _parse_requirement(text: str) -> Wanted:
    try:
        if len(text) > MAX_REQUIREMENT_CHARS:
            raise InvalidRequirement("it is too long")
        requirement = Requirement(text)
    except InvalidRequirement:
        raise InvalidRequestError(
            f'{text!r:.100} is no requirement; request packages such as "polars", "polars==1.*" or '
            '"uvicorn[standard]>=0.30,<1".'
        ) from None
    if requirement.url is not None:
        message = f"{requirement.name} is requested by an address; only the index is used here."
        raise PackageRefusedError(message, remedy=f'Request "{requirement.name}" by its name.')
    requirement.name = canonicalize_name(requirement.name)
    return Wanted(str(requirement), requirement.name)


def is_met(text: str, versions: Mapping[str, str]) -> bool:
    requirement = Requirement(text)
    if requirement.marker is not None or requirement.extras:
        # Markers depend on the sandbox's Python, extras on more packages.
        return False
    version = versions.get(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def script_metadata(code: str) -> Script:
    """Return the script metadata of a program; an error names the line."""
    lines = enumerate(code.splitlines(), 1)
    starts = [number for number, line in lines if line.rstrip() == SCRIPT_OPENING]
    if not starts:
        return Script()
    first = starts[0]
    if len(starts) > 1:
        raise _metadata_error(starts[1], "there is a second `# /// script` block")
    block = _BLOCK.search(code)
    if block is None:
        raise _metadata_error(first, "its lines begin with `# `, and a line `# ///` ends it")
    try:
        document = tomllib.loads(re.sub("(?m)^# ?", "", block[1]))
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column \d+\)", str(error))
        why = re.sub(r"\s*\(at .*\)$", "", str(error))
        number = int(at[1]) if at else block[1].count("\n")
        raise _metadata_error(first + number, f"it is not TOML: {why}") from None
    except (ValueError, RecursionError):
        raise _metadata_error(first, "a number in it is too long, or a value too deep") from None
    # Comparing thousands of keys would take seconds.
    for key in [key for key in document if key not in _KEYS and len(key) <= 40][:20]:
        if near := get_close_matches(key.lower().replace("_", "-"), _KEYS, 1, 0.8):
            raise _metadata_error(first, f"{key!r:.80} means nothing; write `{near[0]}`")
    wanted, python = document.get("dependencies", []), document.get("requires-python", "")
    if not isinstance(wanted, list) or not all(isinstance(item, str) for item in wanted):
        raise _metadata_error(first, "`dependencies` must be a list of texts")
    try:
        if not isinstance(python, str) or len(python) > MAX_REQUIREMENT_CHARS:
            raise InvalidSpecifier
        SpecifierSet(python)
    except InvalidSpecifier:
        why = f"`requires-python` is {python!r:.100}, which is no version specifier"
        raise _metadata_error(first, why) from None
    return Script(tuple(wanted), python)


def _metadata_error(line: int, why: str) -> InvalidRequestError:
    message = f"Line {line}: the script metadata is malformed: {why}."
    remedy = 'It looks like this: `# /// script`, `# dependencies = ["polars==1.*"]`, `# ///`.'
    return InvalidRequestError(message, remedy=remedy)


def check_python(requires: str, version: str) -> None:
    if not requires or SpecifierSet(requires).contains(version, prereleases=True):
        return
    message = f"The program requires Python {requires}; the sandbox has {version}."
    remedy = "Write it for that version, or set MCP_BRIDGE_IMAGE to an image with another one."
    raise PackageRefusedError(message, remedy=remedy)


def entries_for(name: str, allow: Iterable[Allowed]) -> tuple[Allowed, ...]:
    # Names have none of the other special characters of such patterns.
    return tuple(entry for entry in allow if fnmatch.fnmatchcase(name, entry.name))


def check_wanted(wanted: Iterable[Wanted], allow: Sequence[Allowed]) -> None:
    """Check that the requested packages are allowed.

    Programs may see the error, so it does not name the settings file's path.
    """
    names = list(dict.fromkeys(one.name for one in wanted if not entries_for(one.name, allow)))
    if not names:
        return
    quoted = json.dumps(names[:8])[1:-1]
    if not allow:
        message = f"No packages are allowed here, so {_some(names)} cannot be used."
        remedy = (
            "The person who runs the bridge can allow them in config.toml: [dependencies] with "
        )
        raise PackageRefusedError(message, remedy=f"{remedy}allow = [{quoted}].")
    allowed = [entry.name for entry in allow]
    near = dict.fromkeys(match for name in names for match in get_close_matches(name, allowed, n=2))
    are, what = ("is", "it") if len(names) == 1 else ("are", "them")
    message = f"{_some(names)} {are} not allowed here."
    message += f" Near: {_some([*near])}." if near else ""
    message += f" Allowed: {_some([entry.text for entry in allow])}."
    remedy = f"To allow {what}, add {quoted} to `allow` of [dependencies] in config.toml."
    raise PackageRefusedError(message, remedy=remedy)


def check_resolved(versions: Mapping[str, str], allow: Sequence[Allowed]) -> None:
    """Check the versions of resolved packages. Dependencies of allowed packages are allowed."""
    for name, version in versions.items():
        entries = entries_for(name, allow)
        allowed = (SpecifierSet(entry.versions or "").contains(version, True) for entry in entries)
        if entries and not any(allowed):
            texts = ", ".join(entry.text for entry in entries[:8])
            message = f"{name} {version} is not allowed here, only {texts}."
            raise PackageRefusedError(message, remedy=f"Request a version within {texts}.")


def constraints(names: Iterable[str], allow: Sequence[Allowed]) -> tuple[str, ...]:
    exact = [entry.name for entry in allow if "*" not in entry.name]
    limits = []
    for name in sorted({*names, *exact}):
        entries = entries_for(name, allow)
        if len(entries) == 1 and entries[0].versions:
            limits.append(f"{name}{entries[0].versions}")
    return tuple(limits)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
