"""What a program asks for: requirements in the call, and script metadata in its text. Pure.

The metadata is that of PEP 723: a comment block `# /// script` of TOML with `dependencies` and
`requires-python`.

`packaging` costs some 15 ms to import. This module is imported only when packages are asked
for, and not before.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from bridge.errors import InvalidRequestError, PackageRefusedError

MAX_REQUIREMENTS = 100  # Of one run; each is looked up on the index.

MAX_REQUIREMENT_CHARS = 500

_KEYS = frozenset(("dependencies", "requires-python", "tool"))  # What the metadata has at its top.

_MAX_KEYS, _MAX_KEY_CHARS = 20, 40
"""Others that are looked at: to compare each of thousands takes seconds."""

_OPENING = "# /// script"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One requirement.

    Attributes:
        text: Normalised; equal for equal requirements.
        name: As names are compared.
        requirement: Parsed.
    """

    text: str
    name: str
    requirement: Requirement


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a program's text says of what it needs.

    Attributes:
        requires_python: Specifiers; empty for any version.
        line: Where the block begins.
    """

    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    line: int = 0


def parse_requirements(texts: Iterable[str]) -> tuple[Wanted, ...]:
    """Return the requirements, each once, in the order of their names.

    Raises:
        InvalidRequestError: One is no requirement.
        PackageRefusedError: One is not asked for by name.
    """
    texts = tuple(texts)
    if len(texts) > MAX_REQUIREMENTS:
        message = f"{len(texts)} packages are asked for; a run may have {MAX_REQUIREMENTS}."
        raise InvalidRequestError(message)
    found = {wanted.text: wanted for wanted in map(_wanted, texts)}
    return tuple(found[text] for text in sorted(found))


def _wanted(text: str) -> Wanted:
    try:
        if len(text) > MAX_REQUIREMENT_CHARS:
            raise InvalidRequirement("it is too long")
        requirement = Requirement(text)
    except InvalidRequirement:
        raise InvalidRequestError(
            f'{text!r:.100} is no requirement; ask for packages such as "polars", "polars==1.*" or '
            '"uvicorn[standard]>=0.30,<1".'
        ) from None
    if requirement.url is not None:
        message = f"{requirement.name} is asked for by an address; only the index is used here."
        raise PackageRefusedError(message, remedy=f'Ask for "{requirement.name}" by its name.')
    requirement.name = canonicalize_name(requirement.name)
    return Wanted(text=str(requirement), name=requirement.name, requirement=requirement)


def is_met(text: str, versions: Mapping[str, str]) -> bool:
    """Return whether packages of some versions meet a normalised requirement."""
    requirement = Requirement(text)
    if requirement.marker is not None or requirement.extras:
        # They depend on the sandbox's Python, or on more packages.
        return False
    version = versions.get(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def script_metadata(code: str) -> Script:
    """Return what a program's text says of what it needs.

    Raises:
        InvalidRequestError: Its metadata is malformed; the text says in which line.
    """
    lines = code.splitlines()
    starts = [number for number, line in enumerate(lines) if line.rstrip() == _OPENING]
    if not starts:
        return Script()
    if len(starts) > 1:
        raise _malformed(starts[1] + 1, "there is a second `# /// script` block")
    first = starts[0]
    end = _end(lines, first)
    text = "\n".join(line[2:] for line in lines[first + 1 : end])
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column \d+\)", str(error))
        number = first + 1 + int(at[1]) if at else end
        why = re.sub(r"\s*\(at .*\)$", "", str(error))
        raise _malformed(number, f"it is not TOML: {why}") from None
    except (ValueError, RecursionError):
        raise _malformed(first + 1, "a number in it is too long, or a value too deep") from None
    others = [key for key in document if key not in _KEYS and len(key) <= _MAX_KEY_CHARS]
    for key in others[:_MAX_KEYS]:
        meant = difflib.get_close_matches(key.lower().replace("_", "-"), _KEYS, 1, 0.8)
        if meant:
            place = _line_of(key, lines, first, end)
            raise _malformed(place, f"{key!r:.80} means nothing; write `{meant[0]}`")
    return Script(
        dependencies=_dependencies(document.get("dependencies", []), lines, first, end),
        requires_python=_python(document.get("requires-python", ""), lines, first, end),
        line=first + 1,
    )


def _end(lines: Sequence[str], first: int) -> int:
    """Return the index of the line that ends a block: the last that may, of the comment."""
    closing = 0
    for number in range(first + 1, len(lines)):
        line = lines[number]
        if line.rstrip() == "# ///":
            closing = number
        if line != "#" and not line.startswith("# "):
            if not closing and line.startswith("#"):
                raise _malformed(number + 1, "a line of it does not begin with `# `")
            break
    if not closing:
        raise _malformed(first + 1, "there is no `# ///` to end it")
    return closing


def _dependencies(value: object, lines: Sequence[str], first: int, end: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _malformed(
            _line_of("dependencies", lines, first, end), "`dependencies` must be a list of texts"
        )
    for item in value:
        try:
            if len(item) > MAX_REQUIREMENT_CHARS:
                raise InvalidRequirement("it is too long")
            Requirement(item)
        except InvalidRequirement:
            # Its own line, where it has one.
            place = _line_of(item, lines, first, end)
            raise _malformed(place, f"{item!r:.100} is no requirement") from None
    return tuple(value)


def _python(value: object, lines: Sequence[str], first: int, end: int) -> str:
    place = _line_of("requires-python", lines, first, end)
    if not isinstance(value, str):
        raise _malformed(place, "`requires-python` must be a text")
    try:
        if len(value) > MAX_REQUIREMENT_CHARS:
            raise InvalidSpecifier("it is too long")
        SpecifierSet(value)
    except InvalidSpecifier:
        raise _malformed(place, f"{value!r:.100} says nothing of versions") from None
    return value


def _line_of(text: str, lines: Sequence[str], first: int, end: int) -> int:
    for number in range(first + 1, end):
        if text in lines[number]:
            return number + 1
    return first + 1


def _malformed(line: int, why: str) -> InvalidRequestError:
    message = f"Line {line}: the script metadata is malformed: {why}."
    remedy = 'It looks like this: `# /// script`, `# dependencies = ["polars==1.*"]`, `# ///`.'
    return InvalidRequestError(message, remedy=remedy)


def refused_python(requires: str, version: str) -> PackageRefusedError | None:
    """Return the refusal of a program that wants another Python than the sandbox's, if it does."""
    if not requires or SpecifierSet(requires).contains(version, prereleases=True):
        return None
    message = f"The program requires Python {requires}; the sandbox has {version}."
    remedy = "Write it for that one, or set MCP_BRIDGE_IMAGE to an image with another."
    return PackageRefusedError(message, remedy=remedy)
