"""One entry of a configuration to one `ServerSpec`, or to the reason why not.

Owns the fields of an entry: their types, their variables, their bounds. Does not know where
entries stand in a file; `parse.py` does.

Fields. `type`, `command`, `args`, `env`, `url`, `headers` as in Claude Code. `cwd`: the server's
working directory, relative to the configuration file's directory, with `~` for home. `description`:
shown when servers are listed. `disabled: true` or `enabled: false`: not to be used. `timeout`:
milliseconds for one call, as in Claude Code, where less than a second counts as a mistake.
`tool_timeout_sec` and `startup_timeout_sec`: seconds for a call and for the start. Other fields are
left alone: clients keep things of their own there.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard
from urllib.parse import urlsplit

from bridge.discovery.clients import Dialect
from bridge.discovery.documents import kind, repeated_keys
from bridge.discovery.expand import expand
from bridge.discovery.report import ConfigWarning, SkippedServer, shown
from bridge.model import ServerSpec, Source, Transport

MAX_NAME_CHARS = 200
"""A name appears in tool listings and aliases; what is longer is an accident."""

MAX_DESCRIPTION_CHARS = 2000
"""A description goes to the model with every listing."""

MAX_ITEMS = 4096
"""Arguments, variables or headers of one entry; execve refuses far fewer when they are long."""

MIN_TIMEOUT_MS = 1000
"""Claude Code's own threshold: less was surely meant as seconds."""

MAX_TIMEOUT_SECONDS = 7 * 24 * 3600
"""Longer than any call is worth waiting for, and well inside what clocks can add."""

_MAX_WHOLE_NUMBER = 10**18
"""Beyond this a number's text is long, or refused by Python; nobody writes such an argument."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories with no shape of their own: they can break a line or disguise a name."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the fields of an entry are read against.

    Attributes:
        path: The file, absolute; its directory is what a relative `cwd` starts from.
        environ: Where variables come from.
        home: What `~` stands for.
    """

    client: str
    scope: str
    path: str
    dialect: Dialect
    environ: Mapping[str, str]
    home: str


class _UnusableError(ValueError):
    """This entry cannot become a server; the message says why."""


@dataclass
class _Reader:
    """Reads the fields of one entry and gathers what there is to warn about."""

    setting: Setting
    key: str
    warnings: list[ConfigWarning] = field(default_factory=list)

    def warn(self, label: str, reason: str) -> None:
        """Note something about one field; an empty label means the entry as a whole."""
        key = ".".join(part for part in (self.key, label) if part)
        self.warnings.append(ConfigWarning(path=self.setting.path, key=key, reason=reason))

    def text(self, value: object, label: str, *, scalars: bool = False) -> str:
        """One string, with its variables put in."""
        if scalars and self.setting.dialect.scalars_as_text:
            value = _scalar_text(value)
        if not isinstance(value, str):
            msg = f"{label} must be a string, not {kind(value)}"
            raise _UnusableError(msg)
        expanded, unset = expand(value, self.setting.environ)
        for name in unset:
            self.warn(
                label,
                f"the variable {shown(name)} is not set; ${{{shown(name)}}} is left as written",
            )
        if "\0" in expanded or any("\ud800" <= char <= "\udfff" for char in expanded):
            msg = f"{label} holds a character that cannot be passed on"
            raise _UnusableError(msg)
        return expanded

    def texts(self, value: object, label: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            msg = f"{label} must be a list of strings, not {kind(value)}"
            raise _UnusableError(msg)
        _check_count(value, label)
        return tuple(
            self.text(item, f"{label}[{index}]", scalars=True) for index, item in enumerate(value)
        )

    def table(self, value: object, label: str) -> dict[str, str]:
        if not isinstance(value, Mapping):
            msg = f"{label} must be an object of strings, not {kind(value)}"
            raise _UnusableError(msg)
        _check_count(value, label)
        if sentence := repeated_keys(value):
            self.warn(label, sentence)
        return {
            key: self.text(item, f"{label}.{shown(key)}", scalars=True)
            for key, item in value.items()
        }


def read_entry(
    name: str, value: object, *, key: str, setting: Setting
) -> tuple[ServerSpec | SkippedServer, tuple[ConfigWarning, ...]]:
    """What one entry of a file means, and what its owner should know about it."""
    source = Source(client=setting.client, scope=setting.scope, path=setting.path, key=key)
    reader = _Reader(setting=setting, key=key)
    try:
        _check_name(name)
        if not isinstance(value, Mapping):
            msg = f"must be an object, not {kind(value)}"
            raise _UnusableError(msg)
        if sentence := repeated_keys(value):
            reader.warn("", sentence)
        if reason := _turned_off(value):
            off = SkippedServer(name=name, source=source, reason=reason, holds_name=True)
            return off, tuple(reader.warnings)
        spec = _read_fields(name, value, source, reader)
    except _UnusableError as error:
        reason = str(error)
        reader.warn("", f"skipped: {reason}")
        return SkippedServer(name=name, source=source, reason=reason), tuple(reader.warnings)
    return spec, tuple(reader.warnings)


def _read_fields(
    name: str, entry: Mapping[str, object], source: Source, reader: _Reader
) -> ServerSpec:
    transport = _transport(entry, reader.setting.dialect)
    description = _description(entry, reader)
    start_timeout = _seconds(entry, "startup_timeout_sec", reader)
    call_timeout = _call_timeout(entry, reader)
    if transport != "stdio":
        return ServerSpec(
            name=name,
            transport=transport,
            source=source,
            url=_url(entry, reader),
            headers=_headers(entry, reader),
            description=description,
            start_timeout=start_timeout,
            call_timeout=call_timeout,
        )
    command = reader.text(entry.get("command"), "command")
    if not command.strip():
        msg = "command is empty"
        raise _UnusableError(msg)
    return ServerSpec(
        name=name,
        transport=transport,
        source=source,
        command=command,
        args=reader.texts(entry["args"], "args") if "args" in entry else (),
        env=_env(entry, reader),
        cwd=_cwd(entry, reader),
        description=description,
        start_timeout=start_timeout,
        call_timeout=call_timeout,
    )


def _check_name(name: str) -> None:
    if not name.strip():
        msg = "its name is empty"
        raise _UnusableError(msg)
    if len(name) > MAX_NAME_CHARS:
        msg = f"its name is longer than {MAX_NAME_CHARS} characters"
        raise _UnusableError(msg)
    if any(unicodedata.category(char) in _HIDDEN for char in name):
        msg = "its name holds control or invisible characters"
        raise _UnusableError(msg)


def _check_count(value: list[object] | Mapping[str, object], label: str) -> None:
    if len(value) > MAX_ITEMS:
        msg = f"{label} has more than {MAX_ITEMS} members"
        raise _UnusableError(msg)


def _turned_off(entry: Mapping[str, object]) -> str:
    for name, off in (("disabled", True), ("enabled", False)):
        if name not in entry:
            continue
        value = entry[name]
        if not isinstance(value, bool):
            msg = f"{name} must be true or false, not {kind(value)}"
            raise _UnusableError(msg)
        if value is off:
            return f'turned off by "{name}": {str(off).lower()}'
    return ""


def _transport(entry: Mapping[str, object], dialect: Dialect) -> Transport:
    if "type" in entry:
        named = entry["type"]
        if not isinstance(named, str):
            msg = f"type must be a string, not {kind(named)}"
            raise _UnusableError(msg)
        transport = dialect.transports.get(named)
        if transport is None:
            known = ", ".join(dialect.transports)
            msg = f'type "{shown(named)}" is not supported; supported are {known}'
            raise _UnusableError(msg)
        return transport
    if "command" in entry:
        return "stdio"
    if _first(entry, dialect.url_keys) is not None:
        if dialect.untyped_url is None:
            msg = 'it has a url but no type; add "type": "http" (or "sse"), as Claude Code asks'
            raise _UnusableError(msg)
        return dialect.untyped_url
    msg = "it has neither command nor url"
    raise _UnusableError(msg)


def _url(entry: Mapping[str, object], reader: _Reader) -> str:
    label = _first(entry, reader.setting.dialect.url_keys)
    if label is None:
        msg = "its type needs a url"
        raise _UnusableError(msg)
    url = reader.text(entry[label], label)
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good or any(char.isspace() or not char.isprintable() for char in url):
        # The url itself stays out of the message: it may carry a token.
        msg = f"{label} must be http:// or https:// and a host, without spaces"
        raise _UnusableError(msg)
    return url


def _headers(entry: Mapping[str, object], reader: _Reader) -> dict[str, str]:
    label = _first(entry, reader.setting.dialect.header_keys)
    if label is None:
        return {}
    headers = reader.table(entry[label], label)
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            msg = f'{label} has a member named "{shown(name)}", which is no header name'
            raise _UnusableError(msg)
        if _HEADER_BREAKS.search(value):
            msg = f"{label}.{shown(name)} holds a line break or control character"
            raise _UnusableError(msg)
    return headers


def _env(entry: Mapping[str, object], reader: _Reader) -> dict[str, str]:
    label = _first(entry, reader.setting.dialect.env_keys)
    if label is None:
        return {}
    env = reader.table(entry[label], label)
    for name in env:
        if not name or "=" in name or any(unicodedata.category(c) in _HIDDEN for c in name):
            msg = f'{label} has a member named "{shown(name)}", which no variable can be called'
            raise _UnusableError(msg)
    return env


def _cwd(entry: Mapping[str, object], reader: _Reader) -> str | None:
    if entry.get("cwd") is None:
        return None
    cwd = reader.text(entry["cwd"], "cwd")
    if not cwd.strip():
        return None
    home = reader.setting.home
    if cwd == "~" or cwd.startswith(("~/", "~\\")):
        return str(Path(home, cwd[2:]))
    return str(Path(reader.setting.path).parent / cwd)


def _description(entry: Mapping[str, object], reader: _Reader) -> str:
    value = entry.get("description")
    if value is None:
        return ""
    if not isinstance(value, str):
        reader.warn("description", f"ignored: it must be a string, not {kind(value)}")
        return ""
    readable = value.encode("utf-8", "replace").decode("utf-8")
    return readable.strip()[:MAX_DESCRIPTION_CHARS]


def _call_timeout(entry: Mapping[str, object], reader: _Reader) -> float | None:
    if (seconds := _seconds(entry, "tool_timeout_sec", reader)) is not None:
        return seconds
    milliseconds = entry.get("timeout")
    if milliseconds is None:
        return None
    if not _is_finite_number(milliseconds) or milliseconds < MIN_TIMEOUT_MS:
        reader.warn(
            "timeout",
            f"ignored: it is in milliseconds and must be a number of at least {MIN_TIMEOUT_MS}",
        )
        return None
    return float(min(milliseconds, MAX_TIMEOUT_SECONDS * 1000)) / 1000


def _seconds(entry: Mapping[str, object], label: str, reader: _Reader) -> float | None:
    value = entry.get(label)
    if value is None:
        return None
    if not _is_finite_number(value) or value <= 0:
        reader.warn(label, "ignored: it must be a number of seconds greater than 0")
        return None
    return float(min(value, MAX_TIMEOUT_SECONDS))


def _is_finite_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _first(entry: Mapping[str, object], labels: tuple[str, ...]) -> str | None:
    return next((label for label in labels if label in entry), None)


def _scalar_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < _MAX_WHOLE_NUMBER:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return value
