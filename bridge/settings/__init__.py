"""Loads the settings from flags, environment and `config.toml`, in this precedence.

No other package reads `os.environ`. An invalid value is an error that names its place; it is never
replaced by a default.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from bridge.background_instance import directory_of
from bridge.errors import InvalidRequestError, SettingsError
from bridge.model import Json, ProtocolMode, ServerSettings, Share
from bridge.private_files import exposure, make_directory
from bridge.settings import fields, parsers
from bridge.settings.commands import parse_commands
from bridge.settings.dependencies import Dependencies
from bridge.settings.directories import engine_directories, parse_directories, resolve_directories
from bridge.settings.kubernetes import Kubernetes
from bridge.settings.policy import PolicySpec, parse_policy
from bridge.settings.state import CONFIG, SOLE_USER, default_state_dir, require_private
from bridge.settings.state import config_path as config_path
from bridge.settings.state import home as home
from bridge.settings.state import http_token as http_token
from bridge.settings.state import moved_dir as moved_dir
from bridge.settings.state import packages_dir as packages_dir
from bridge.settings.state import prepare_state as prepare_state
from bridge.settings.state import runtime_dir as runtime_dir
from bridge.settings.state import store_of as store_of
from bridge.settings.values import SETTINGS as SETTINGS
from bridge.settings.values import GuardMode as GuardMode
from bridge.settings.values import OutputMode as OutputMode
from bridge.settings.values import RecordPlace as RecordPlace
from bridge.settings.values import Settings as Settings

FLAGS: Mapping[str, str] = {name: each["flag"] for name, each in SETTINGS.items() if each["flag"]}
"""The settings with a flag on every command, and the flag's help."""

PREFIX = "MCP_BRIDGE_"


def variable(name: str) -> str:
    return str(SETTINGS[name]["variable"]) or f"{PREFIX}{name.upper()}"


def defaults() -> Settings:
    """Return the default settings, for commands that run no program of a user."""
    environment = dict(os.environ)
    return Settings(environ=environment, state_dir=default_state_dir(environment))


def load(
    flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Return the effective settings. `flags` and `environ` hold unparsed texts.

    Raises:
        SettingsError: A value is invalid; the message names the flag, variable or key.
    """
    environment = dict(os.environ if environ is None else environ)
    named_file = environment.get(CONFIG, "")
    file = _read_config(config_path(environment), required=bool(named_file))
    own = _from_file(file.values, file)
    profiles = {
        name: _from_file(profile.values, file, f"profiles.{name}")
        for name, profile in file.profiles.items()
    }
    given = {
        key: _parse(key, environment[name], name)
        for key, name in ((key, variable(key)) for key in SETTINGS)
        # Shells and client configurations unset a variable by an empty value.
        if environment.get(name)
    }
    for key, text in (flags or {}).items():
        given[key] = _parse(key, text, f"--{key.replace('_', '-')}")
    named = given.get("profile", own.get("profile"))
    name = str(named.value) if named is not None else "standard"
    if name not in file.profiles:
        place = f"{named.place}: " if named is not None else ""
        known = ", ".join(sorted(file.profiles))
        message = f"{place}there is no profile {name!r:.100}; there are {known}."
        raise SettingsError(message, remedy=f"Define it as [profiles.{name:.64}] in {file.path}.")
    strict = file.profiles[name].strict
    found = {**own, **profiles[name], **given}
    values: dict[str, Any] = {key: each.value for key, each in found.items()}
    if strict:
        # Only the profile itself can allow these; flags and variables can only refuse them.
        for key in ("allow_packages", "allow_directories"):
            allowed, refused = profiles[name].get(key), given.get(key)
            values[key] = (
                allowed is not None and allowed.value and (refused is None or refused.value)
            )
    config_note = _relative_note(named_file, file.path, CONFIG) if named_file else ""
    notes = (config_note, *(each.note for each in found.values()))
    settings = Settings(
        environ=environment,
        strict=strict,
        profiles={
            name: {"strict": file.profiles[name].strict, **{k: v.value for k, v in own.items()}}
            for name, own in profiles.items()
        },
        places={key: each.place for key, each in found.items()},
        notes=tuple(filter(None, notes)),
        **{"state_dir": default_state_dir(environment), **file.tables, **values},
    )
    return _check_places(_with_consistent_timeouts(settings, asked=values))


def _check_places(settings: Settings) -> Settings:
    if os.geteuid() == 0 and exposure(settings.state_dir)[0]:
        # In a container, the home directory may belong to another user.
        with suppress(OSError):
            make_directory(settings.state_dir)
    require_private(settings.state_dir, "The state directory", "MCP_BRIDGE_STATE_DIR")
    if isinstance(settings.store, Path):
        require_private(settings.store, "The store", "MCP_BRIDGE_STORE")
    directories = resolve_directories(
        settings.directories,
        f"{settings.policy.path}: directories",
        home=home(settings.environ),
        private=private_places(settings),
        trusted=trusted_places(settings),
    )
    return replace(settings, directories=directories)


def reload_policy(settings: Settings) -> PolicySpec:
    path = settings.policy.path
    if path is None:
        return settings.policy
    policy: PolicySpec = _read_config(path, required=False).tables["policy"]
    return policy


def _with_consistent_timeouts(settings: Settings, *, asked: Collection[str]) -> Settings:
    if "max_timeout" not in asked:
        settings = replace(settings, max_timeout=max(settings.max_timeout, settings.call_timeout))
    if settings.timeout <= settings.max_timeout:
        return settings
    if "timeout" not in asked:
        return replace(settings, timeout=settings.max_timeout)
    note = (
        f"{settings.place('timeout')}: {settings.timeout:g} s exceeds the maximum of "
        f"{settings.max_timeout:g} s ({settings.place('max_timeout')}), which rises to it."
    )
    return replace(settings, max_timeout=settings.timeout, notes=(*settings.notes, note))


def private_places(settings: Settings) -> tuple[Path, ...]:
    """Return the directories of the bridge and the engines, which no program may access."""
    file = settings.store if isinstance(settings.store, Path) else None
    kept = (file, store_of(settings).blobs.root)
    chosen = (settings.policy.path, settings.skills_dir, packages_dir(settings), *kept)
    kept_servers = moved_dir(settings.environ)
    sockets = (runtime_dir(settings), Path(directory_of(settings.environ)))
    own = (settings.state_dir, *sockets, kept_servers, *filter(None, chosen))
    return (*own, *engine_directories(settings.environ))


def trusted_places(settings: Settings) -> tuple[Path, ...]:
    """Return the paths that the bridge executes or trusts; no program may write to them."""
    code = (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[1])
    named = (settings.servers_config, settings.dependencies.directory, settings.packages)
    return (*code, *filter(None, named))


def writable_places(settings: Settings) -> tuple[Path, ...]:
    """Return the host directories that programs, commands and packages write to.

    A file in them must not define what the bridge starts.
    """
    offered = (Path(one.path) for one in settings.offered_directories if one.writable)
    written = (
        profile.workspace / path for profile in settings.commands.values() for path in profile.write
    )
    return (*offered, *written, packages_dir(settings), store_of(settings).blobs.root)


OTHER_VARIABLES: Mapping[str, str] = {
    CONFIG: "The settings file, as a whole path.",
    "MCP_BRIDGE_INPUT_": "The value of an input that a server's entry asks for; its name follows.",
    SOLE_USER: "`1` where the bridge's user is the only one, as in a pod: its settings file "
    "and its state directory may be writable for all.",
    "MCP_BRIDGE_TEST_": "Read by the tests of this project.",
}
"""Variables, or prefixes of variables, that are not settings, and their meanings."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = {variable(name).removeprefix(PREFIX) for name in SETTINGS}
    said = []
    for name in sorted(environ):
        key = name.removeprefix(PREFIX)
        if key not in (name, *known) and not name.startswith(tuple(OTHER_VARIABLES)):
            near = parsers.nearest(key, known)
            guess = f" Did you mean {PREFIX}{near}?" if near else ""
            said.append(f"{name} is not a setting and has no effect.{guess}")
    return said


BUILT_IN_PROFILES = ("standard", "strict")

PROFILE_KEYS = frozenset({
    "allow_directories", "allow_packages", "call_timeout", "container_user", "cpus", "guard",
    "guard_denies", "image", "listed_servers_only", "max_timeout", "memory", "oci_runtime",
    "packages", "pids", "project_servers", "runtime", "runtime_order", "timeout",
})  # fmt: skip
"""The settings that a profile may set: those of running programs."""


@dataclass(frozen=True, kw_only=True)
class ProfileSpec:
    """The settings of one profile, which is built in or a `[profiles.NAME]` table.

    "standard" changes nothing. "strict" only narrows: no flag, variable or key can widen its caps.
    A `[profiles.NAME]` table of `config.toml` overrides the file's top-level values, and variables
    and flags override it. With `extends = "strict"` the strict caps apply, too.

    Keys:
        extends: The base profile: "standard" or "strict".

    Attributes:
        strict: Whether it is or extends "strict".
    """

    strict: bool = False
    values: Mapping[str, Json] = field(default_factory=dict)


def parse_profiles(tables: Json, place: str) -> dict[str, ProfileSpec]:
    found = {name: ProfileSpec(strict=name == "strict") for name in BUILT_IN_PROFILES}
    parse: dict[str, fields.Parse] = dict.fromkeys(PROFILE_KEYS, lambda value, place: value)
    parse["extends"] = fields.choice(BUILT_IN_PROFILES)
    for name, table, where in fields.named_tables(tables, place):
        if name in BUILT_IN_PROFILES:
            remedy = f'Give yours another name and extends = "{name}".'
            raise SettingsError(f"{where} is built in and cannot be changed.", remedy=remedy)
        values = fields.record(table, where, parse)
        strict = values.pop("extends", "standard") == "strict"
        found[name] = ProfileSpec(strict=strict, values=values)
    return found


_NARROWER: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(
        ("timeout", "max_timeout", "memory", "pids", "cpus"),
        lambda now, wanted: min(now or wanted, wanted),
    ),
    **dict.fromkeys(("strict", "listed_servers_only"), lambda now, wanted: now or wanted),
    "guard_denies": lambda now, wanted: tuple(dict.fromkeys((*now, *wanted))),
    "guard": lambda *modes: max(modes, key=get_args(GuardMode).index),
}


def narrow(settings: Settings, name: str) -> Settings:
    """Return the settings of a run with a profile: the narrower of both values for each setting.

    Raises an `InvalidRequestError` if it is unknown or sets a value that all runs share.
    """
    if name not in settings.profiles:
        remedy = f"Pass one of: {', '.join(settings.profiles)}."
        raise InvalidRequestError(f"There is no profile {name!r:.100}.", remedy=remedy)
    wanted = dict(settings.profiles[name])
    default = not wanted.get("strict")
    values: dict[str, Any] = {
        key: wanted.pop(key, default) and allowed
        for key, allowed in (
            ("allow_packages", settings.packages_allowed),
            ("allow_directories", bool(settings.offered_directories)),
        )
    }
    for key, value in wanted.items():
        now = getattr(settings, key)
        if key not in _NARROWER and now != value:
            message = f"The profile {name!r} sets `{key}`, which a single run cannot change."
            remedy = f"Leave `profile` out, or start the bridge with MCP_BRIDGE_PROFILE={name}."
            raise InvalidRequestError(message, remedy=remedy)
        values[key] = _NARROWER[key](now, value) if key in _NARROWER else now
    found = replace(settings, **values)
    return replace(found, timeout=min(found.timeout, found.max_timeout))


SERVER_KEYS: Mapping[str, fields.Parse] = {
    "protocol": fields.choice(ProtocolMode),
    "share": fields.choice(Share),
}
"""Keys of a table in `servers`."""


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """The content of a settings file: `tables` holds fields of `Settings`.

    `text` is needed for line numbers in errors.
    """

    path: Path
    text: str = field(repr=False)
    values: Mapping[str, Json]
    profiles: Mapping[str, ProfileSpec]
    tables: Mapping[str, Any]

    def place(self, key: str, table: str = "") -> str:
        """Return the place of a key for error messages: file, line if known, and key."""
        within, line = "", ""
        for number, text in enumerate(self.text.splitlines(), 1):
            if heading := re.match(r"\s*\[([^\[\]]+)\]", text):
                within = heading[1].strip()
            elif within == table and re.match(rf"\s*{re.escape(key)}\s*=", text):
                line = f":{number}"
        return f"{self.path}{line}: {f'{table}.' if table else ''}{key}"


def _read_config(path: Path, *, required: bool) -> ConfigFile:
    text = _text(path, required=required)
    try:
        document: dict[str, Json] = tomllib.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} could not be read: {error}.") from None
    tables = {
        name: parse(document.pop(name, None), f"{path}: {name}") for name, parse in _TABLES.items()
    }
    tables["policy"] = replace(tables["policy"], path=path)
    tables["server_settings"] = tables.pop("servers")
    profiles = tables.pop("profiles")
    return ConfigFile(path=path, text=text, values=document, profiles=profiles, tables=tables)


def _parse_servers(tables: Json, place: str) -> Mapping[str, ServerSettings]:
    return {
        name: ServerSettings(**fields.record(table, fields.below(place, name), SERVER_KEYS))
        for name, table in fields.table(tables, place).items()
    }


_TABLES: Mapping[str, Callable[[Json, str], Any]] = {
    "profiles": parse_profiles,
    "commands": parse_commands,
    "policy": parse_policy,
    "directories": parse_directories,
    "dependencies": fields.fill_with(Dependencies),
    "servers": _parse_servers,
    "kubernetes": fields.fill_with(Kubernetes),
}
"""Tables of the settings file, in addition to the settings."""


def _text(path: Path, *, required: bool) -> str:
    try:
        if not path.is_file() and path.exists():
            # A read of a pipe or device could block forever.
            raise SettingsError(f"{path} is not a regular file.")
        require_private(path, "The settings file", "MCP_BRIDGE_CONFIG")
        return path.read_text("utf-8")
    except FileNotFoundError:
        links = (each for each in (path, *path.parents) if each.is_symlink())
        if dangling := next((each for each in links if not each.exists()), None):
            message = f"{dangling} is a link to {dangling.readlink()}, which does not exist."
            if dangling != path:
                message = f"{path} cannot be read: {message}"
            raise SettingsError(message, remedy="Restore its target, or remove it.") from None
        if required:
            raise SettingsError(f"MCP_BRIDGE_CONFIG names {path}, which does not exist.") from None
        return ""
    except (OSError, ValueError) as error:
        remedy = "Let this user read it, or name another file in MCP_BRIDGE_CONFIG."
        raise SettingsError(f"{path} could not be read: {error}.", remedy=remedy) from None


@dataclass(frozen=True)
class _SettingValue:
    """A setting's value, its place, and a warning if the bridge changed it."""

    value: object
    place: str
    note: str = ""


def _from_file(
    values: Mapping[str, Any], file: ConfigFile, table: str = ""
) -> dict[str, _SettingValue]:
    found: dict[str, _SettingValue] = {}
    for key, value in values.items():
        where = file.place(key, table)
        if key not in SETTINGS:
            known = parsers.suggestion(key, [*SETTINGS, *_TABLES])
            raise SettingsError(f"{where} is not a setting. {known}")
        setting = SETTINGS[key]
        many = isinstance(getattr(Settings, key), tuple) and isinstance(value, list)
        if many and all(isinstance(each, str) for each in value):
            value = ",".join(value)
        boolean = [bool] if setting["parse"] is parsers.boolean else []
        wanted = "true or false" if boolean else "a text or a number"
        parsed = fields.of(setting["parse"], str, int, float, *boolean, wanted=wanted)(value, where)
        found[key] = _SettingValue(parsed, where, _note(key, str(value), parsed, where))
    return found


def _parse(key: str, text: str, place: str) -> _SettingValue:
    value = fields.parse_text(SETTINGS[key]["parse"], text, place)
    return _SettingValue(value, place, _note(key, text, value, place))


def _note(key: str, text: str, value: object, place: str) -> str:
    if SETTINGS[key]["parse"] is parsers.place:
        return _relative_note(text, value, place)
    if key == "pids" and value != int(text):
        return f"{place}: {text} is replaced by the maximum of {value}."
    return ""


RELATIVE = " is relative, so it means "  # In the notes of such paths.


def _relative_note(text: str, value: object, place: str) -> str:
    if parsers.path(text).is_absolute():
        return ""
    return f"{place}: {text!r}{RELATIVE}{value}. A repository may have its own."
