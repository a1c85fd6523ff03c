"""What the user asked for: flags, then environment, then `config.toml`, then defaults.

Owns the names, the parsing and the merged, frozen `Settings`. The only module that reads
`os.environ`; everything else takes what it needs as arguments. A value that does not parse is an
error that names where it stands: nothing falls back silently.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from bridge.errors import SettingsError

OutputMode = Literal["compact", "toon", "json", "auto"]
Profile = Literal["standard", "strict"]
ProjectServers = Literal["all", "approved", "none"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

MAX_CONFIG_BYTES = 1024 * 1024
"""A settings file beyond this is a mistake (a log, a device), not a configuration."""

MIN_MEMORY_BYTES = 32 * 1024 * 1024
"""Below this an interpreter with asyncio imported does not start reliably."""

MAX_SIZE_BYTES = 1024**5
"""No engine takes more, and what a float cannot hold is no size."""

MAX_MEMORY_BYTES = 1024**4
"""More than a program can use here; beyond it a unit is more likely mistaken."""

MIN_PIDS = 8
"""The supervisor, the program and its threads need a handful."""

MAX_PIDS = 32768
"""A limit beyond the kernel's usual number of processes limits nothing."""

MAX_WARM = 32
"""Each holds a whole sandbox, and is used by one run: more cost memory and gain nothing."""

MAX_ID = 2**31 - 1
"""Of users and groups; engines and kernels keep what is above for themselves."""

LONGEST_TIMEOUT = 24 * 3600.0
"""A day; beyond it a number is more likely a mistake in units."""

MAX_RUNTIME_DIR_BYTES = 70
"""A socket's path has at most 108 bytes (104 on macOS), and ours lie a level deeper."""

_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set, resolved.

    Attributes:
        runtime: "auto", "podman", "docker", "bubblewrap", "seatbelt" or an engine's path.
        oci_runtime: "runc", "crun", "runsc", ...; empty leaves it to the engine.
        image: Empty means the image that `image build` made, else the public one.
        timeout, max_timeout: Seconds.
        memory: Bytes.
        cpus: None leaves it to the engine.
        container_user: "uid:gid".
        runtime_idle_timeout: Seconds until a podman machine that the bridge started is stopped.
        environ: The process's environment, for what servers inherit and engines read.
    """

    runtime: str = "auto"
    oci_runtime: str = ""
    image: str = ""
    timeout: float = 30.0
    max_timeout: float = 120.0
    memory: int = 512 * 1024**2
    pids: int = 128
    cpus: float | None = None
    container_user: str = "65534:65534"
    runtime_idle_timeout: float = 300.0
    state_dir: Path = Path()
    output_mode: OutputMode = "compact"
    log_level: LogLevel = "INFO"
    profile: Profile = "standard"
    warm: int = 1
    servers_config: Path | None = None
    allow_self_server: bool = False
    project_servers: ProjectServers = "all"
    call_timeout: float = 60.0
    start_timeout: float = 30.0
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is not a number of seconds") from None  # noqa: EM101
    if not math.isfinite(value) or not 0 < value <= LONGEST_TIMEOUT:
        message = f"must be more than 0 and at most {LONGEST_TIMEOUT:.0f} seconds"
        raise ValueError(message)
    return value


def parse_size(text: str) -> int:
    """Return a number of bytes for text such as "512m", "1.5g" or "67108864".

    Raises:
        ValueError: The text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        message = 'is not a size such as "512m" or "1g"'
        raise ValueError(message)
    size = float(match[1]) * _UNITS[match[2]]
    if size > MAX_SIZE_BYTES:
        message = f"is beyond {MAX_SIZE_BYTES // 1024**4}t"
        raise ValueError(message)
    return int(size)


def _memory(text: str) -> int:
    value = parse_size(text)
    if value < MIN_MEMORY_BYTES:
        message = f"is below the {MIN_MEMORY_BYTES // 1024**2}m that Python needs to start"
        raise ValueError(message)
    if value > MAX_MEMORY_BYTES:
        message = f"is beyond the {MAX_MEMORY_BYTES // 1024**4}t that a program may have"
        raise ValueError(message)
    return value


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None  # noqa: EM101
        if value < least:
            message = f"must be at least {least}"
            raise ValueError(message)
        if value > most:
            message = f"must be at most {most}"
            raise ValueError(message)
        return value

    return parse


def _cpus(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is not a number of CPUs") from None  # noqa: EM101
    if not math.isfinite(value) or not 0.01 <= value <= 1024:
        message = "must be between 0.01 and 1024"
        raise ValueError(message)
    return value


def _user(text: str) -> str:
    match = re.fullmatch(r"(\d{1,10}):(\d{1,10})", text.strip())
    if match is None:
        message = 'is not "uid:gid" in numbers, such as "65534:65534"'
        raise ValueError(message)
    uid, gid = int(match[1]), int(match[2])
    if uid == 0:
        message = "asks to run the program as root; choose another uid"
        raise ValueError(message)
    if gid == 0:
        message = "asks to run the program in root's group; choose another gid"
        raise ValueError(message)
    if max(uid, gid) > MAX_ID:
        message = f"has an id above {MAX_ID}"
        raise ValueError(message)
    return text.strip()


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    message = 'is neither "1" nor "0"'
    raise ValueError(message)


def _choice(options: tuple[str, ...], *, upper: bool = False) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip().upper() if upper else text.strip().lower()
        if value not in options:
            message = f"is not one of {', '.join(options)}"
            raise ValueError(message)
        return value

    return parse


def _text(text: str) -> str:
    return text.strip()


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("names the home directory of a user there is none of") from None  # noqa: EM101


@dataclass(frozen=True)
class _Setting:
    """How one field is named outside and parsed."""

    variable: str
    parse: Callable[[str], object]


_SETTINGS: Mapping[str, _Setting] = {
    "runtime": _Setting("MCP_BRIDGE_RUNTIME", _text),
    "oci_runtime": _Setting("MCP_BRIDGE_OCI_RUNTIME", _text),
    "image": _Setting("MCP_BRIDGE_IMAGE", _text),
    "timeout": _Setting("MCP_BRIDGE_TIMEOUT", _seconds),
    "max_timeout": _Setting("MCP_BRIDGE_MAX_TIMEOUT", _seconds),
    "memory": _Setting("MCP_BRIDGE_MEMORY", _memory),
    "pids": _Setting("MCP_BRIDGE_PIDS", _integer(MIN_PIDS, MAX_PIDS)),
    "cpus": _Setting("MCP_BRIDGE_CPUS", _cpus),
    "container_user": _Setting("MCP_BRIDGE_CONTAINER_USER", _user),
    "runtime_idle_timeout": _Setting("MCP_BRIDGE_RUNTIME_IDLE_TIMEOUT", _seconds),
    "state_dir": _Setting("MCP_BRIDGE_STATE_DIR", _path),
    "output_mode": _Setting("MCP_BRIDGE_OUTPUT_MODE", _choice(get_args(OutputMode))),
    "log_level": _Setting("MCP_BRIDGE_LOG_LEVEL", _choice(get_args(LogLevel), upper=True)),
    "profile": _Setting("MCP_BRIDGE_PROFILE", _choice(get_args(Profile))),
    "warm": _Setting("MCP_BRIDGE_WARM", _integer(0, MAX_WARM)),
    "servers_config": _Setting("MCP_SERVERS_CONFIG", _path),
    "allow_self_server": _Setting("MCP_BRIDGE_ALLOW_SELF_SERVER", _boolean),
    "project_servers": _Setting("MCP_BRIDGE_PROJECT_SERVERS", _choice(get_args(ProjectServers))),
    "call_timeout": _Setting("MCP_BRIDGE_CALL_TIMEOUT", _seconds),
    "start_timeout": _Setting("MCP_BRIDGE_START_TIMEOUT", _seconds),
}


def load(
    flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings in force.

    Args:
        flags: Field name to text, for the flags that were given.
        environ: Stands in for the process's environment.

    Raises:
        SettingsError: A value does not parse; the text names the flag, variable or key.
    """
    environment = dict(os.environ if environ is None else environ)
    values: dict[str, object] = {}
    for key, (text, place) in _from_file(environment).items():
        values[key] = _parse(key, text, place)
    for key, setting in _SETTINGS.items():
        # An empty variable is how shells and client configurations unset one.
        if environment.get(setting.variable, "") != "":
            values[key] = _parse(key, environment[setting.variable], setting.variable)
    for key, text in (flags or {}).items():
        values[key] = _parse(key, text, f"--{key.replace('_', '-')}")
    values.setdefault("state_dir", _default_state_dir(environment))
    settings = Settings(environ=environment, **cast("dict[str, Any]", values))
    if settings.timeout > settings.max_timeout:
        if "timeout" in values:
            message = (
                f"The timeout of {settings.timeout:g} s is beyond the maximum of "
                f"{settings.max_timeout:g} s."
            )
            raise SettingsError(message, remedy="Raise MCP_BRIDGE_MAX_TIMEOUT or lower it.")
        settings = _replace(settings, timeout=settings.max_timeout)
    return settings


def _replace(settings: Settings, **changes: object) -> Settings:
    current = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return Settings(**{**current, **changes})


def _parse(key: str, text: str, place: str) -> object:
    try:
        return _SETTINGS[key].parse(text)
    except ValueError as error:
        message = f"{place}: {text!r} {error}."
        raise SettingsError(message) from None


def config_path(environ: Mapping[str, str]) -> Path:
    """Return where the settings file is looked for."""
    if environ.get("MCP_BRIDGE_CONFIG"):
        try:
            return _path(environ["MCP_BRIDGE_CONFIG"])
        except ValueError as error:
            message = f"MCP_BRIDGE_CONFIG: {environ['MCP_BRIDGE_CONFIG']!r} {error}."
            raise SettingsError(message) from None
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"


def _default_state_dir(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    # The XDG specification says that relative values are to be ignored.
    base = Path(environ.get(variable, ""))
    if not base.is_absolute():
        base = home(environ) / fallback
    return base / "mcp-code-bridge"


def runtime_dir(settings: Settings) -> Path:
    """Return the directory for sockets: the session's own, else in the state, else a short one.

    Whoever uses it makes it private and checks that it is.
    """
    base = Path(settings.environ.get("XDG_RUNTIME_DIR", ""))
    if base.is_absolute() and base.is_dir() and os.access(base, os.W_OK):
        found = base / "mcp-code-bridge"
    else:
        found = settings.state_dir / "run"
    if len(os.fsencode(found)) > MAX_RUNTIME_DIR_BYTES:
        found = Path(tempfile.gettempdir()) / f"mcp-code-bridge-{os.getuid()}"
    return found


def home(environ: Mapping[str, str]) -> Path:
    """Return the user's home directory as the given environment sees it."""
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _from_file(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return field name to its text and place, from `config.toml` if there is one."""
    path = config_path(environ)
    try:
        if not path.is_file() and path.exists():
            # A pipe or a device would be waited for, or read for ever.
            message = f"{path} is not a regular file."
            raise SettingsError(message)
        if path.stat().st_size > MAX_CONFIG_BYTES:
            message = f"{path} is larger than {MAX_CONFIG_BYTES} bytes."
            raise SettingsError(message)
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if environ.get("MCP_BRIDGE_CONFIG"):
            message = f"MCP_BRIDGE_CONFIG names {path}, which does not exist."
            raise SettingsError(message) from None
        return {}
    except (OSError, ValueError) as error:
        message = f"{path} could not be read: {error}."
        raise SettingsError(message) from None
    values: dict[str, tuple[str, str]] = {}
    for key, value in document.items():
        place = f"{path}: {key}"
        if key not in _SETTINGS:
            message = f"{place} is not a setting. Known: {', '.join(sorted(_SETTINGS))}."
            raise SettingsError(message)
        if isinstance(value, bool):
            values[key] = ("1" if value else "0", place)
        elif isinstance(value, str | int | float):
            values[key] = (str(value), place)
        else:
            message = f"{place} must be a text, a number or a boolean."
            raise SettingsError(message)
    return values
