"""The settings, resolved: the shape that everything else is given. Values only."""

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
from bridge.settings.policy import PolicySpec
from bridge.store import ServerUrl

OutputMode = Literal["compact", "toon", "json", "auto"]
RecordPlace = Literal["meta", "content"]
ProjectServers = Literal["all", "approved", "none"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
GuardMode = Literal["off", "advise", "enforce"]
PreflightMode = Literal["check", "off"]
AuditMode = Literal["on", "sync", "off"]
Switch = Literal["on", "off"]


def declare(
    parse: Callable[[str], object],
    default: object,
    *,
    flag: str = "",
    variable: str = "",
) -> Any:
    """Declare a field of `Settings` that a flag, a variable or the file can set.

    Args:
        parse: From the text that a flag or variable has.
        flag: What its flag's help says; empty for none.
        variable: Its name in the environment, where that is not made from its own.
    """
    how = {"parse": parse, "flag": flag, "variable": variable}
    return field(default=default, metadata=how)


STRICT_CAPS = {"timeout": 5.0, "max_timeout": 5.0, "memory": 128 * 1024**2, "cpus": 0.5}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set, resolved.

    Attributes:
        runtime: What runs programs: "auto" (the first that works), "podman", "docker",
            "bubblewrap", "seatbelt", "landlock", "kubernetes" or an
            engine's path.
        runtime_order: What `auto` tries, in order; podman, docker, bubblewrap, seatbelt if empty.
        oci_runtime: What the engine starts containers with: "runc", "crun", "runsc", ... It is used
            or refused, never replaced. Empty leaves it to the engine.
        image: The container image; empty for the one that `image build` made, else the public one.
        packages: A virtual environment that programs may import from where there is no image.
        timeout: Seconds that a program may take unless its run asks for others; the time that it
            waits for tools does not count.
        max_timeout: Most seconds that a run may take with its tools, that a run may ask for, and
            that a call may take while it reports progress; at least `call_timeout` if not set.
        memory: Memory of a sandbox, its files in memory included.
        pids: Processes and threads of a sandbox.
        cpus: CPU time of a sandbox for each second; empty leaves it to the engine.
        container_user: User and group that a program runs as.
        runtime_idle_timeout: Seconds until a podman machine that the bridge started is stopped; 0
            for never.
        state_dir: Where logs, caches and the store are; if not set, in
            `~/.local/state/mcp-code-bridge`.
        output_mode: How the value of the last expression is written: as JSON ("json"), as JSON but
            for texts of several lines ("compact"), as TOON, or as what costs a model less ("auto").
        structured: Where a result has its record: in `_meta`, or as structured content, which many
            clients show their model in place of the text.
        log_level: The least that is logged to stderr.
        profile: "standard", "strict" or one of `[profiles]`.
        strict: Whether the profile is the strict one, or made from it.
        profiles: What each profile sets, by its name; see `narrow`.
        listed_servers_only: Whether a run may use only the servers listed in its `servers`.
        guard: What the static guard does with what it finds: nothing, advise in the result, or
            enforce by refusing the program.
        guard_denies: What the guard denies as well: modules, functions, ".attributes" and paths.
        warm: The most sandboxes that are kept ready; each is used for one run.
        sources: Clients whose configurations are read: their names, or names each with a "-" in
            front for all but those; empty for all.
        secret_names: Globs of the names of variables and headers whose values are secrets; with a
            "-" in front, of those whose values are none.
        description_tokens: Tokens that the description of `run_python` may cost.
        preflight: Whether programs are checked against the tools before they run.
        roots: Directories that all servers get when they ask for roots; without any, servers that
            have no directory among their arguments get those of a client on stdio.
        servers_config: One more configuration file of servers, read first.
        allow_self_server: Whether servers that start the bridge again are used, not skipped.
        project_servers: Which servers of files in the working directory are used.
        call_timeout: Seconds that a tool call may take without a sign of progress, unless its
            server's entry says otherwise.
        start_timeout: Seconds that a server may take to start, unless its entry says otherwise.
        start_patience: Seconds that a package runner (`npx`, `uvx`, `docker run`) may need to
            install and start a server. A run that needs it is answered after `start_timeout`.
        audit: Whether calls are recorded; with "sync" each record is on the disk before its call.
        audit_days: Days that records are kept.
        audit_bytes: What all records may take; no call is made beyond.
        run_records: Whether each run's program, its end and the start of its output are kept, for
            14 days and 200 MB at most.
        output_tokens: Tokens that a run's output may cost a model, about; the rest is kept apart.
        shown_bytes: What the pictures of a result may take in all.
        runs: Runs at once; the rest wait. Empty for what the machine allows.
        sessions: Sessions open at once; 0 for no sessions.
        session_idle_timeout: Seconds until an unused session is put away on the disk.
        session_bytes: Bytes of a session's values and files that are put away, compressed.
        session_days: Days that a session put away can be restored.
        artifact_bytes: What is kept of all runs: files, whole outputs, pictures.
        artifact_run_bytes: What is kept of one run.
        artifact_days: Days that it is kept.
        store: The database of what is kept: a path or `sqlite:///PATH`, or `postgresql://...` for
            several bridges; `store.db` in the state directory if not set.
        skills_dir: Where saved skills are, as plain files; in the state directory if not set.
        replica: What this bridge is called among several that serve HTTP as one; the machine's name
            if not set.
        drain_seconds: For runs to end by themselves once a bridge that serves HTTP is told to end.
        directories: Of the host, which programs may use, as the file names them.
        dependencies: Which packages a run may ask for, and where they come from.
        allow_packages: Whether runs get packages that `[dependencies]` allows; all but strict ones
            do if not set.
        allow_directories: Whether runs get `[directories]`; all but strict ones do if not set.
        kubernetes: Where and how pods are made, where those run programs.
        server_settings: What the file sets of single servers, by name.
        policy: Which calls are allowed, as the file said when the settings were read.
        commands: The command profiles, by name; without any there is no `run_command`.
        places: Where each setting stands that does not have its default, for errors.
        environ: The process's environment, for what servers inherit and engines read.
        notes: Warnings about values that are not taken as they are written.
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
        parsers.choice(RecordPlace),
        "meta",
        flag="where to put structured results: meta or content",
    )
    log_level: LogLevel = declare(
        parsers.choice(LogLevel), "INFO", flag=", ".join(get_args(LogLevel))
    )
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
    secret_names: tuple[str, ...] = declare(parsers.secret_names, ())
    description_tokens: int = declare(
        parsers.integer(500, 100_000), 1500, flag="what the description of run_python may cost"
    )
    preflight: PreflightMode = declare(
        parsers.choice(PreflightMode),
        "check",
        flag="check programs before they run: check or off",
    )
    audit: AuditMode = declare(parsers.choice(AuditMode), "on")
    audit_days: int = declare(parsers.integer(1, 3660), 90)
    audit_bytes: int = declare(parsers.parse_size, 4 * 1024**3)
    run_records: Switch = declare(parsers.choice(Switch), "on")
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

    def __post_init__(self) -> None:
        # However it was made, a strict one is strict in all respects.
        if self.strict or self.profile == "strict":
            object.__setattr__(self, "strict", True)
            object.__setattr__(self, "listed_servers_only", True)
            object.__setattr__(self, "guard", "enforce")
            object.__setattr__(self, "project_servers", "none")
            for name, most in STRICT_CAPS.items():
                object.__setattr__(self, name, min(getattr(self, name) or most, most))

    def place(self, name: str) -> str:
        """Return where a setting stands: a flag, a variable, or a line of a file."""
        return self.places.get(name, f"MCP_BRIDGE_{name.upper()}")

    @property
    def packages_allowed(self) -> bool:
        return not self.strict if self.allow_packages is None else self.allow_packages

    @property
    def offered_directories(self) -> tuple[Directory, ...]:
        allowed = not self.strict if self.allow_directories is None else self.allow_directories
        return self.directories if allowed else ()


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    each.name: each.metadata for each in fields(Settings) if "parse" in each.metadata
}
"""What can be set, with how it is parsed and named outside; see `setting`."""
