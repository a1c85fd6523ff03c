"""What an index has of one package: asking it, and saying why nothing of that fits.

Owns the index's pages, in both of their forms, and the words on what is missing. What is chosen is
a resolver's business; nothing here decides what programs get, except where a digest is demanded.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import anyio.to_thread
import httpx2
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from bridge.settings.dependencies import Allowed, Dependencies
from bridge.wheels.target import Target, tags

MAX_PAGE_BYTES = 16 * 1024 * 1024
"""Of what an index says of one package; the largest have a few."""

MAX_FILES = 100_000
"""On a page. Those with nightly builds have some ten thousand."""

MAX_NAME = 255
"""Characters of a file's name."""

MAX_TAGS = 1000
"""Kinds of systems that one wheel's name is for: a part of it may name many, and each goes with
each of the others. Real names have some ten."""

_SHOWN = 5
"""Versions, or kinds of wheels, that are named."""

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.2"

# Up to the next "<" at most, so that a page which is none costs no more than its length; and
# without ways back, each of which takes memory.
_LINK = re.compile(r"<a\s((?:[^<>\"']++|\"[^<\"]*+\"|'[^<']*+')*+)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([a-z-]{1,40})\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class File:
    """One file on an index's page.

    Attributes:
        sha256: As the index gives it; empty for none.
        python: Which Pythons it says it is for; empty for any.
    """

    name: str
    sha256: str = ""
    python: str = ""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What an index has of a package.

    Attributes:
        files: Wheels and sources; none where it does not have the package.
        problem: Why the index does not tell; empty if it does.
    """

    files: tuple[File, ...] = ()
    problem: str = ""


async def offer(name: str, dependencies: Dependencies, http: httpx2.AsyncClient) -> Offer:
    """Return what the index has of a package."""
    directory = dependencies.directory
    if directory is not None:
        files, problem = await anyio.to_thread.run_sync(_listed, directory)
        return Offer(files=_of(name, files), problem=problem)
    url = urljoin(f"{dependencies.index.rstrip('/')}/", f"{name}/")
    page = bytearray()
    try:
        async with http.stream("GET", url, headers={"accept": _ACCEPT}) as response:
            asked = [passed.url.scheme for passed in (*response.history, response)]
            if dependencies.index.startswith("https:") and set(asked) != {"https"}:
                # Digests come from there.
                return Offer(problem="it sends elsewhere, and not over TLS")
            status = response.status_code
            if status == httpx2.codes.NOT_FOUND:
                return Offer()
            if status != httpx2.codes.OK:
                return Offer(problem=_refused(status))
            async for data in response.aiter_raw():
                page += data
                if len(page) > MAX_PAGE_BYTES:
                    return Offer(problem=f"its page of {name} is too long")
            kind = response.headers.get("content-type", "")
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Offer(problem=f"it cannot be reached ({type(error).__name__})")
    # Milliseconds for most, a second for the longest.
    text = bytes(page).decode("utf-8", "replace")
    files = await anyio.to_thread.run_sync(files_of, text, kind)
    return Offer(files=_of(name, files))


def _refused(status: int) -> str:
    login = status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN)
    hint = ": `index` of [dependencies] may hold a login" if login else ""
    return f"it answered {status}{hint}"


def _listed(directory: Path) -> tuple[list[File], str]:
    try:
        return [File(name=path.name) for path in sorted(directory.iterdir())], ""
    except OSError as error:
        return [], f"its directory cannot be read ({error.strerror})"


def files_of(page: str, kind: str) -> list[File]:
    """Return the files on an index's page."""
    if "json" not in kind:
        return [_linked(found[1]) for found in _some(_LINK.finditer(page))]
    try:
        document = json.loads(page)
    except (ValueError, RecursionError):
        return []
    files = document.get("files") if isinstance(document, dict) else None
    found = []
    for item in files[:MAX_FILES] if isinstance(files, list) else ():
        if isinstance(item, dict) and isinstance(item.get("filename"), str):
            hashes = item.get("hashes")
            digest = hashes.get("sha256", "") if isinstance(hashes, dict) else ""
            python = str(item.get("requires-python") or "")
            found.append(File(name=item["filename"], sha256=str(digest).lower(), python=python))
    return found


def _some(links: Iterable[re.Match[str]]) -> Iterable[re.Match[str]]:
    for number, link in enumerate(links):
        if number == MAX_FILES:
            return
        yield link


def _linked(attributes: str) -> File:
    given = {
        name.lower(): html.unescape(double or single)
        for name, double, single in _ATTRIBUTE.findall(attributes)
    }
    try:
        parts = urlsplit(given.get("href", ""))
    except ValueError:
        return File(name="")
    digest = re.search(r"sha256=([0-9a-fA-F]{64})", parts.fragment)
    return File(
        name=unquote(parts.path).rpartition("/")[2],
        sha256=digest[1].lower() if digest else "",
        python=given.get("data-requires-python", ""),
    )


def _of(name: str, files: Iterable[File]) -> tuple[File, ...]:
    return tuple(file for file in files if _named(file.name, name) is not None)


def _named(file: str, name: str) -> Version | None:
    """Return the version of a package that a file is of; None if it is not of it."""
    kinds = math.prod(part.count(".") + 1 for part in file.rsplit("-", 3)[1:])
    if len(file) > MAX_NAME or (file.endswith(".whl") and kinds > MAX_TAGS):
        return None
    try:
        if file.endswith(".whl"):
            found, version, _, _ = parse_wheel_filename(file)
        else:
            found, version = parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return version if found == name else None


def lacking(
    requirement: Requirement, found: Offer, target: Target, entries: Sequence[Allowed]
) -> tuple[str, str]:
    """Return why a requirement cannot be met and what can be done; empty texts if it seems it can.

    Args:
        requirement: With its name normalised.
        entries: What is allowed of it.
    """
    name = requirement.name
    if found.problem:
        return f"The index does not tell what it has of {name}: {found.problem}.", _CONNECT
    if not found.files:
        return f"The index has no {name}.", "See whether its name is spelt as the index has it."
    versions = {file: _named(file.name, name) or Version("0") for file in found.files}
    wanted = [file for file in found.files if _meets(versions[file], requirement.specifier)]
    taken = frozenset(tags(target))
    fitting = [file for file in found.files if _fits(file, target, taken)]
    there = _newest(versions[file] for file in fitting)
    instead = f"Ask for a {name} that this sandbox can have, such as {there}." if there else _OTHER
    if not wanted:
        newest = _newest(versions.values())
        return f"The index has no {name} {requirement.specifier}; the newest are {newest}.", instead
    both = [file for file in wanted if file in fitting]
    if not both:
        return _unfitting(requirement, wanted, target), instead
    allowed = [SpecifierSet(entry.versions) for entry in entries]
    if allowed and not any(_meets(versions[file], of) for file in both for of in allowed):
        texts = ", ".join(entry.text for entry in entries[:_SHOWN])
        return f"{requirement} is not allowed here; of it there is {texts}.", f"Ask for {texts}."
    return "", ""


_CONNECT = (
    "Try again; if it stays so, `mcp-code-bridge doctor` tells the person who runs the bridge "
    "whether the index answers."
)
_OTHER = "Do without it: nothing of it can be had for this sandbox."


def _meets(version: Version, specifier: SpecifierSet) -> bool:
    return specifier.contains(version, prereleases=True)


def _fits(file: File, target: Target, taken: frozenset[Tag]) -> bool:
    if not file.name.endswith(".whl") or not _is_for(file, target):
        return False
    return not _tags_of(file).isdisjoint(taken)


def _is_for(file: File, target: Target) -> bool:
    try:
        return SpecifierSet(file.python).contains(target.version, prereleases=True)
    except ValueError:
        # It is no specifier, or one with a number longer than Python reads.
        return True


def _tags_of(file: File) -> frozenset[Tag]:
    return parse_wheel_filename(file.name)[3]


def _unfitting(requirement: Requirement, wanted: Sequence[File], target: Target) -> str:
    wheels = [file for file in wanted if file.name.endswith(".whl")]
    if not wheels:
        return (
            f"{requirement} is on the index as source only ({wanted[-1].name:.100}), and nothing "
            "is built here: only wheels are used."
        )
    pythons = {file.python for file in wheels if not _is_for(file, target)}
    if len(pythons) == 1 and not any(_is_for(file, target) for file in wheels):
        only = pythons.pop()
        return f"{requirement} is for Python {only:.100}; the sandbox has {target.version}."
    kinds = [tag for file in wheels for tag in _tags_of(file)]
    pythons = {tag.interpreter for tag in kinds}
    systems = {tag.platform.partition("_")[0] for tag in kinds}
    some = f"{_listing(pythons)} on {_listing(systems)}"
    return f"{requirement} has no wheel for {target}; there are some for {some}."


def _listing(names: Iterable[str]) -> str:
    order = sorted(names)
    more = f" and {len(order) - _SHOWN} more" if len(order) > _SHOWN else ""
    return f"{', '.join(order[:_SHOWN])}{more}"


def _newest(versions: Iterable[Version]) -> str:
    order = sorted(set(versions), reverse=True)
    released = [version for version in order if not version.is_prerelease]
    return ", ".join(map(str, (released or order)[:_SHOWN]))
