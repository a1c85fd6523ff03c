"""Profiles: named sets of settings, built in or the user's own. Pure.

"standard" changes nothing. "strict" only narrows: no flag, variable or key can widen its caps. A
`[profiles.NAME]` table of `config.toml` overrides the file's top-level values, and variables and
flags override it. With `extends = "strict"` the strict caps apply, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from bridge.errors import InvalidRequestError, SettingsError
from bridge.model import Json
from bridge.settings import fields
from bridge.settings.values import GuardMode, Settings

BUILT_IN = ("standard", "strict")

KEYS = frozenset({
    "allow_directories", "allow_packages", "call_timeout", "container_user", "cpus", "guard",
    "guard_denies", "image", "listed_servers_only", "max_timeout", "memory", "oci_runtime",
    "packages", "pids", "project_servers", "runtime", "runtime_order", "timeout",
})  # fmt: skip
"""The settings that a profile may set: those of running programs."""


@dataclass(frozen=True, kw_only=True)
class ProfileSpec:
    """The settings of one profile, which is built in or a `[profiles.NAME]` table.

    Keys:
        extends: The base profile: "standard" or "strict".

    Attributes:
        strict: Whether it is or extends "strict".
    """

    strict: bool = False
    values: Mapping[str, Json] = field(default_factory=dict)


def parse_profiles(tables: Json, place: str) -> dict[str, ProfileSpec]:
    found = {name: ProfileSpec(strict=name == "strict") for name in BUILT_IN}
    parse: dict[str, fields.Parse] = dict.fromkeys(KEYS, lambda value, place: value)
    parse["extends"] = fields.choice(BUILT_IN)
    for name, table, where in fields.named_tables(tables, place):
        if name in BUILT_IN:
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
