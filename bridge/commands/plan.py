"""Plans a `run_command` request: the launch of each stage.

It reads the host's files: a profile's paths, executables and credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from bridge.commands.confinement import WORKSPACE, View, check_stages, follow, grants, is_within
from bridge.errors import BridgeError, InvalidRequestError, SandboxError, SettingsError
from bridge.gate.redaction import MAX_SECRETS, Redactor
from bridge.model import CommandRequest, Limits
from bridge.sandbox.backend import HOME, Bind, CommandSpec, Executable, HostFile, LaunchSpec, Probe
from bridge.sandbox.process.command import SYSTEM, SYSTEM_FILES
from bridge.sandbox.process.interpreter import find_executables
from bridge.sandbox.selection import is_engine, require_own_kernel
from bridge.settings import Settings, home, private_places, trusted_places
from bridge.settings.commands import CommandProfile
from bridge.settings.directories import refusal
from bridge.settings.state import time_zone

SHORTEST_SECRET = 4  # Characters; a shorter value would match everywhere.
# A file may have a value of any size; redaction delays as much output.
MAX_SECRET_BYTES = 16 * 1024

AWS_SECRETS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
)
# The AWS command line's other variables; each service has an endpoint variable too.
AWS_PLAIN = frozenset("AWS_" + name for name in """
ACCOUNT_ID ACCOUNT_ID_ENDPOINT_MODE CA_BUNDLE CLI_AUTO_PROMPT CLI_FILE_ENCODING CLI_HISTORY_FILE
CLI_OUTPUT_ENCODING CLI_S3_MV_VALIDATE_SAME_S3_PATHS DATA_PATH DEFAULT_OUTPUT DEFAULT_PROFILE
DEFAULT_REGION DISABLE_REQUEST_COMPRESSION EC2_METADATA_DISABLED ENDPOINT_URL
IGNORE_CONFIGURED_ENDPOINT_URLS MAX_ATTEMPTS METADATA_SERVICE_NUM_ATTEMPTS METADATA_SERVICE_TIMEOUT
PAGER PROFILE REGION REQUEST_CHECKSUM_CALCULATION REQUEST_MIN_COMPRESSION_SIZE_BYTES
RESPONSE_CHECKSUM_VALIDATION RETRY_MODE ROLE_ARN ROLE_SESSION_NAME SDK_UA_APP_ID
SIGV4A_SIGNING_REGION_SET STS_REGIONAL_ENDPOINTS USE_DUALSTACK_ENDPOINT USE_FIPS_ENDPOINT
""".split())  # fmt: skip  # noqa: SIM905

_SECRET_LINE = re.compile(
    r"^[ \t]*\w*(?:secret|token|access_key_id)\w*[ \t]*[=:][ \t]*(?:\n[ \t]+)?(\S.*?)[ \t]*$",
    re.I | re.M,
)
_SECRET_MEMBER = re.compile(r'"\w*(?:token|secret)\w*"\s*:\s*"([^"]+)"', re.I)


@dataclass(frozen=True, kw_only=True)
class CredentialFile:
    path: str
    below: str  # Its path inside, below the home directory.
    variable: str = ""  # The variable that names it to the command, if any.
    whole: bool = False  # Whether the whole file is one secret.


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A command's variables and credential files. `secrets` maps values to redact to origins."""

    variables: Mapping[str, str] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    files: Mapping[CredentialFile, bytes] = field(repr=False)


def credential_files(
    profile: CommandProfile, environ: Mapping[str, str], home: str, cached: Iterable[str]
) -> tuple[CredentialFile, ...]:
    """Return the files that may have credentials; `cached` names files in ~/.aws/sso/cache."""
    if profile.credentials is None or profile.credentials.source == "env":
        return ()
    aws = PurePosixPath(home) / ".aws"
    named = (
        ("AWS_CONFIG_FILE", "config", str(aws / "config"), False),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", str(aws / "credentials"), False),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "web-identity-token", "", True),
        ("AWS_CA_BUNDLE", "ca-bundle.pem", "", False),
    )
    files = [
        CredentialFile(path=path, below=f".aws/{name}", variable=variable, whole=whole)
        for variable, name, usual, whole in named
        if (path := environ.get(variable) or usual)
    ]
    for name in cached:
        path = str(aws / "sso" / "cache" / name)
        files.append(CredentialFile(path=path, below=f".aws/sso/cache/{name}"))
    return tuple(files)


def secrets_in(file: CredentialFile, data: bytes) -> frozenset[str]:
    text = data.decode("utf-8", "replace")
    if file.whole:
        return frozenset({text.strip()})
    return frozenset((*_SECRET_LINE.findall(text), *_SECRET_MEMBER.findall(text)))


def environment(
    profile: CommandProfile,
    environ: Mapping[str, str],
    *,
    home: str = HOME,
    files: Mapping[CredentialFile, bytes],
) -> Environment:
    """Return a command's environment; refuse a secret that redaction cannot handle."""
    plain, secret = list(profile.env), list(profile.secrets)
    if profile.credentials is not None:
        plain += AWS_PLAIN | {each for each in environ if each.startswith("AWS_ENDPOINT_URL_")}
        if profile.credentials.source != "files":
            secret += AWS_SECRETS
    values = {name: environ[name] for name in secret if environ.get(name)}
    secrets = list(values.items())
    for file, data in files.items():
        texts = secrets_in(file, data)
        secrets += [(file.below, text) for text in texts if len(text) >= SHORTEST_SECRET]
    hidden: dict[str, str] = {}
    for name, value in secrets:
        size = len(value.encode(errors="surrogatepass"))
        if len(value) < SHORTEST_SECRET or size > MAX_SECRET_BYTES:
            message = f"{profile.place}: the value of the secret {name} has {len(value)} characters"
            message += ", so it cannot be kept out of output."
            remedy = "Name it in `env` if it is no secret." if name in values else ""
            raise SettingsError(message, remedy=remedy)
        whole = value.strip("\n")
        lines = [line for line in whole.splitlines() if len(line) >= 2 * SHORTEST_SECRET]
        for text in (whole, *lines):
            hidden.setdefault(text, name)
    if len(hidden) > MAX_SECRETS:
        message = f"{profile.place} has {len(hidden):,} secrets; at most {MAX_SECRETS:,} can be"
        remedy = "Pass fewer secrets, or smaller files of credentials."
        raise SettingsError(f"{message} kept out of output.", remedy=remedy)
    variables = {
        "HOME": home,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": "/tmp",
        "MALLOC_ARENA_MAX": "2",
        "TZ": time_zone(environ),
        **{name: environ[name] for name in plain if name in environ},
        **values,
        **{file.variable: f"{home}/{file.below}" for file in files if file.variable},
        **profile.fixed,
    }
    return Environment(variables=variables, secrets=hidden, files=files)


@dataclass(frozen=True, kw_only=True)
class CommandPlan:
    """A valid request; each stage has a hint on arguments that lead outside, or ""."""

    profile: CommandProfile
    specs: tuple[LaunchSpec, ...]
    timeout: float
    redactor: Redactor
    hints: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CommandCheck:
    """The result of `doctor` for one profile, which runs no command."""

    name: str
    ok: bool
    summary: str
    remedy: str = ""
    notes: tuple[str, ...] = ()


class Planner:
    """Makes a request's `CommandPlan`; blocks. Refuses executables that a sandbox may write."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._environ = settings.environ
        self._home = home(settings.environ)
        self._private = private_places(settings)
        self._trusted = trusted_places(settings)
        self._executables: dict[str, tuple[Executable, ...]] = {}

    def plan(self, request: CommandRequest, profile: CommandProfile, run_id: str) -> CommandPlan:
        timeout = profile.timeout if request.timeout is None else request.timeout
        if not 1 <= timeout <= profile.max_timeout:
            raise InvalidRequestError(f"timeout must be from 1 to {profile.max_timeout:g} seconds.")
        granted, executables = self._resolve(profile)
        view = View(
            granted,
            _readlink,
            visible=(*SYSTEM, *SYSTEM_FILES, "/dev", "/proc", "/etc/passwd", "/etc/group"),
            hosts={str(profile.workspace): WORKSPACE},
        )
        workdir = view.workdir(request.workdir)
        host = view.host_path(workdir)
        if host is None or not Path(host).is_dir():
            message = f"`workdir` {request.workdir!r:.200} is no directory of the workspace."
            raise InvalidRequestError(message)
        entries = {entry.rpartition("/")[2]: entry for entry in profile.executables}
        check_stages(request.stages, entries)
        made = environment(profile, self._environ, files=self._credentials(profile))
        for name in request.env.keys() - {*profile.call_env}:
            message = f"`env` may not set {name!r:.100} in the profile {profile.name}."
            allowed = ", ".join(profile.call_env) or "nothing"
            raise InvalidRequestError(message, remedy=f"Its `call_env` allows {allowed}.")
        made = replace(made, variables={**made.variables, **request.env})
        tools = {tool.name: tool.file for tool in executables}
        stage, command = _stage(profile, granted, executables, made, workdir)
        specs = tuple(
            replace(
                stage,
                run_id=f"{run_id}-{number}",
                # A container looks up the profile's entry itself.
                argv=words if tools else (entries[words[0]], *words[1:]),
                command=replace(command, file=tools.get(words[0], "")),
            )
            for number, words in enumerate(request.stages)
        )
        explain = partial(view.explain_failure, workdir, exists=os.path.lexists)
        return CommandPlan(
            profile=profile,
            specs=specs,
            timeout=timeout,
            redactor=Redactor(made.secrets),
            hints=tuple(map(explain, request.stages if profile.check_arguments else ())),
        )

    def report(self, profile: CommandProfile, probes: Sequence[Probe]) -> CommandCheck:
        """Check a profile for `doctor`, with the errors that a run would raise."""
        try:
            require_own_kernel(self._settings, profile)
            self._resolve(profile)
            environment(profile, self._environ, files=self._credentials(profile))
            tried = _check_backend(profile, probes)
        except BridgeError as error:
            summary = " ".join(filter(None, (error.message, error.host_detail)))
            return CommandCheck(name=profile.name, ok=False, summary=summary, remedy=error.remedy)
        unset = [name for name in (*profile.env, *profile.secrets) if not self._environ.get(name)]
        notes = [f"not set, so not passed on: {', '.join(unset)}"] if unset else []
        where = "bubblewrap"
        if profile.runtime == "container":
            where = f"containers of {profile.image}"
            notes.append("its image and executables are only checked when a command runs")
        if not tried:
            notes.append("its backend was not tried: MCP_BRIDGE_RUNTIME leaves it out")
        names = ", ".join(entry.rpartition("/")[2] for entry in profile.executables)
        summary = f"{names} in {where}, workspace {profile.workspace}"
        return CommandCheck(name=profile.name, ok=True, summary=summary, notes=tuple(notes))

    def _resolve(self, profile: CommandProfile) -> tuple[tuple[Bind, ...], tuple[Executable, ...]]:
        """Return a profile's grants and executables; refuse missing ones, and those at risk."""
        granted = self._grants(profile)
        writers = self._writers(profile, granted)
        for grant in granted:
            path, what = grant.source, "a path it grants"
            if grant.inside == WORKSPACE:
                path, what = str(profile.workspace), "the workspace"
            elif not is_within(grant.inside, (WORKSPACE,)):
                path = grant.inside
            # No command may replace a granted path by a link.
            for name, top in ((name, top) for name, tops in writers for top in tops):
                if any(place != top and is_within(place, (top,)) for place in _way(path)):
                    message = f"{profile.place}: {path} lies below {top}, where {name} may"
                    message += " write, so a command could replace it by a link."
                    remedy = "Keep the two apart, or grant the same directory in both."
                    raise SettingsError(message, remedy=remedy)
            there = Path(grant.source)
            if not there.exists() or (grant.inside == WORKSPACE and not there.is_dir()):
                message = f"{profile.place}: {what}, {grant.source}, does not exist."
                raise SettingsError(message, remedy="Create it, or change the profile.")
        return granted, self._find(profile, writers)

    def _grants(self, profile: CommandProfile) -> tuple[Bind, ...]:
        def judge(path: str, writable: bool) -> str:
            exposed = self._trusted if writable else ()
            return refusal(Path(path), home=self._home, private=self._private, exposed=exposed)

        return grants(profile, realpath=_real, refusal=judge)

    def _writers(
        self, profile: CommandProfile, granted: tuple[Bind, ...]
    ) -> list[tuple[str, list[str]]]:
        """Return the directories that commands of each profile, and programs, may write to."""

        def writable(binds: Iterable[Bind]) -> list[str]:
            return [bind.source for bind in binds if bind.writable]

        writers = [("the profile", writable(granted))]
        for other in self._settings.commands.values():
            if other.name != profile.name:
                # A profile with a forbidden grant runs nothing.
                with suppress(SettingsError):
                    writers.append((other.place, writable(self._grants(other))))
        offered = [one.path for one in self._settings.offered_directories if one.writable]
        return [*writers, ("[directories]", offered)]

    def _find(
        self, profile: CommandProfile, writers: Iterable[tuple[str, list[str]]]
    ) -> tuple[Executable, ...]:
        if profile.runtime == "container":
            return ()
        tools = self._executables.get(profile.name)
        if tools is None:
            path = self._environ.get("PATH") or os.defpath
            own_home = str(self._home)
            tools = find_executables(profile.executables, path, home=own_home, place=profile.place)
            self._executables[profile.name] = tools
        # A command could replace an executable, which the next bridge would run.
        for tool in tools:
            ways = [*tool.executes, *(way for _, place in tool.links for way in _way(place))]
            for name, changeable in writers:
                if any(is_within(way, changeable) for way in ways):
                    message = f"{profile.place}: {tool.name} lies where {name} may write."
                    raise SettingsError(message, remedy="Move one of the two.")
        return tools

    def _credentials(self, profile: CommandProfile) -> dict[CredentialFile, bytes]:
        cache = self._home / ".aws" / "sso" / "cache"
        cached: list[str] = []
        if profile.credentials is not None and cache.is_dir():
            tokens = sorted(cache.glob("*.json"), key=lambda each: -each.stat().st_mtime)
            cached = [token.name for token in tokens[:20]]
        contents: dict[CredentialFile, bytes] = {}
        for file in credential_files(profile, self._environ, str(self._home), cached):
            try:
                if Path(file.path).is_file():
                    contents[file] = Path(file.path).read_bytes()
            except OSError as error:
                message = f"{profile.place}: credentials cannot be read."
                raise SettingsError(message, host_detail=f"{file.path}: {error}.") from error
        return contents


def check_commands(settings: Settings, probes: Sequence[Probe]) -> list[CommandCheck]:
    planner = Planner(settings)
    return [planner.report(profile, probes) for profile in settings.commands.values()]


def _check_backend(profile: CommandProfile, probes: Sequence[Probe]) -> bool:
    """Check that the profile's backend has not failed; return whether it was tried."""
    if profile.runtime == "container":
        tried = [probe for probe in probes if is_engine(probe.backend)]
    else:
        tried = [probe for probe in probes if probe.backend == "bubblewrap"]
    if tried and not any(probe.ok for probe in tried):
        summary = " ".join(f"{probe.backend}: {probe.summary}" for probe in tried)
        message = f"{profile.place}: nothing can run it. {summary}"
        raise SandboxError(message, remedy=tried[0].remedy, code="no_sandbox")
    return bool(tried)


def _stage(
    profile: CommandProfile,
    granted: tuple[Bind, ...],
    executables: tuple[Executable, ...],
    made: Environment,
    workdir: str,
) -> tuple[LaunchSpec, CommandSpec]:
    """Return what all stages share: their launch, and the command in it."""
    places = [place for tool in executables for _, place in tool.links]
    places += [file for tool in executables for file in tool.executes]
    path = [*made.variables["PATH"].split(":"), *map(os.path.dirname, places)]
    memory = profile.memory_bytes
    stage = LaunchSpec(
        run_id="",
        argv=(),
        env={**made.variables, "PATH": ":".join(dict.fromkeys(path))},
        limits=Limits(
            timeout=profile.max_timeout,
            memory_bytes=memory,
            pids=profile.processes + 1,  # bubblewrap's own process inside, which reaps
            open_files=profile.open_files,
            tmp_bytes=min(Limits.tmp_bytes, memory // 4),
            workspace_bytes=min(Limits.tmp_bytes, memory // 4),
        ),
        binds=granted,
    )
    by_files = profile.credentials is not None and profile.credentials.source != "env"
    command = CommandSpec(
        cwd=workdir,
        cpu_seconds=profile.cpu_seconds,
        file_bytes=profile.file_bytes,
        files=tuple(
            HostFile(source=file.path, inside=f"{HOME}/{file.below}", data=data)
            for file, data in made.files.items()
        ),
        # The AWS command line's cache of assumed roles.
        writable=(f"{HOME}/.aws/cli",) if by_files else (),
        executables=executables,
        network=profile.network,
        image=profile.image,
    )
    return stage, command


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError as error:
        # The path changes meanwhile.
        raise SettingsError(f"{path} cannot be looked up: {error.strerror}.") from error


def _way(path: str) -> list[str]:
    return follow(path, _readlink)[1]


def _readlink(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except (OSError, ValueError):
        return None
