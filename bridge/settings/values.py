"""The resolved settings. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from bridge.model import Directory, ServerSettings
from bridge.settings import parsers
from bridge.settings.commands import CommandProfile
from bridge.settings.dependencies import Dependencies
from bridge.settings.kubernetes import Kubernetes
from bridge.settings.policy import PolicySpec, secret_names
from bridge.store import ServerUrl

OutputMode = Literal["compact", "toon", "json", "auto"]
RecordPlace = Literal["meta", "content"]
ProjectServers = Literal["all", "approved", "none"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
GuardMode = Literal["off", "advise", "enforce"]
PreflightMode = Literal["check", "off"]
AuditMode = Literal["on", "sync", "off"]
Switch = Literal["on", "off"]


def declare(
    parse: Callable[[str], object], default: object, *, flag: str = "", variable: str = ""
) -> Any:
    """Declare a field of `Settings` that a flag, a variable or the file can set.

    `flag` is the flag's help; without it there is no flag. `variable` is the variable's name, if it
    does not follow from the field's name.
    """
    return field(default=default, metadata={"parse": parse, "flag": flag, "variable": variable})


STRICT_VALUES = {"listed_servers_only": True, "guard": "enforce", "project_servers": "none"}
STRICT_CAPS = {"timeout": 5.0, "max_timeout": 5.0, "memory": 128 * 1024**2, "cpus": 0.5}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, resolved.

    Attributes:
        runtime: The backend for programs: "auto" (the first that works), "podman", "docker",
            "bubblewrap", "seatbelt", "landlock", "kubernetes" or an engine's path.
        runtime_order: The order of `auto`; by default podman, docker, bubblewrap, seatbelt.
        oci_runtime: The engine's OCI runtime: "runc", "crun", "runsc", ... It is used or
            refused, never replaced. By default the engine chooses.
        image: The container image; by default the one that `image build` made, else the public
            one.
        packages: A virtual environment that programs may import from if they run without an
            image.
        timeout: Default for the seconds that a program may take, without its time waiting for
            tools.
        max_timeout: Most seconds that a run may take with its tools, that a run may request,
            and that a call may take while it reports progress. At least `call_timeout` by
            default.
        memory: Memory of a sandbox, including its files in memory.
        pids: Processes and threads of a sandbox.
        cpus: CPUs of a sandbox; by default the engine decides.
        container_user: User and group of programs.
        runtime_idle_timeout: Seconds until an idle podman machine that the bridge started is
            stopped; 0 for never.
        state_dir: Directory of logs, caches and the store; by default
            `~/.local/state/mcp-code-bridge`.
        output_mode: The format of the last expression's value: JSON ("json"), JSON with
            multi-line texts unescaped ("compact"), TOON, or the format with the fewest tokens
            ("auto").
        structured: Where a result has its record: in `_meta`, or as structured content, which
            many clients show their model instead of the text.
        log_level: The lowest level that is logged, to stderr or the background bridge's log.
        log_format: Whether log lines are text or JSON objects.
        profile: "standard", "strict" or one of `[profiles]`.
        strict: Whether the profile is or extends "strict".
        profiles: The values of each profile; see `narrow`.
        listed_servers_only: Whether a run may use only the servers listed in its `servers`.
        guard: What the static guard does with findings: nothing, advise in the result, or
            enforce by refusing the program.
        guard_denies: Modules, functions, ".attributes" and paths that the guard denies in
            addition.
        warm: Maximum number of waiting sandboxes. Each serves one run.
        sources: Names of clients whose configurations are read, or names with a "-" to omit;
            all by default.
        secret_names: Globs of variables and headers whose values are secrets, or with a "-" are
            not.
        description_tokens: Maximum tokens of `run_python`'s description.
        preflight: Whether programs are checked against the tools before they run.
        roots: Directories that all servers get as roots. By default, servers without a
            directory in their arguments get those of a client on stdio.
        servers_config: An additional configuration file of servers, which is read first.
        allow_self_server: Whether servers that start the bridge itself are used rather than
            skipped.
        project_servers: Which servers from files in the working directory are used.
        call_timeout: Seconds that a tool call may take without progress, unless its server's
            entry sets another limit.
        start_timeout: Seconds that a server's start may take, unless its entry sets another
            limit.
        start_patience: Seconds that a package runner (`npx`, `uvx`, `docker run`) may need to
            install and start a server. Runs that need the server get an answer after
            `start_timeout`.
        audit: Whether calls are recorded. With "sync", each record is on the disk before its
            call.
        audit_days: Days until records expire.
        audit_bytes: Maximum size of all records. A full log refuses calls.
        background: Whether clients on stdio share one background bridge.
        run_records: Whether each run's program, outcome and start of output are kept, for at
            most 14 days and 200 MB.
        output_tokens: Approximate maximum tokens of a run's output. The rest becomes an
            artifact.
        shown_bytes: Maximum size of a result's pictures.
        runs: Maximum of concurrent runs; by default the machine's capacity, on Kubernetes the
            quota's pods. Others wait.
        sessions: Maximum of open sessions; 0 disables sessions.
        session_idle_timeout: Seconds until an idle session is saved to disk and closed.
        session_bytes: Maximum compressed size of a saved session.
        session_days: Days until a saved session expires.
        artifact_bytes: Maximum size of all artifacts: files, whole outputs, pictures.
        artifact_run_bytes: Maximum size of one run's artifacts.
        artifact_days: Days until artifacts expire.
        store: The database: a path, `sqlite:///PATH`, or `postgresql://...` for several
            bridges; by default `store.db` in the state directory.
        store_pool: Most connections of this bridge to a database server.
        skills_dir: Directory of saved functions as plain files; by default in the state
            directory.
        replica: This bridge's name among several that serve HTTP together; by default the host
            name.
        drain_seconds: Seconds that a stopping HTTP or background bridge waits for its runs.
        directories: Host directories that programs may access.
        dependencies: The packages that a run may request, and their index.
        allow_packages: Whether runs get packages that `[dependencies]` allows; by default all
            runs except strict ones.
        allow_directories: Whether runs get `[directories]`; by default all runs except strict
            ones.
        kubernetes: Settings of pods, for the backend "kubernetes".
        server_settings: Settings of single servers, by name.
        policy: The policy when the settings were read.
        commands: Command profiles by name. Without any there is no `run_command`.
        places: Where each setting without its default value is defined, for errors.
        environ: The process's environment, which servers inherit and engines read.
        notes: Warnings about values that the bridge changed.
        packages_allowed, offered_directories: What `allow_packages` and `allow_directories` mean.
    """

    runtime: str = declare(
        parsers.runtime,
        "auto",
        flag="auto, podman, docker, bubblewrap, seatbelt, landlock, kubernetes or an engine's path",
    )
    runtime_order: tuple[str, ...] = declare(
        parsers.runtime_order, (), flag="what auto tries, in order, such as docker,bubblewrap"
    )
    oci_runtime: str = declare(
        parsers.text, "", flag="runc, crun, runsc, kata ...: used or refused, never downgraded"
    )
    image: str = declare(parsers.text, "", flag="the container image")
    packages: Path | None = declare(parsers.path, None)
    timeout: float = declare(parsers.seconds, 30.0)
    max_timeout: float = declare(
        parsers.seconds, 600.0, flag="most seconds that a run may take with its tools"
    )
    memory: int = declare(parsers.memory, 512 * 1024**2, flag="memory limit, such as 512m")
    pids: int = declare(parsers.pids, 128, flag="limit on processes and threads")
    cpus: float | None = declare(parsers.cpus, None, flag="limit on CPUs, such as 1.5")
    container_user: str = declare(parsers.user, "65534:65534")
    runtime_idle_timeout: float = declare(parsers.idle_seconds, 300.0)
    state_dir: Path = declare(parsers.place, Path(), flag="where logs and caches are kept")
    output_mode: OutputMode = declare(
        parsers.choice(OutputMode), "compact", flag="compact, toon, json or auto"
    )
    structured: RecordPlace = declare(
        parsers.choice(RecordPlace), "meta", flag="where to put structured results: meta or content"
    )
    log_level: LogLevel = declare(
        parsers.choice(LogLevel), "INFO", flag=", ".join(get_args(LogLevel))
    )
    log_format: LogFormat = declare(parsers.choice(LogFormat), "text")
    profile: str = declare(parsers.lower, "standard", flag="standard, strict or one of config.toml")
    listed_servers_only: bool = declare(parsers.boolean, False)
    guard: GuardMode = declare(
        parsers.choice(GuardMode),
        "advise",
        flag="what the static guard does: off, advise or enforce",
    )
    guard_denies: tuple[str, ...] = declare(parsers.denials, ())
    allow_packages: bool | None = declare(parsers.boolean, None)
    allow_directories: bool | None = declare(parsers.boolean, None)
    warm: int = declare(parsers.integer(0, 32), 4)
    sources: tuple[str, ...] = declare(
        parsers.sources,
        (),
        flag="clients whose configurations are read, or -NAME,-NAME for all but those",
    )
    secret_names: tuple[str, ...] = declare(secret_names, ())
    description_tokens: int = declare(
        parsers.integer(500, 100_000), 1500, flag="what the description of run_python may cost"
    )
    preflight: PreflightMode = declare(
        parsers.choice(PreflightMode), "check", flag="check programs before they run: check or off"
    )
    audit: AuditMode = declare(parsers.choice(AuditMode), "on")
    audit_days: int = declare(parsers.integer(1, 3660), 90)
    audit_bytes: int = declare(parsers.parse_size, 4 * 1024**3)
    run_records: Switch = declare(parsers.choice(Switch), "on")
    background: Switch = declare(parsers.choice(Switch), "on")
    output_tokens: int = declare(parsers.integer(200, 1_000_000), 5000)
    shown_bytes: int = declare(parsers.parse_size, 1024**2)
    runs: int | None = declare(parsers.integer(1, 1024), None)
    sessions: int = declare(parsers.integer(0, 256), 8)
    session_idle_timeout: float = declare(parsers.seconds, 600.0)
    session_bytes: int = declare(parsers.parse_size, 32 * 1024 * 1024)
    session_days: int = declare(parsers.integer(1, 3660), 7)
    artifact_bytes: int = declare(parsers.parse_size, 1024**3)
    artifact_run_bytes: int = declare(parsers.parse_size, 64 * 1024**2)
    artifact_days: int = declare(parsers.integer(1, 3660), 7)
    store: Path | ServerUrl | None = declare(parsers.database, None)
    store_pool: int = declare(parsers.integer(2, 64), 8)
    skills_dir: Path | None = declare(parsers.place, None)
    replica: str = declare(parsers.replica, "")
    drain_seconds: float = declare(parsers.seconds, 30.0)
    roots: tuple[Path, ...] = declare(
        parsers.directories, (), flag="directories that servers get when they ask for roots"
    )
    servers_config: Path | None = declare(
        parsers.place,
        None,
        flag="one more configuration file, read first",
        variable="MCP_SERVERS_CONFIG",
    )
    allow_self_server: bool = declare(parsers.boolean, False)
    project_servers: ProjectServers = declare(parsers.choice(ProjectServers), "approved")
    call_timeout: float = declare(parsers.seconds, 60.0)
    start_timeout: float = declare(parsers.seconds, 30.0)
    start_patience: float = declare(parsers.seconds, 300.0)
    strict: bool = False
    profiles: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"standard": {}, "strict": {"strict": True}}
    )
    directories: tuple[Directory, ...] = ()
    dependencies: Dependencies = field(default_factory=Dependencies)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    server_settings: Mapping[str, ServerSettings] = field(default_factory=dict)
    policy: PolicySpec = field(default_factory=PolicySpec)
    commands: Mapping[str, CommandProfile] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)

    packages_allowed: bool = field(init=False, repr=False)
    offered_directories: tuple[Directory, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        values: dict[str, object] = {}
        strict = self.strict or self.profile == "strict"
        if strict:
            # Strict settings get all strict values, however they were constructed.
            caps = {name: min(getattr(self, name) or cap, cap) for name, cap in STRICT_CAPS.items()}
            values = {"strict": True, **STRICT_VALUES, **caps}
        allowed = not strict if self.allow_directories is None else self.allow_directories
        values["offered_directories"] = self.directories if allowed else ()
        allowed = not strict if self.allow_packages is None else self.allow_packages
        values["packages_allowed"] = allowed
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def place(self, name: str) -> str:
        return self.places.get(name, f"MCP_BRIDGE_{name.upper()}")

    @property
    def allowed_packages(self) -> list[str]:
        """Patterns of the packages that programs may request; "*" matches any text."""
        allowed = self.dependencies.allow if self.packages_allowed else ()
        return [entry.name for entry in allowed]


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    each.name: each.metadata for each in fields(Settings) if "parse" in each.metadata
}
"""The parser, flag and variable of each setting; see `declare`."""
