"""The base classes of this machine's backends, with and without namespaces.

Without namespaces a run writes to a private directory on the host's disk. A program can leave files
without permissions, links to anywhere and directories deeper than the longest path. So removal
follows no link and works by directory descriptor.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio.to_thread

from bridge.errors import LaunchError, SandboxError
from bridge.model import Isolation, Json, Limits
from bridge.sandbox.backend import TMP, WORKSPACE, Backend, LaunchSpec, Probe, Sandbox, reject_binds
from bridge.sandbox.bundle import INTERPRETER
from bridge.sandbox.ownership import Owner, current_owner, is_dead
from bridge.sandbox.probe import run_probe
from bridge.sandbox.process import cgroups, host
from bridge.sandbox.process.command import Descriptors, ProcessSurroundings
from bridge.sandbox.process.interpreter import (
    Interpreter,
    compiled_stage,
    find,
    loader_command,
    stage_payload,
)
from bridge.sandbox.process.sandbox import LaunchPlan, ProcessLaunch, run_sandbox

logger = logging.getLogger(__name__)

WEAKER_DISK = (
    "disk: best effort; each file a program writes is bounded, all of them together are not, and "
    "they lie on the host's disk until the run ends"
)

_UNASKED = ("LC_CTYPE", "PWD", "__CF_USER_TEXT_ENCODING")
"""Variables that Python, shells and macOS add to an environment."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Facts about this machine, which a backend finds once."""

    interpreter: Interpreter
    stage: bytes
    owner: Owner
    uid: int | None  # The programs' user outside; None for the bridge's own.
    around: ProcessSurroundings
    setpriv: str  # Path of the command that changes the user; empty if not needed or not installed.
    cgroup_parents: cgroups.CgroupParents
    base: Path  # The parent of run directories.
    confiner: str = ""  # Path of the outer program: bubblewrap, or macOS's sandbox-exec.
    filters: tuple[bytes, ...] = ()
    systemd_run: str = ""  # Path of the command that makes scopes; empty if scopes are not used.
    # Subordinate ids for programs; None if `uid` or the bridge's user is used.
    ids: host.SubordinateIds | None = None

    def become(self, uid: int | None, gid: int | None) -> list[str]:
        """Return the words that start a command as a user; None for the bridge's own."""
        return host.become(uid, gid, setpriv=self.setpriv, python=self.interpreter.executable)


T = TypeVar("T", bound=Hashable)


class Removals(Generic[T]):
    """Creates resources for sandboxes, removes them, and retries removals that failed.

    The argument `remove` blocks and returns whether a resource is gone. `made` and `aclose` retry.
    """

    def __init__(self, remove: Callable[[T], bool]) -> None:
        self._remove = remove
        self._left: set[T] = set()

    @asynccontextmanager
    async def made(self, make: Callable[[], T]) -> AsyncIterator[T]:
        await self.remove(*self._left)
        # A thread cannot be interrupted: a cancelled call still returns the resource.
        thing = await anyio.to_thread.run_sync(make)
        try:
            yield thing
        finally:
            await self.remove(thing)

    async def remove(self, *things: T) -> None:
        self._left.difference_update(things)
        with anyio.CancelScope(shield=True):
            for thing in things:
                if not await anyio.to_thread.run_sync(self._remove, thing):
                    self._left.add(thing)

    async def aclose(self) -> None:
        await self.remove(*self._left)


class ProcessBackend(Backend):
    """Runs sandboxes on this machine's kernel. It examines the machine at first use.

    Args:
        interpreter: The Python to run; None finds one.
        packages: A virtual environment, or a directory of packages, that programs may import.
    """

    title: str
    linux = True  # Whether the system has cgroups and pidfds.

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        interpreter: str | None = None,
        packages: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._environ = environ
        self._interpreter = interpreter
        self._packages = packages
        self._limits = limits or Limits()
        self._lock = anyio.Lock()
        self._found: Findings | None = None
        self._groups = Removals(cgroups.SandboxCgroups.remove)

    @abstractmethod
    def _look(self) -> Findings:
        """Examine this machine. Blocks."""

    @abstractmethod
    def _details(self, found: Findings) -> Mapping[str, str]:
        """Return further facts for `doctor`."""

    def _look_at_host(
        self,
        uid: int | None,
        *,
        landlock_abi: int = 0,
        masked: tuple[tuple[str, bool], ...] = (),
        processes_per_namespace: bool = False,
        **own: Any,
    ) -> Findings:
        """Return the findings of all backends, with a backend's `own`. Blocks."""
        as_nobody = uid is not None
        interpreter = find(packages=self._packages, only=self._interpreter, as_nobody=as_nobody)
        owner = current_owner()
        parents = cgroups.find_cgroup_parents(owner) if self.linux else ()
        controllers = cgroups.limited_by(parents)
        return Findings(
            interpreter=interpreter,
            stage=compiled_stage(interpreter),
            owner=owner,
            uid=uid,
            around=ProcessSurroundings(
                landlock_abi=landlock_abi,
                cpus=host.usable_cpus(),
                masked=masked,
                controllers=controllers,
                limits_elsewhere=cgroups.missing_controllers(controllers, root=as_nobody),
                processes_per_namespace=processes_per_namespace,
            ),
            setpriv=host.find_setpriv(self._environ) if as_nobody else "",
            cgroup_parents=parents,
            base=base_directory(self._environ.get("TMPDIR"), as_nobody=as_nobody),
            **own,
        )

    async def aclose(self) -> None:
        await self._groups.aclose()

    def _group(
        self, found: Findings, limits: Limits
    ) -> AbstractAsyncContextManager[cgroups.SandboxCgroups | None]:
        """Make a sandbox's cgroups if possible; leaving kills their processes and removes them."""
        if not found.cgroup_parents:
            return nullcontext()
        make = partial(cgroups.make_group, found.cgroup_parents, found.owner, limits)
        return self._groups.made(make)

    def _watched_memory(self, found: Findings, limits: Limits) -> int | None:
        """Return the memory limit that the bridge applies; None if a cgroup does, or on macOS."""
        watched = self.linux and "memory" not in found.around.controllers
        return limits.memory_bytes if watched else None

    async def probe(self) -> Probe:
        return await run_probe(self.name, self.launch, self._success, self._limits)

    async def reap(self) -> int:
        """Remove the leftovers of dead bridges, whose processes have ended."""
        found = await self._look_around()
        return await anyio.to_thread.run_sync(cgroups.reap, found.cgroup_parents, found.owner)

    async def _look_around(self) -> Findings:
        async with self._lock:
            if self._found is None:
                self._found = await anyio.to_thread.run_sync(self._look)
            return self._found

    def _success(self, sandbox: Sandbox) -> Probe:
        found = self._found
        assert found is not None  # a sandbox runs
        python = found.interpreter
        who = "as root, programs as user nobody" if found.uid is not None else "as an ordinary user"
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"{self.title} {who}, Python {python.version}",
            isolation=sandbox.isolation,
            details={
                "interpreter": f"{python.executable} ({python.version})",
                **self._details(found),
                "packages": ", ".join(python.packages) or "none",
            },
        )


@cache
def monitor_source() -> bytes:
    source = resources.files(__package__).joinpath("monitor.py")
    return stage_payload(source.read_text(encoding="utf-8"))


class UnnamespacedBackend(ProcessBackend):
    """Runs programs without namespaces, in a directory of their run on the host's disk."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._directories: Removals[RunDirectory] = Removals(lambda run: remove_directory(run.path))

    @abstractmethod
    def _steps(
        self, found: Findings, directory: RunDirectory, spec: LaunchSpec
    ) -> Mapping[str, Json]:
        """Return this backend's part of the stage's plan: limits, Landlock, filters."""

    @abstractmethod
    def _isolation(self, found: Findings, spec: LaunchSpec) -> Isolation:
        """Return the layers that a launch puts in force, and what is weaker."""

    def _confine(self, found: Findings, directory: RunDirectory, words: list[str]) -> list[str]:
        """Return the command line that runs a command confined from outside."""
        return words

    def _launch_error(self, said: str) -> SandboxError:
        said = said.strip()[:600] or "it wrote nothing"
        return LaunchError(f"{self.name} did not start the sandbox: {said}.")

    def _start(
        self,
        found: Findings,
        spec: LaunchSpec,
        directory: RunDirectory,
        group: cgroups.SandboxCgroups | None,
    ) -> LaunchPlan:
        python, mark = found.interpreter, directory.path.name
        # The run's own directories replace /workspace and /tmp.
        here = {WORKSPACE: str(directory.workspace), TMP: str(directory.tmp)}
        env = {name: here.get(value, value) for name, value in spec.env.items()}
        argv = list(spec.argv)
        if argv[0] == INTERPRETER[0]:
            argv[0] = python.executable
        plan: dict[str, Json] = {
            "argv": argv,
            "text": argv[4] if spec.argv[:4] == INTERPRETER and len(argv) == 5 else None,
            "packages": list(python.packages),
            "cwd": str(directory.workspace),
            "unset": [name for name in _UNASKED if name not in spec.env],
            "mounts": [],
            "landlock": None,
            "filters": [],
            **self._steps(found, directory, spec),
        }

        def prepare(descriptors: Descriptors) -> ProcessLaunch:
            # The last word marks the run's processes.
            words = loader_command(python, str(descriptors.stage), mark)
            given = json.dumps({**plan, "status": descriptors.status})
            instructions = {
                "info": descriptors.info,
                "status": descriptors.status,
                "env": env,
                "mark": mark,
                "adopts": self.linux,
            }
            return ProcessLaunch(
                inside=self._confine(found, directory, words),
                stage=stage_payload(found.stage, given),
                options=json.dumps(instructions).encode("ascii") + b"\n",
            )

        return LaunchPlan(
            command=[*found.become(found.uid, found.uid), *loader_command(python)],
            prepare=prepare,
            files=(monitor_source(),),
            group=group,
            isolation=self._isolation(found, spec),
            monitor_failed=self._launch_error,
            stage_failed=self._launch_error,
            own_monitor=True,
            use_pidfds=self.linux,
            memory_bytes=self._watched_memory(found, spec.limits),
        )

    async def aclose(self) -> None:
        await super().aclose()
        await self._directories.aclose()

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        reject_binds(self.name, spec.binds)
        found = await self._look_around()
        make = partial(make_run_directory, found.base, found.owner, found.uid)
        async with (
            # Removed last, when no process is left that could write there.
            self._directories.made(make) as directory,
            self._group(found, spec.limits) as group,
            run_sandbox(self._start(found, spec, directory, group)) as sandbox,
        ):
            yield sandbox

    async def reap(self) -> int:
        groups, found = await super().reap(), await self._look_around()
        directories = partial(reap_run_directories, found.base, found.owner)
        return max(groups, await anyio.to_thread.run_sync(directories))


FALLBACK = Path("/tmp")  # Where every user may make directories.


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """The directories that one run may write to."""

    path: Path

    @property
    def workspace(self) -> Path:
        return self.path / "workspace"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"


def base_directory(wanted: str | None, *, as_nobody: bool) -> Path:
    """Return the parent of run directories: `wanted` if the run's user can enter it, or /tmp."""
    place = Path(wanted) if wanted else FALLBACK
    # Not `Path.is_dir`, which raises if a parent may not be entered.
    usable = place.is_absolute() and os.path.isdir(place)  # noqa: PTH112
    if usable and as_nobody:
        usable = all(p.stat().st_mode & stat.S_IXOTH for p in (place, *place.parents))
    return Path(os.path.realpath(place if usable else FALLBACK))


def make_run_directory(base: Path, owner: Owner, uid: int | None) -> RunDirectory:
    """Make a directory that only the bridge and the run's user (None for this one) can read."""
    made = RunDirectory(path=base / cgroups.group_name(owner, secrets.token_hex(8)))
    try:
        made.path.mkdir(mode=0o700)
        for directory in (made.workspace, made.tmp):
            directory.mkdir(mode=0o700)
            if uid is not None:
                os.chown(directory, uid, uid)
        if uid is not None:
            # The run's user may enter it but not list it.
            made.path.chmod(0o711)
    except OSError as error:
        remove_directory(made.path)
        message = f"The run's directory cannot be made: {error}."
        raise LaunchError(message, remedy="Point TMPDIR to where there is room.") from error
    return made


def remove_directory(path: Path) -> bool:
    """Remove an unused directory with its contents; return whether it is gone."""
    try:
        top = _open_directory(str(path), None)
        try:
            while names := os.listdir(top):  # noqa: PTH208 - by descriptor
                for name in names:
                    _remove_entry(top, name)
        finally:
            os.close(top)
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.warning("the directory %s was not removed: %s", path, error)
        return False
    return True


def reap_run_directories(base: Path, judge: Owner) -> int:
    """Remove the directories of this user's dead bridges; return their number."""
    count = 0
    with suppress(OSError):
        for entry in list(os.scandir(base)):
            owner = cgroups.group_owner(entry.name)
            if owner is None or owner == judge or not entry.is_dir(follow_symlinks=False):
                continue
            # Anyone can use such a name in a shared directory.
            if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            if is_dead(owner, judge=judge):
                logger.info("removing the directory of a bridge that died: %s", entry.path)
                count += remove_directory(Path(entry.path))
    return count


def _remove_entry(top: int, name: str) -> None:
    """Remove a file, or a directory after moving its directories up."""
    if not _is_directory(top, name):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    inner = _open_directory(name, top)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208
            if not _is_directory(inner, entry):
                os.unlink(entry, dir_fd=inner)
                continue
            # Moving a directory needs write permission in it, since ".." changes.
            os.chmod(entry, 0o700, dir_fd=inner)
            os.rename(entry, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _is_directory(place: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)


def _open_directory(name: str, place: int | None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
