"""uv, which finds and installs packages: its command line, its process, its answers and errors.

It builds nothing, and it has no PATH, so that nothing of a package can start a program. Where
`index` is set it reads no configuration, variable or login of the user's. Where it is not, it
reads uv's own configuration for where packages come from, but asks no keyring program. It works in
"/", where no project's configuration can be in its way.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.packages.sets import Locked, too_large, within
from bridge.packages.target import Target
from bridge.settings.dependencies import Dependencies
from bridge.tasks import background_task

MAX_PACKAGES = 500  # Of one run, what they need included.
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # Of the file that uv writes its choice to.
MAX_SAID = 64 * 1024  # Kept of what it writes to its output, from the end.
MAX_WORDS = 900  # Characters of what it said, in an error.

READ_BYTES = 64 * 1024 * 1024
"""Bytes that uv may write beyond twice `max_bytes`: metadata that it read to choose versions."""

WATCH_SECONDS = 0.25  # Between two looks at how much it has written.
Say = Callable[[str], Awaitable[None]]  # Reports progress to the user.

_NETWORK = (
    *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
    *("all_proxy", "http_proxy", "https_proxy", "no_proxy"),
    *("LANG", "SSL_CERT_DIR", "SSL_CERT_FILE"),
)
"""Passed on of the bridge's environment: how the network is reached."""

_USERS = re.compile(
    "HOME|NETRC|XDG_CONFIG_(HOME|DIRS)|XDG_DATA_HOME|SSL_CLIENT_CERT|"
    "UV_(CONFIG_FILE|CREDENTIALS_DIR|DEFAULT_INDEX|EXCLUDE_NEWER|EXTRA_INDEX_URL|FIND_LINKS|"
    "HTTP_RETRIES|HTTP_TIMEOUT|INDEX|INDEX_STRATEGY|INDEX_URL|INSECURE_HOST|NATIVE_TLS|OFFLINE|"
    "SYSTEM_CERTS|INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD))"
)
"""Passed on as well where uv's own configuration says where packages come from."""

_START = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Ahead of uv, which must not outlive the bridge."""


def find_uv(environ: Mapping[str, str]) -> str:
    """Return the path of uv: the extra's, or one on the PATH; empty if there is none."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, OSError):
        return shutil.which("uv", path=environ.get("PATH", "")) or ""


class Uv:
    """Runs uv for one set of packages.

    Args:
        environ: The bridge's environment.
        place: A directory of its own, for its cache too; the caller removes it.
        target: The Python that packages are for; None for the bridge's own.
        say: Told what is downloaded.
        executable: Stands in for the uv of this machine.

    Raises:
        PackageUnavailableError: There is no uv.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        environ: Mapping[str, str],
        place: Path,
        target: Target | None,
        say: Say,
        executable: str = "",
    ) -> None:
        self._dependencies = dependencies
        self._environ = surroundings(environ, dependencies, place)
        self._place = place
        self._say = say
        self._executable = executable or find_uv(environ)
        if not self._executable:
            message = "Packages need uv, which is not installed with the bridge."
            remedy = 'Install it with `pip install "mcp-code-bridge[packages]"`.'
            raise PackageUnavailableError(message, remedy=remedy)
        self._options = _options(dependencies, place, target)

    async def resolve(
        self, texts: Sequence[str], limits: Sequence[str], *, alone: bool = False
    ) -> tuple[Locked, ...]:
        """Return the packages that requirements come to, with the hashes of their files.

        Args:
            limits: Requirements that ask for nothing and bound versions.
            alone: Whether to leave out what they need in turn, and maybe hashes.

        Raises:
            PackageRefusedError: Something would come from elsewhere than the index.
            PackageUnavailableError: Nothing fits; the error says what there is.
        """
        wanted, bounds = self._place / "wanted.txt", self._place / "bounds.txt"
        answer = self._place / "answer.txt"
        wanted.write_text("\n".join([*texts, ""]))
        bounds.write_text("\n".join([*limits, ""]))
        # uv would take over versions and hashes from what is there.
        answer.unlink(missing_ok=True)
        words = [
            *("compile", *self._options, "--generate-hashes", "--no-header"),
            *("--annotation-style", "line", "--constraints", str(bounds)),
            *("--output-file", str(answer), *(["--no-deps"] if alone else []), str(wanted)),
        ]
        status, said = await self._run(words)
        if status != 0:
            raise await self._not_found(texts, limits, said, alone=alone)
        try:
            with answer.open("rb") as file:
                text = file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise PackageUnavailableError(f"uv left no answer: {error.strerror}.") from None
        return parse_answer(text)

    async def install(self, packages: Iterable[Locked], into: Path) -> None:
        """Install packages with the recorded hashes, and nothing else, into a directory.

        Raises:
            PackageUnavailableError: They are not on the index, or not what was recorded.
        """
        listed = self._place / "locked.txt"
        listed.write_text("".join(map(_line, packages)))
        words = [
            *("install", *self._options, "--require-hashes", "--no-deps"),
            *("--link-mode", "hardlink", "--target", str(into), "--requirements", str(listed)),
        ]
        status, said = await self._run(words)
        if status != 0:
            message = f"What was chosen cannot be installed. uv says: {_words(said, self._place)}"
            raise PackageUnavailableError(message, remedy=_TRY_AGAIN)

    async def _run(self, words: Sequence[str]) -> tuple[int, str]:
        """Run uv to its end; return its status and the end of what it wrote.

        Cancelled, it and all that it started are killed first.

        Raises:
            PackageRefusedError: It writes more than it may.
            PackageUnavailableError: It cannot be started.
        """
        # What is installed is in the cache as well.
        most = 2 * self._dependencies.max_bytes + READ_BYTES
        small = True

        async def watch() -> None:
            nonlocal small
            while small:
                await anyio.sleep(WATCH_SECONDS)
                small = await anyio.to_thread.run_sync(within, self._place, most)
            scope.cancel()

        argv = [sys.executable, "-I", "-S", "-c", _START, str(os.getpid())]
        try:
            # A start that is cut short leaves a process that must be reaped.
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    [*argv, self._executable, "pip", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=self._environ,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            raise PackageUnavailableError(f"uv cannot be started: {error.strerror}.") from None
        said = ""
        with anyio.CancelScope() as scope:
            try:
                async with background_task(watch):
                    assert process.stdout is not None  # it was asked for
                    line = ""
                    async for data in process.stdout:
                        text = data.decode("utf-8", "replace")
                        said = (said + text)[-MAX_SAID:]
                        whole, _, line = f"{line[-MAX_SAID:]}{text}".rpartition("\n")
                        for name, size in _DOWNLOADING.findall(whole):
                            await self._say(f"fetching {name} ({size})")
                    await process.wait()
            finally:
                await _end(process)
        if not small:
            raise too_large()
        return process.returncode or 0, said

    async def _not_found(
        self, texts: Sequence[str], limits: Sequence[str], said: str, *, alone: bool
    ) -> PackageUnavailableError:
        """Return the error on what uv did not find, with what there is instead."""
        words = _words(said, self._place)
        parts = [f"{', '.join(texts)[:200]} cannot be had. uv says: {words}"]
        if re.search(r"Failed to fetch|error sending request|Request failed", said):
            return PackageUnavailableError(parts[0], remedy=_TRY_AGAIN)
        allowed = [text for text in limits if re.search(rf"\b{_name(text)}\b", words)]
        if allowed:
            parts.append(f"Not more is allowed here than {', '.join(allowed)[:200]}.")
        names = sorted({_name(text) for text in texts})
        if not alone and [*texts] != names:
            with suppress(PackageUnavailableError, PackageRefusedError):
                found = await self.resolve(names, limits, alone=True)
                there = ", ".join(f"{package.name} {package.version}" for package in found)
                parts.append(f"The newest that fit this sandbox: {there[:400]}.")
        remedy = "Ask for versions that are there and go together, or leave them open."
        return PackageUnavailableError(" ".join(parts), remedy=remedy)


_TRY_AGAIN = (
    "Try again; if it stays so, `mcp-code-bridge doctor` tells the person who runs the bridge "
    "whether the index answers."
)
_DOWNLOADING = re.compile(r"Downloading (\S{1,200}) \(([\d.]{1,9}[kMG]?i?B)\)")


def _options(dependencies: Dependencies, place: Path, target: Target | None) -> list[str]:
    words = [
        *("--no-build", "--keyring-provider", "disabled", "--no-python-downloads"),
        *("--color", "never", "--cache-dir", str(place / "cache"), "--python", sys.executable),
    ]
    if target is not None:
        words += ["--python-version", target.version, "--python-platform", target.uv_platform]
    if dependencies.index:
        words.append("--no-config")
    if dependencies.directory is not None:
        words += ["--no-index", "--find-links", str(dependencies.directory)]
    return words


def surroundings(
    environ: Mapping[str, str], dependencies: Dependencies, place: Path
) -> dict[str, str]:
    """Return uv's environment; the index's address is in it, since it may hold a password."""
    found = {name: environ[name] for name in _NETWORK if environ.get(name)}
    if not dependencies.index:
        found |= {name: value for name, value in environ.items() if _USERS.fullmatch(name)}
    else:
        found |= {"HOME": str(place), "XDG_CONFIG_HOME": str(place), "NETRC": "/dev/null"}
        found["XDG_DATA_HOME"] = str(place)
        if dependencies.directory is None:
            found["UV_DEFAULT_INDEX"] = dependencies.index
    return {
        "UV_HTTP_RETRIES": "1",
        **found,
        "PATH": "/nonexistent",
        "TMPDIR": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


_PACKAGE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.!+_-]+)(?: ;.*)?"
    r"(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})*)(?: +# via (?P<via>.*))?"
)


def parse_answer(text: str) -> tuple[Locked, ...]:
    """Return the packages that uv chose, from the requirements file that it wrote.

    Raises:
        PackageRefusedError: One is wanted from elsewhere than the index.
        PackageUnavailableError: It is not understood, or there are too many.
    """
    found = []
    # A package has several lines: its version, its hashes, and what needs it.
    for line in re.sub(r"\s*\\?\n\s+", " ", text).splitlines():
        package = _PACKAGE.fullmatch(line)
        if package is not None:
            parents = (package["via"] or "-").split(", ")
            parent = "" if any(each.startswith("-") for each in parents) else parents[0]
            hashes = tuple(re.findall("sha256:([0-9a-f]+)", package["hashes"]))
            name, version = package["name"], package["version"]
            found.append(Locked(name=name, version=version, hashes=hashes, parent=parent))
        elif " @ " in line:
            message = f"{line.partition(' @ ')[0]:.100} would come from an address."
            remedy = "Only the index is used here: ask for another version of what needs it."
            raise PackageRefusedError(message, remedy=remedy)
        elif line and not line.startswith("--"):
            message = f"uv answered something that is not understood: {line!r:.200}."
            raise PackageUnavailableError(message, remedy="Update uv.")
    if len(found) > MAX_PACKAGES:
        message = f"What was asked for needs more than {MAX_PACKAGES} packages."
        raise PackageUnavailableError(message, remedy="Ask for less.")
    return tuple(found)


def _line(package: Locked) -> str:
    hashes = "".join(f" --hash=sha256:{digest}" for digest in package.hashes)
    return f"{package.name}=={package.version}{hashes}\n"


def _name(text: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]


# Of what comes before it, no more than any scheme has: else a long word would take seconds.
_ADDRESS = re.compile(r"[A-Za-z+]{1,20}://[^\s`]+")
_PATH = re.compile(r"(?<![\w.])/[^\s:'\"`]+")


def _words(text: str, place: Path) -> str:
    """Return what uv said for an error: without addresses, which may hold a login, and paths."""
    text = _ADDRESS.sub("the index", text.replace(str(place), ""))
    lines = (line.strip() for line in text.splitlines())
    told = (line for line in lines if not line.startswith(("Using ", "Resolved ", "Downloading ")))
    whole = " ".join(re.sub(r"^(error|cause): ", "", line) for line in told if line)
    whole = _PATH.sub("...", whole.replace(" (i.e., with `--no-build`)", ""))
    return whole if len(whole) <= MAX_WORDS else f"{whole[: MAX_WORDS - 1]}…"


async def _end(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with anyio.CancelScope(shield=True):
        await process.wait()
        await process.aclose()
