"""Turns requirements into a directory of packages, by a recorded resolution or by uv.

uv builds nothing and has no PATH, so a package cannot start a program. With `index` set it reads
no configuration, variable or login of the user; else it reads uv's settings of indexes, without
keyrings. It works in "/", which has no project's configuration.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any
from weakref import WeakValueDictionary

import anyio.abc
import anyio.to_thread

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.event_loop import background_task
from bridge.guest.protocol import distributions
from bridge.packages.requirements import Wanted, check_resolved, check_wanted, constraints
from bridge.packages.sets import Lock, Locked, StoredSet, make_room, too_large, within
from bridge.packages.target import Installed, PackageTarget
from bridge.private_files import in_use
from bridge.sandbox.container.command_runner import open_group
from bridge.settings.dependencies import Dependencies
from bridge.store import Store

logger = logging.getLogger(__name__)

MAX_PACKAGES = 500  # An index may name any number of dependencies.
MAX_SAID = 64 * 1024  # Bytes kept from the end of uv's output, which may quote an index.

READ_BYTES = 64 * 1024 * 1024  # An index may send any amount of metadata.

Say = Callable[[str], Awaitable[None]]  # Reports progress to the user.
Find = Callable[["Uv"], Awaitable[tuple[Locked, ...]]]

# Variables of the bridge that uv always gets: network settings.
_NETWORK = (
    *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
    *("all_proxy", "http_proxy", "https_proxy", "no_proxy"),
    *("LANG", "SSL_CERT_DIR", "SSL_CERT_FILE"),
)

# Variables that uv also gets if the user's uv configuration names the index.
_USERS = re.compile(
    "HOME|NETRC|XDG_CONFIG_(HOME|DIRS)|XDG_DATA_HOME|SSL_CLIENT_CERT|"
    "UV_(CONFIG_FILE|CREDENTIALS_DIR|DEFAULT_INDEX|EXCLUDE_NEWER|EXTRA_INDEX_URL|FIND_LINKS|"
    "HTTP_RETRIES|HTTP_TIMEOUT|INDEX|INDEX_STRATEGY|INDEX_URL|INSECURE_HOST|NATIVE_TLS|OFFLINE|"
    "SYSTEM_CERTS|INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD))"
)

# Starts uv so that it does not outlive the bridge.
_START = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Uv:
    """Runs uv for one set of packages.

    Args:
        environ: The bridge's environment.
        place: A private directory, which the caller removes.
        target: The Python that packages are for; None for the bridge's.
        cache: The directory of cached answers of indexes; None for no cache.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        environ: Mapping[str, str],
        place: Path,
        target: PackageTarget | None,
        say: Say,
        executable: str = "",
        cache: Path | None = None,
    ) -> None:
        self._dependencies = dependencies
        self._environ = surroundings(environ, dependencies, place)
        self._place = place
        self._say = say
        try:
            from uv import find_uv_bin

            own = find_uv_bin()
        except (ImportError, OSError):
            own = shutil.which("uv", path=environ.get("PATH", "")) or ""
        self._executable = executable or own
        if not self._executable:
            message = "Packages need uv, which is not installed with the bridge."
            remedy = 'Install it with `pip install "mcp-code-bridge[packages]"`.'
            raise PackageUnavailableError(message, remedy=remedy)
        self._cache = cache or place / "cache"
        self._options = _options(dependencies, target)

    async def resolve(
        self,
        texts: Sequence[str],
        limits: Sequence[str],
        *,
        alone: bool = False,
        explain: bool = True,
    ) -> tuple[Locked, ...]:
        """Resolve requirements within constraints; `alone` leaves out dependencies."""
        wanted, bounds = self._place / "wanted.txt", self._place / "bounds.txt"
        answer = self._place / "pylock.toml"
        wanted.write_text("\n".join([*texts, ""]))
        bounds.write_text("\n".join([*limits, ""]))
        # uv would reuse versions and hashes of an earlier answer.
        answer.unlink(missing_ok=True)
        words = [
            *("compile", *self._options, "--generate-hashes", "--no-header", "--quiet"),
            *(["--constraints", str(bounds)] if limits else []),
            *("--output-file", str(answer), *(["--no-deps"] if alone else []), str(wanted)),
        ]
        async with self._watch_size(self._cache):
            if not await anyio.to_thread.run_sync(within, self._cache, READ_BYTES):
                # The cache only grows. uv waits for other bridges that use it.
                await self._run(["cache", "clean", "--quiet"], self._cache)
            status, said = await self._run(["pip", *words], self._cache)
            if status != 0 and _UNREACHED.search(said):
                # The cached answers of the index may be enough.
                status = (await self._run(["pip", *words, "--offline"], self._cache))[0]
        if status != 0:
            raise await self._not_found(texts, limits, said, explain=explain and not alone)
        try:
            text = answer.read_text("utf-8", "replace")
        except OSError as error:
            raise PackageUnavailableError(f"uv left no answer: {error.strerror}.") from None
        return parse_answer(text)

    async def install(self, packages: Iterable[Locked], into: Path) -> None:
        """Unpack wheels with the recorded hashes, each into `into/<sha256>`."""
        several = anyio.CapacityLimiter(4)
        # A private cache, so that the size of a wheel is bounded.
        cache = self._place / "cache"
        problems = []

        async def unpack(package: Locked) -> None:
            listed = self._place / f"{package.sha256}.txt"
            listed.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
            words = [
                *("pip", "install", *self._options, "--require-hashes", "--no-deps"),
                *("--link-mode", "hardlink", "--target", str(into / package.sha256)),
                *("--requirements", str(listed)),
            ]
            async with several:
                status, said = await self._run(words, cache)
            if status != 0:
                problems.append(_words(said, self._place))

        async with self._watch_size(self._place), anyio.create_task_group() as tasks:
            for package in packages:
                tasks.start_soon(unpack, package)
        if problems:
            message = f"A package could not be installed. uv says: {problems[0]}"
            raise PackageUnavailableError(message, remedy=_TRY_AGAIN)

    @asynccontextmanager
    async def _watch_size(self, place: Path) -> AsyncIterator[None]:
        # Installed files are in the cache too.
        most = 2 * self._dependencies.max_bytes + 2 * READ_BYTES
        small = True

        async def watch() -> None:
            nonlocal small
            while small:
                await anyio.sleep(0.25)
                small = await anyio.to_thread.run_sync(within, place, most)
            scope.cancel()

        with anyio.CancelScope() as scope:
            async with background_task(watch):
                yield
        if not small:
            raise too_large(self._dependencies.max_bytes)

    async def _run(self, words: Sequence[str], cache: Path) -> tuple[int, str]:
        argv = [sys.executable, "-I", "-S", "-c", _START, str(os.getpid())]
        try:
            argv += [self._executable, *words, "--cache-dir", str(cache)]
            process = await open_group(argv, PIPE, STDOUT, self._environ, Path("/"))
        except OSError as error:
            raise PackageUnavailableError(f"uv cannot be started: {error.strerror}.") from None
        said = line = ""
        try:
            assert process.stdout is not None  # it is a pipe
            async for data in process.stdout:
                text = data.decode("utf-8", "replace")
                said = (said + text)[-MAX_SAID:]
                whole, _, line = f"{line[-MAX_SAID:]}{text}".rpartition("\n")
                for name, size in _DOWNLOADING.findall(whole):
                    await self._say(f"fetching {name} ({size})")
            await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
                await process.aclose()
        return process.returncode or 0, said

    async def _not_found(
        self, texts: Sequence[str], limits: Sequence[str], said: str, *, explain: bool
    ) -> PackageUnavailableError:
        words = _words(said, self._place)
        parts = [f"{', '.join(texts)[:200]} cannot be resolved. uv says: {words}"]
        if _UNREACHED.search(said):
            trust = "certificate" in said
            return PackageUnavailableError(parts[0], remedy=_TRUST if trust else _TRY_AGAIN)
        allowed = [text for text in limits if re.search(rf"\b{_name(text)}\b", words)]
        if allowed:
            parts.append(f"Versions are limited here to {', '.join(allowed)[:200]}.")
        names = sorted({_name(text) for text in texts})
        meant = [
            f'for {name} request "{to}"' for name in names if (to := distributions.meant(name))
        ]
        meant += [f"leave {name} out: Python has it" for name in names if name in _STANDARD]
        if meant:
            remedy = "; ".join(meant)
            remedy = f"{remedy[0].upper()}{remedy[1:]}."
            return PackageUnavailableError(" ".join(parts), remedy=remedy)
        if explain and [*texts] != names:
            with suppress(PackageUnavailableError, PackageRefusedError):
                newest = await self.resolve(names, limits, alone=True)
                there = ", ".join(f"{package.name} {package.version}" for package in newest)
                parts.append(f"The newest that fit this sandbox: {there[:400]}.")
        remedy = "Request versions that exist and fit together, or leave the versions open."
        return PackageUnavailableError(" ".join(parts), remedy=remedy)


_STANDARD = sys.stdlib_module_names
_UNREACHED = re.compile("Failed to fetch|error sending request|Request failed")
_TRY_AGAIN = (
    "Try again; if it still fails, the bridge's user can see with `mcp-code-bridge doctor` whether "
    "the index answers."
)
_TRUST = (
    "The bridge's user sets SSL_CERT_FILE in the bridge's entry in the client; `mcp-code-bridge "
    "install` copies it from a terminal that has it."
)
_DOWNLOADING = re.compile(r"Downloading (\S{1,200}) \(([\d.]{1,9}[kMG]?i?B)\)")


def _options(dependencies: Dependencies, target: PackageTarget | None) -> list[str]:
    words = [
        *("--no-build", "--keyring-provider", "disabled", "--no-python-downloads"),
        *("--color", "never", "--python", sys.executable),
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
    """Return uv's environment; it has the index's address, which may hold a password."""
    passed = {name: environ[name] for name in _NETWORK if environ.get(name)}
    if not dependencies.index:
        passed |= {name: value for name, value in environ.items() if _USERS.fullmatch(name)}
    else:
        passed |= {"HOME": str(place), "XDG_CONFIG_HOME": str(place), "NETRC": "/dev/null"}
        passed["XDG_DATA_HOME"] = str(place)
        if dependencies.directory is None:
            passed["UV_DEFAULT_INDEX"] = dependencies.index
    return {
        "UV_HTTP_RETRIES": "1",
        **passed,
        "PATH": "/nonexistent",
        "TMPDIR": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def parse_answer(text: str) -> tuple[Locked, ...]:
    try:
        packages = tomllib.loads(text).get("packages", [])
        if len(packages) > MAX_PACKAGES:
            message = f"The request needs more than {MAX_PACKAGES} packages."
            raise PackageUnavailableError(message, remedy="Request fewer packages.")
        return tuple(map(_parse_package, packages))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        message = f"uv's answer is malformed: {error!r:.200}."
        raise PackageUnavailableError(message, remedy="Update uv.") from None


def _parse_package(package: Mapping[str, Any]) -> Locked:
    if "wheels" not in package:
        message = f"{package['name']:.100} would come from an address."
        remedy = (
            "Only the index is used here: request another version of the package that needs it."
        )
        raise PackageRefusedError(message, remedy=remedy)
    wheels = package["wheels"]
    # Prefer a wheel that is compiled for this machine.
    wheel = next((one for one in wheels if not one["url"].endswith("-any.whl")), wheels[0])
    sha256 = wheel["hashes"]["sha256"]
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(sha256)
    size = int(wheel.get("size", 0))
    return Locked(name=package["name"], version=package["version"], sha256=sha256, size=size)


def _name(text: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]


_NO_NEWS = ("Using ", "Resolved ", "Downloading ", "warning:")

# The scheme is bounded: a long word would take seconds.
_ADDRESS = re.compile(r"[A-Za-z+]{1,20}://[^\s`]+")
_PATH = re.compile(r"(?<![\w.])/[^\s:'\"`]+")


def _words(text: str, place: Path) -> str:
    """Return uv's output for an error, without paths and addresses, which may hold a login."""
    text = _ADDRESS.sub("the index", text.replace(str(place), ""))
    lines = (line.strip() for line in text.splitlines())
    news = (line for line in lines if not line.startswith(_NO_NEWS))
    whole = " ".join(re.sub(r"^(error|cause): ", "", line) for line in news if line)
    whole = _PATH.sub("...", whole.replace(" (i.e., with `--no-build`)", ""))
    return whole if len(whole) <= 900 else f"{whole[:899]}…"


@dataclass
class Resolver:
    """Finds and installs sets of packages; concurrent runs resolve a set once."""

    dependencies: Dependencies
    directory: Path
    store: Store
    environ: Mapping[str, str]  # The bridge's own, for the network and uv.
    executable: str = ""  # Replaces the uv of this machine.
    _finding: WeakValueDictionary[str, anyio.Lock] = field(default_factory=WeakValueDictionary)

    async def provide(
        self,
        wanted: Sequence[Wanted],
        target: PackageTarget,
        say: Say,
        *,
        installed: Sequence[Installed] = (),
        pins: Sequence[str] = (),
    ) -> tuple[Path | None, Lock]:
        """Return a directory of the requested packages, and its lock; None for no packages."""
        check_wanted(wanted, self.dependencies.allow)
        texts = [one.text for one in wanted]
        index = self.dependencies.index.rpartition("@")[2]
        around = [*pins, *(f"{one.name}=={one.version}" for one in installed)]
        stored = StoredSet(self.directory, self.store, [*texts, target.digest, index, *around])

        async def find(uv: Uv) -> tuple[Locked, ...]:
            await say(f"resolving {', '.join(texts)}"[:200])
            limits = constraints([one.name for one in wanted], self.dependencies.allow)
            return await _find(uv, wanted, {one.name: one for one in installed}, [*limits, *pins])

        try:
            with anyio.fail_after(self.dependencies.timeout):
                async with self._finding.setdefault(stored.name, anyio.Lock()):
                    lock = await self._provide(stored, find, target, say)
        except TimeoutError:
            seconds = self.dependencies.timeout
            message = f"{', '.join(texts):.200} could not be installed within {seconds:g} s."
            remedy = "Try again, or raise `timeout` of [dependencies]."
            raise PackageUnavailableError(message, remedy=remedy) from None
        return stored.tree(lock) if lock.packages else None, lock

    def _stale(self, lock: Lock) -> bool:
        days = self.dependencies.lock_days
        return bool(days) and time.time() - lock.made > days * 24 * 3600.0

    async def _provide(
        self, stored: StoredSet, find: Find, target: PackageTarget, say: Say
    ) -> Lock:
        old = await anyio.to_thread.run_sync(stored.read)
        try:
            if old is not None:  # `allow` may have changed since.
                check_resolved(old.versions, self.dependencies.allow)
        except PackageRefusedError:
            old = None
        there = old is not None and (not old.packages or stored.touch(old))
        if old is not None and there and not self._stale(old):
            return old
        place = await anyio.to_thread.run_sync(stored.begin)
        try:
            cache = self.directory / "uv"
            uv = Uv(self.dependencies, self.environ, place, target, say, self.executable, cache)
            lock = old
            if lock is None or self._stale(lock):
                lock = Lock(packages=await find(uv), made=time.time())
                check_resolved(lock.versions, self.dependencies.allow)
            if not there:  # If the set is too large, later runs do not resolve it again.
                await anyio.to_thread.run_sync(stored.remember, lock)
            await self._install(stored, lock, uv, say, place)
            await anyio.to_thread.run_sync(stored.remember, lock)
        except PackageUnavailableError as error:
            if old is None or not there:
                raise
            logger.warning("the earlier packages are used again: %s", error.message)
            return old
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(partial(shutil.rmtree, place, ignore_errors=True))
        room = partial(make_room, self.directory, self.dependencies.cache_bytes)
        await anyio.to_thread.run_sync(room)
        return lock

    async def _install(self, stored: StoredSet, lock: Lock, uv: Uv, say: Say, place: Path) -> None:
        most = self.dependencies.max_bytes
        sizes = {f"{each.name} {each.version}": each.size for each in lock.packages}
        try:
            if sum(sizes.values()) > most:
                raise too_large(most, sizes)
            with ExitStack() as stack:
                # No other bridge may evict the new wheels before they are in a set.
                wheels = in_use(self.directory / "wheels", wait=True)
                await anyio.to_thread.run_sync(stack.enter_context, wheels)
                missing = [each for each in lock.packages if not stored.wheel(each).exists()]
                into = place / "installed"
                if missing:
                    await say(f"installing {', '.join(each.name for each in missing)}"[:200])
                    await uv.install(missing, into)
                for each in missing:
                    made = into / each.sha256
                    await anyio.to_thread.run_sync(stored.keep_wheel, each, made, most)
                if lock.packages and not stored.touch(lock):
                    await anyio.to_thread.run_sync(stored.keep, lock, place, most)
        except PackageRefusedError as error:
            if "max_bytes" in error.message and "largest" not in error.message:
                # The unpacking was stopped, so the error has no sizes.
                raise too_large(most, sizes) from None
            raise


async def _find(
    uv: Uv, wanted: Sequence[Wanted], installed: Mapping[str, Installed], limits: Sequence[str]
) -> tuple[Locked, ...]:
    """Return the packages to add to the installed ones."""
    texts = [one.text for one in wanted]
    if installed:
        fixed = [f"{one.name}=={one.version}" for one in installed.values()]
        # If this fails, some installed packages must be replaced.
        with suppress(PackageUnavailableError):
            return _select(await uv.resolve(texts, [*limits, *fixed], explain=False), installed)
    resolved = await uv.resolve(texts, limits)
    more: set[str] = set()
    while new := _broken_by(resolved, installed) - {each.name for each in resolved} - more:
        more |= new
        try:
            resolved = await uv.resolve([*texts, *sorted(more)], limits, explain=False)
        except PackageUnavailableError as error:
            logger.warning("%s cannot be replaced: %s", ", ".join(more), error.message)
            break
    return _select(resolved, installed)


def _select(resolved: Sequence[Locked], installed: Mapping[str, Installed]) -> tuple[Locked, ...]:
    broken = _broken_by(resolved, installed)
    return tuple(one for one in resolved if one.name in broken or not _has(one, installed))


def _has(package: Locked, installed: Mapping[str, Installed]) -> bool:
    return package.name in installed and installed[package.name].version == package.version


def _broken_by(resolved: Sequence[Locked], installed: Mapping[str, Installed]) -> set[str]:
    """Return the installed packages that depend, transitively, on a replaced one."""
    replaced = {each.name for each in resolved if not _has(each, installed)} & installed.keys()
    broken: set[str] = set()
    while more := {
        one.name
        for one in installed.values()
        if one.name not in broken and {*one.requires} & (replaced | broken)
    }:
        broken |= more
    return broken
