"""The resolvers that are asked, uv and pip: their command lines and what they answer. Pure.

Neither reads a configuration, a variable or a login of the user's: the index is the one that the
bridge's own settings name. Its address stands in a file, since it may hold a password and command
lines are for everybody to see.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.settings.dependencies import Dependencies
from bridge.wheels.pins import MAX_PINS, Pin
from bridge.wheels.target import Target, environment, platforms, tags

REQUIREMENTS = "requirements.txt"
CONSTRAINTS = "constraints.txt"
ANSWER = "pylock.toml"
"""Files in the resolver's own directory; what it finds is written to the last."""

_NETWORK_SECONDS = 15

_UV_GLIBC = (40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 28, 17)
"""Minor versions that uv has platforms for."""

_PASSED_ON = (
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "NO_PROXY",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Of the bridge's environment: how the network is reached. Nothing of pip's, uv's or requests'."""

_PIP = """
import json, runpy, sys
around = json.loads(sys.argv.pop(1))
from pip._vendor.packaging import markers
markers.default_environment = lambda: dict(around)
starts = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
def refuse(event, args):
    if event in starts:
        raise PermissionError("nothing is built here: only wheels are used")
sys.addaudithook(refuse)
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip for another Python, and without other processes.

No option makes pip judge markers by the Python that packages are for; here they are judged by what
is said of that one. Should some pip not heed it, what it finds is looked through: `pins.closure`.

A wheel may say that it needs what is at some address, and that pip would build, whatever it is told
of wheels; build scripts and git run in processes of their own.
"""

_WORDS = 600
"""Characters of what a resolver said, in an error."""

Order = Callable[[Path, Dependencies, Target], list[str]]
Answer = Callable[[str, Target], tuple[Pin, ...]]
Step = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One resolver.

    Attributes:
        order: Makes its command line, given the directory that it works in.
        answer: Reads what it wrote.
        step: Makes a line of its output something to tell whoever waits; empty for nothing.
    """

    name: str
    order: Order
    answer: Answer
    step: Step


def uv(executable: str, python: str) -> Tool:
    """Return uv.

    Args:
        python: An interpreter, which it wants to see; what it finds is not for that one.
    """

    def order(place: Path, dependencies: Dependencies, target: Target) -> list[str]:
        # The file's address does not end up in its answer only with this header off.
        return [
            executable,
            *("pip", "compile", "--quiet", "--no-config", "--no-build", "--no-header"),
            *("--no-python-downloads", "--color", "never", "--no-progress"),
            *("--keyring-provider", "disabled"),
            *("--python", python, "--python-version", target.version),
            *("--python-platform", _uv_platform(target)),
            *("--cache-dir", str(place / "cache")),
            *("--format", "pylock.toml", "--output-file", str(place / ANSWER)),
            *("--constraints", str(place / CONSTRAINTS)),
            *_directory(dependencies),
            str(place / REQUIREMENTS),
        ]

    return Tool(name="uv", order=order, answer=_read_lock, step=lambda _: "")


def pip(python: str) -> Tool:
    """Return pip, as a module of that Python."""

    def order(place: Path, dependencies: Dependencies, target: Target) -> list[str]:
        words = [
            python,
            *("-I", "-u", "-c", _PIP, json.dumps(environment(target))),
            *("install", "--dry-run", "--progress-bar", "off", "--isolated", "--no-input"),
            *("--disable-pip-version-check", "--no-color", "--no-cache-dir", "--no-compile"),
            *("--keyring-provider", "disabled", "--retries", "2"),
            *("--timeout", str(_NETWORK_SECONDS)),
            *("--only-binary", ":all:", "--ignore-installed", "--report", str(place / ANSWER)),
            # What another Python shall have can only be resolved for a directory of its own.
            *("--target", str(place / "target")),
            *("--python-version", target.version),
        ]
        if target.abi:
            words += ["--implementation", "cp", "--abi", target.abi]
        words += [word for tag in platforms(target) for word in ("--platform", tag)]
        parts = urlsplit(dependencies.index)
        if parts.scheme == "http" and parts.hostname:
            # Whoever wrote http:// into the settings meant it.
            words += ["--trusted-host", parts.netloc.rpartition("@")[2]]
        words += _directory(dependencies)
        constraints, wishes = str(place / CONSTRAINTS), str(place / REQUIREMENTS)
        return [*words, "--constraint", constraints, "--requirement", wishes]

    return Tool(name="pip", order=order, answer=_read_report, step=_reading)


def _directory(dependencies: Dependencies) -> list[str]:
    directory = dependencies.directory
    return [] if directory is None else ["--no-index", "--find-links", str(directory)]


def _uv_platform(target: Target) -> str:
    if target.libc == "musl":
        return f"{target.machine}-unknown-linux-musl"
    found = re.fullmatch(r"glibc 2\.(\d+)", target.libc)
    minor = next((n for n in _UV_GLIBC if found and n <= int(found[1])), 17)
    return f"{target.machine}-manylinux_2_{minor}"


def wishes(requirements: Iterable[str], dependencies: Dependencies) -> str:
    """Return the file of requirements."""
    lines = [] if dependencies.directory else [f"--index-url {dependencies.index}"]
    return "\n".join([*lines, *requirements, ""])


def surroundings(environ: Mapping[str, str], place: Path) -> dict[str, str]:
    """Return a resolver's environment: nothing in it says where a login or a configuration is."""
    passed = {name: environ[name] for name in _PASSED_ON if environ.get(name)}
    trusted = passed.get("SSL_CERT_FILE") or passed.get("SSL_CERT_DIR")
    if trusted:
        # What pip before 24.2 looks at; uv, later ones and the bridge itself know the other two.
        passed["REQUESTS_CA_BUNDLE"] = trusted
    return {
        **passed,
        "HOME": str(place),
        "XDG_CONFIG_HOME": str(place),
        "XDG_DATA_HOME": str(place),
        "TMPDIR": str(place),
        "NETRC": "/dev/null",
        # Else the system's and the environment's own files would be read, "isolated" or not.
        "PIP_CONFIG_FILE": "/dev/null",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",
    }


def _read_report(text: str, target: Target) -> tuple[Pin, ...]:
    document = json.loads(text)
    pins = []
    for item in document["install"][: MAX_PINS + 1]:
        metadata, about = item["metadata"], item["download_info"]
        if item.get("is_direct"):
            raise by_address(str(metadata["name"]))
        hashes = (about.get("archive_info") or {}).get("hashes") or {}
        requires = metadata.get("requires_dist") or []
        pins.append(
            _pin(
                str(metadata["name"]),
                str(metadata["version"]),
                str(about["url"]),
                str(hashes.get("sha256", "")),
                tuple(map(str, requires)),
            )
        )
    return _bounded(pins)


def _read_lock(text: str, target: Target) -> tuple[Pin, ...]:
    document = tomllib.loads(text)
    order = {tag: place for place, tag in enumerate(tags(target))}
    pins = []
    for package in document.get("packages", [])[: MAX_PINS + 1]:
        if not _applies(package.get("marker", ""), target):
            continue
        name = str(package["name"])
        wheels = [(_place(wheel, order), wheel) for wheel in package.get("wheels", [])]
        fitting = [(place, wheel) for place, wheel in wheels if place is not None]
        if not fitting:
            message = f"{name} {package.get('version', '')} has no wheel for {target}."
            raise PackageUnavailableError(message)
        chosen = min(fitting, key=lambda pair: pair[0])[1]
        digest = str((chosen.get("hashes") or {}).get("sha256", ""))
        url = _wheel_url(chosen)
        pins.append(_pin(name, str(package["version"]), url, digest, None))
    return _bounded(pins)


def _wheel_url(wheel: Mapping[str, Any]) -> str:
    return str(wheel.get("url") or Path(str(wheel.get("path", ""))).as_uri())


def _applies(marker: object, target: Target) -> bool:
    try:
        return not marker or Marker(str(marker)).evaluate({**environment(target), "extra": ""})
    except InvalidMarker:
        return True


def _place(wheel: Mapping[str, Any], order: Mapping[Any, int]) -> int | None:
    """Return how good a wheel is, 0 for the best; None if it does not fit."""
    try:
        found = parse_wheel_filename(_file_of(_wheel_url(wheel)))[3]
    except (InvalidWheelFilename, ValueError):
        return None
    return min((order[tag] for tag in found if tag in order), default=None)


def _pin(name: str, version: str, url: str, sha256: str, requires: tuple[str, ...] | None) -> Pin:
    file = _file_of(url)
    if not file.endswith(".whl"):
        message = f"{name} {version} is no wheel, and nothing is built here: {file:.100}."
        raise PackageUnavailableError(message, remedy=f"Ask for a version of {name} with wheels.")
    try:
        stated = parse_wheel_filename(file)[0]
    except (InvalidWheelFilename, InvalidVersion):
        stated = None
    if stated != canonicalize_name(name):
        # What is allowed is a name: no wheel of another comes under it.
        message = f"What the index has as {name} {version} is not called so: {file:.100}."
        raise PackageUnavailableError(message, remedy="See whether the index was tampered with.")
    sha256 = sha256.lower() if re.fullmatch(r"[0-9a-fA-F]{64}", sha256) else ""
    return Pin(
        name=canonicalize_name(name),
        version=version,
        url=url.partition("#")[0],
        file=file,
        sha256=sha256,
        requires=requires,
    )


def _file_of(url: str) -> str:
    return PurePosixPath(unquote(urlsplit(url).path)).name


def by_address(name: str) -> PackageRefusedError:
    """Return the refusal of what a package wants to have from elsewhere than the index."""
    message = f"{name:.100} is wanted by another package from an address; only the index is used."
    return PackageRefusedError(message, remedy="Ask for another version of what needs it.")


def _bounded(pins: Sequence[Pin]) -> tuple[Pin, ...]:
    if len(pins) > MAX_PINS:
        message = f"What was asked for needs more than {MAX_PINS} packages."
        raise PackageUnavailableError(message, remedy="Ask for less.")
    return tuple(pins)


# Of what comes before it, no more than any scheme has: else a long word would take seconds.
_ADDRESS = re.compile(r"[A-Za-z+]{1,20}://\S+")
_READING = re.compile(r"\s*Downloading (\S{1,200}\.whl)\S* (\([\d.]{1,9} [kMG]?B\))")
_BROKEN = re.compile(r"connection broken by '(\w{1,50})")
_VERSIONS = re.compile(r" ?\(from versions: [^)]*\)")
_SOURCE = re.compile(r" ?\(from -r [^)]*\)|(?<=->)-r [^)]*")
_ADVICE = ("WARNING", "[notice]", "To fix this", "1. ", "2. ", "ERROR: ResolutionImpossible")
_NOT_FOUND = re.compile(r"No matching distribution found for ([^;\s][^;]{0,200}?)(?: \(from .*)?$")


def _reading(line: str) -> str:
    # What an index without metadata apart has to be asked for: a whole wheel.
    found = _READING.match(line)
    return f"resolving: reading {found[1].rpartition('/')[2]} {found[2]}" if found else ""


def said(text: str, dependencies: Dependencies, place: Path) -> str:
    """Return a resolver's words for an error: without the index's address, paths and colours."""
    for secret in (dependencies.index, dependencies.index.rstrip("/"), str(place)):
        text = text.replace(secret, "the index" if secret != str(place) else "")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    broken = _BROKEN.search(text)
    # Whatever form a resolver gives the address, nobody's password is in an error.
    text = _ADDRESS.sub("the index", text)
    lines = [_SOURCE.sub("", line).strip(" ×╰─▶│") for line in text.splitlines()]
    begins = next((n for n, line in enumerate(lines) if line.startswith("ERROR:")), 0)
    lines = [line for line in lines[begins:] if line and not line.startswith(_ADVICE)]
    whole = " ".join(_VERSIONS.sub("", line.removeprefix("ERROR:")).strip() for line in lines)
    whole = re.sub(r"(?<![\w.])/[^\s:'\"`]+", "...", whole)
    if broken is not None:
        whole = f"{whole} The connection to the index was broken: {broken[1]}."
    return whole if len(whole) <= _WORDS else whole[: _WORDS - 1] + "…"


def not_found(words: str) -> str:
    """Return the requirement that a resolver says nothing fits; empty if it names none."""
    found = _NOT_FOUND.search(words)
    return found[1] if found is not None else ""
