"""A request for `run_command` turned into what backends are to start.

Owns looking at the host's files for it: the paths and executables of a profile, its credentials;
and the report of `doctor` on profiles, made without running a command. What follows from them is
decided in `bridge.command`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bridge.command.confine import WORKSPACE, Bounds, check_stages, check_workdir, is_within
from bridge.command.environment import (
    CredentialFile,
    Environment,
    credential_files,
    environment,
)
from bridge.command.grants import Guarded, View, follow, grants
from bridge.errors import BridgeError, InvalidRequestError, NoSandboxError, SettingsError
from bridge.gate.redaction import MAX_SECRETS, Redactor
from bridge.model import CommandRequest, Limits
from bridge.sandbox.backend import (
    HOME,
    Bind,
    CommandSpec,
    Executable,
    HostFile,
    LaunchSpec,
    Probe,
)
from bridge.sandbox.choose import insist_on_kernel, is_engine
from bridge.sandbox.process.executables import find_executables
from bridge.settings import Settings, home, private_places, trusted_places
from bridge.settings.commands import CommandProfile

MAX_CREDENTIAL_BYTES = 1024 * 1024
"""Of one file of credentials; they have a few thousand."""

MAX_CACHED_TOKENS = 20
"""Files of ~/.aws/sso/cache that are passed on, newest first; one per login."""

TMP_BYTES = Limits.tmp_bytes
MONITORS = 1
"""Processes inside that are not the command's: bubblewrap's own, which reaps."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A request that can be carried out."""

    profile: CommandProfile
    specs: tuple[LaunchSpec, ...]
    timeout: float
    redactor: Redactor


@dataclass(frozen=True, kw_only=True)
class CommandCheck:
    """What was found out about one profile, without running a command.

    Attributes:
        summary: What it runs, where; or what is wrong with it.
        notes: What is as likely meant as not.
    """

    name: str
    ok: bool
    summary: str
    remedy: str = ""
    notes: tuple[str, ...] = ()


class Planner:
    """Makes plans; blocks, so it is called in threads.

    What one profile may write, no other may execute.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._writable = [one.path for one in settings.offered_directories if one.writable]
        self._environ = settings.environ
        self._home = str(home(settings.environ))
        self._profiles = tuple(settings.commands.values())
        self._guarded = Guarded(
            private=tuple(map(str, private_places(settings))),
            trusted=tuple(map(str, trusted_places(settings))),
        )
        self._executables: dict[str, tuple[Executable, ...]] = {}

    def plan(self, request: CommandRequest, profile: CommandProfile, run_id: str) -> Plan:
        """Decide all that there is to decide.

        Raises:
            UsageError: The request is unusable, or the profile is.
        """
        environ, own_home = self._environ, self._home
        timeout = profile.timeout if request.timeout is None else request.timeout
        if not 1 <= timeout <= profile.max_timeout:
            raise InvalidRequestError(f"timeout must be from 1 to {profile.max_timeout:g} seconds.")
        granted, executables = self._settle(profile)
        view = View(granted, _readlink)
        workdir = check_workdir(request.workdir, view.resolve)
        host = view.host_path(workdir)
        if host is None or not Path(host).is_dir():
            message = f"`workdir` {request.workdir!r:.200} is no directory of the workspace."
            raise InvalidRequestError(message)
        entries = {entry.rpartition("/")[2]: entry for entry in profile.executables}
        bounds = Bounds(
            names=tuple(entries),
            roots=tuple(grant.inside for grant in granted) + ("/tmp", "/dev/null"),
            check_arguments=profile.check_arguments,
            hosts={
                **{grant.source: grant.inside for grant in granted},
                str(profile.workspace): WORKSPACE,
            },
        )
        check_stages(request.stages, bounds, workdir, view.resolve)
        files = _credentials(profile, environ, own_home)
        made = environment(profile, environ, home=HOME, files=files)
        tools = {tool.name: tool for tool in executables}
        specs = tuple(
            _spec(
                f"{run_id}-{number}", words, profile, granted, tools, entries, workdir, files, made
            )
            for number, words in enumerate(request.stages)
        )
        redactor = _redactor(made, profile)
        return Plan(profile=profile, specs=specs, timeout=timeout, redactor=redactor)

    def check(self, profile: CommandProfile) -> tuple[str, ...]:
        """See that commands of a profile could be planned; return the variables that are not set.

        Raises:
            UsageError: They could not.
        """
        self._settle(profile)
        files = _credentials(profile, self._environ, self._home)
        _redactor(environment(profile, self._environ, home=HOME, files=files), profile)
        return tuple(
            name for name in (*profile.env, *profile.secrets) if not self._environ.get(name)
        )

    def report(self, profile: CommandProfile, probes: Sequence[Probe]) -> CommandCheck:
        """Return what `doctor` tells of a profile.

        What is wrong with it is said by those who would say it when a command is run.

        Args:
            probes: What was found out about backends; none of them is tried here.
        """
        try:
            insist_on_kernel(self._settings, profile)
            unset = self.check(profile)
            tried = _insist_on_backend(profile, probes)
        except BridgeError as error:
            summary = " ".join(filter(None, (error.message, error.host_detail)))
            return CommandCheck(name=profile.name, ok=False, summary=summary, remedy=error.remedy)
        notes = [f"not set, so not passed on: {', '.join(unset)}"] if unset else []
        where = "bubblewrap"
        if profile.runtime == "container":
            where = f"containers of {profile.image}"
            notes.append("its image and executables are looked up when a command is run")
        if not tried:
            left_out = "MCP_BRIDGE_RUNTIME or its order leave it out"
            notes.append(f"what it runs in was not tried: {left_out}")
        names = ", ".join(entry.rpartition("/")[2] for entry in profile.executables)
        summary = f"{names} in {where}, workspace {profile.workspace}"
        return CommandCheck(name=profile.name, ok=True, summary=summary, notes=tuple(notes))

    def _settle(self, profile: CommandProfile) -> tuple[tuple[Bind, ...], tuple[Executable, ...]]:
        """Return what a profile grants and its executables, all of them there."""
        granted = self._grants(profile)
        self._insist_fixed(profile, granted, self._home)
        _insist_present(granted, profile)
        return granted, self._find(profile, granted, self._home)

    def _grants(self, profile: CommandProfile) -> tuple[Bind, ...]:
        return grants(profile, home=self._home, realpath=_real, guarded=self._guarded)

    def _find(
        self, profile: CommandProfile, granted: tuple[Bind, ...], own_home: str
    ) -> tuple[Executable, ...]:
        if profile.runtime == "container":
            return ()
        if profile.name not in self._executables:
            path = self._environ.get("PATH") or os.defpath
            found = find_executables(profile.executables, path, home=own_home, place=profile.place)
            self._executables[profile.name] = found
        # What runs inside could put something else into their place, for the next bridge to run.
        for tool in self._executables[profile.name]:
            ways = [*tool.executes, *(w for _, place in tool.links for w in _way(place))]
            for name, changeable in self._changeable(profile, granted, own_home):
                if any(is_within(way, changeable) for way in ways):
                    message = f"{profile.place}: {tool.name} lies where {name} may write."
                    raise SettingsError(message, remedy="Move one of the two.")
        return self._executables[profile.name]

    def _insist_fixed(
        self, profile: CommandProfile, granted: tuple[Bind, ...], own_home: str
    ) -> None:
        """See that no command can turn what is granted into a link to something else."""
        for grant in granted:
            path = grant.source
            if grant.inside == WORKSPACE:
                path = str(profile.workspace)
            elif not is_within(grant.inside, (WORKSPACE,)):
                path = grant.inside
            way = _way(path)
            for name, changeable in self._changeable(profile, granted, own_home):
                above = [top for top in changeable if any(_is_below(place, top) for place in way)]
                if above:
                    message = f"{profile.place}: {path} lies below {above[0]}, where {name} may"
                    message += " write, and could be turned into a link to anything."
                    remedy = "Keep the two apart, or grant the same directory in both."
                    raise SettingsError(message, remedy=remedy)

    def _changeable(
        self, profile: CommandProfile, granted: tuple[Bind, ...], own_home: str
    ) -> list[tuple[str, list[str]]]:
        """Return what commands of each profile may write to."""
        found = [("the profile", granted)]
        for other in self._profiles:
            if other.name != profile.name:
                # One that grants what it may not runs nothing.
                with suppress(SettingsError):
                    found.append((other.place, self._grants(other)))
        places = [(name, [each.source for each in all_ if each.writable]) for name, all_ in found]
        return [*places, ("[directories]", self._writable)]


def check_commands(settings: Settings, probes: Sequence[Probe]) -> list[CommandCheck]:
    """Return a report on each profile; see `Planner.report`. Blocks, shortly."""
    planner = Planner(settings)
    return [planner.report(profile, probes) for profile in settings.commands.values()]


def _insist_on_backend(profile: CommandProfile, probes: Sequence[Probe]) -> bool:
    """See that what a profile runs in has not failed; return whether it was tried."""
    if profile.runtime == "container":
        tried = [probe for probe in probes if is_engine(probe.backend)]
    else:
        tried = [probe for probe in probes if probe.backend == "bubblewrap"]
    if tried and not any(probe.ok for probe in tried):
        summary = " ".join(f"{probe.backend}: {probe.summary}" for probe in tried)
        message = f"{profile.place}: nothing can run it. {summary}"
        raise NoSandboxError(message, remedy=tried[0].remedy)
    return bool(tried)


def _spec(
    run_id: str,
    words: tuple[str, ...],
    profile: CommandProfile,
    granted: tuple[Bind, ...],
    tools: Mapping[str, Executable],
    entries: Mapping[str, str],
    workdir: str,
    files: Mapping[CredentialFile, bytes],
    made: Environment,
) -> LaunchSpec:
    tool = tools.get(words[0])
    wanted = profile.credentials is not None and profile.credentials.source != "env"
    return LaunchSpec(
        run_id=run_id,
        # In a container the entry itself is what is looked up.
        argv=words if tool is not None else (entries[words[0]], *words[1:]),
        env={**made.variables, "PATH": _search_path(made.variables["PATH"], tools)},
        limits=Limits(
            timeout=profile.max_timeout,
            memory_bytes=profile.memory_bytes,
            pids=profile.processes + MONITORS,
            open_files=profile.open_files,
            tmp_bytes=min(TMP_BYTES, profile.memory_bytes // 4),
            workspace_bytes=min(TMP_BYTES, profile.memory_bytes // 4),
        ),
        binds=granted,
        command=CommandSpec(
            cwd=workdir,
            cpu_seconds=profile.cpu_seconds,
            file_bytes=profile.file_bytes,
            file=tool.file if tool is not None else "",
            files=tuple(
                HostFile(source=file.path, inside=f"{HOME}/{file.below}", data=data)
                for file, data in files.items()
            ),
            # Where the AWS command line caches the roles it assumes.
            writable=(f"{HOME}/.aws/cli",) if wanted else (),
            executables=tuple(tools.values()),
            network=profile.network,
            image=profile.image,
        ),
    )


def _search_path(path: str, tools: Mapping[str, Executable]) -> str:
    places = [place for tool in tools.values() for _, place in tool.links]
    places += [file for tool in tools.values() for file in tool.executes]
    directories = [str(PurePosixPath(place).parent) for place in places]
    return ":".join(dict.fromkeys([*path.split(":"), *directories]))


def _redactor(made: Environment, profile: CommandProfile) -> Redactor:
    """Return what takes a profile's secrets out of all that is shown."""
    if len(made.secrets) > MAX_SECRETS:
        message = f"{profile.place} has {len(made.secrets):,} secrets, so not all of them can be"
        message += f" kept out of output; at most {MAX_SECRETS:,} can."
        raise SettingsError(message, remedy="Pass fewer of them, or smaller files of credentials.")
    return Redactor(made.secrets)


def _insist_present(granted: tuple[Bind, ...], profile: CommandProfile) -> None:
    for grant in granted:
        there = Path(grant.source)
        if not there.exists() or (grant.inside == WORKSPACE and not there.is_dir()):
            what = "the workspace" if grant.inside == WORKSPACE else "a path it grants"
            message = f"{profile.place}: {what}, {grant.source}, is not there."
            raise SettingsError(message, remedy="Create it, or change the profile.")


def _is_below(place: str, top: str) -> bool:
    return place != top and is_within(place, (top,))


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError as error:
        # It changes while it is looked at.
        raise SettingsError(f"{path} cannot be looked up: {error.strerror}.") from error


def _way(path: str) -> list[str]:
    return follow(path, _readlink)[1]


def _readlink(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except (OSError, ValueError):
        return None


def _credentials(
    profile: CommandProfile, environ: Mapping[str, str], own_home: str
) -> dict[CredentialFile, bytes]:
    cache = Path(own_home) / ".aws" / "sso" / "cache"
    cached: list[str] = []
    if profile.credentials is not None and cache.is_dir():
        tokens = sorted(cache.glob("*.json"), key=lambda each: -each.stat().st_mtime)
        cached = [token.name for token in tokens[:MAX_CACHED_TOKENS]]
    found: dict[CredentialFile, bytes] = {}
    for file in credential_files(profile, environ, own_home, cached):
        try:
            if not Path(file.path).is_file():
                continue
            with Path(file.path).open("rb") as opened:
                data = opened.read(MAX_CREDENTIAL_BYTES + 1)
        except OSError as error:
            message = f"{profile.place}: credentials cannot be read."
            raise SettingsError(message, host_detail=f"{file.path}: {error}.") from error
        if len(data) > MAX_CREDENTIAL_BYTES:
            message = f"{profile.place}: a file of credentials is beyond 1 MiB."
            raise SettingsError(message, host_detail=file.path)
        found[file] = data
    return found
