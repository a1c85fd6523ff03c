"""The bridge as an entry of a client's file: how it is started, and how each client spells that."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bridge.client_configs.writers import Target
from bridge.discovery.dialect import Dialect
from bridge.discovery.documents import MalformedError
from bridge.discovery.entries import normalize
from bridge.discovery.fields import first_used
from bridge.discovery.self_reference import OWN_NAME, starts_bridge
from bridge.errors import UsageError

NAME = OWN_NAME  # What the bridge is called in clients' files, unless a person says otherwise.

PROGRAM = "mcp-code-bridge"

CALL_SECONDS = 780
"""Longest call of the bridge: the default limits of the wait for a slot (120 s) and of a run
with its tools (600 s), and a minute for the sandbox to start and for its results to be kept."""

START_SECONDS = 60
"""Longest start: a hundred files of a slow home directory to read, on a machine that is busy."""

HANDED_ON = (
    "PATH", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "DOCKER_HOST",
    "CONTAINER_HOST", "MCP_BRIDGE_CONFIG", "MCP_BRIDGE_STATE_DIR",
)  # fmt: skip
"""Variables that decide which engines, servers and settings the bridge finds. Clients started from
a desktop have another PATH and none of the rest; some hand on none of their own."""


_NETWORK = re.compile(r"SSL_CERT_(FILE|DIR)|(ALL|HTTPS?|NO)_PROXY|UV_(?!RUN_)\w+", re.IGNORECASE)
_SECRET = re.compile(r"://[^/]*@|PASSWORD|USERNAME|TOKEN", re.IGNORECASE)


def network_variables(environ: Mapping[str, str], *, secrets: bool) -> dict[str, str]:
    """Return how uv and the bridge reach the network, by variable, with or without logins."""
    return {
        name: value
        for name, value in environ.items()
        if value and _NETWORK.fullmatch(name) and (secrets or not _SECRET.search(f"{name}={value}"))
    }


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The bridge in a file: a command, or an address with the token that requests carry.

    Its name is empty for the one that it has there, or else `NAME`.
    """

    name: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    token: str = field(default="", repr=False)


def own_entry(
    environ: Mapping[str, str],
    *,
    name: str = "",
    url: str = "",
    token: str = "",
    network: Mapping[str, str] | None = None,
) -> Entry:
    """Return the entry that starts this very bridge, or that connects to an address."""
    if url:
        return Entry(name=name, url=url, token=token)
    command, *args = own_command(sys.argv[0], environ)
    env = {key: environ[key] for key in HANDED_ON if environ.get(key)} | {**(network or {})}
    for key in env.keys() & {"MCP_BRIDGE_CONFIG", "MCP_BRIDGE_STATE_DIR"}:
        env[key] = str(Path(env[key]).expanduser().absolute())  # A client's cwd is another.
    return Entry(name=name, command=command, args=(*args, "serve"), env=env)


def own_command(started: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return how this bridge is started again, from any directory."""
    script = Path(shutil.which(started, path=environ.get("PATH", "")) or started)
    if script.name != PROGRAM:
        # `python -m bridge`, or a test: the script is beside the interpreter.
        script = Path(sys.executable).parent / PROGRAM
    if not script.is_file():
        return (sys.executable, "-m", "bridge")
    script = Path(os.path.abspath(script))  # noqa: PTH100 - a link stays, its target may move
    # uv made some environments for once, and may remove them: archive-v0 has its format's number.
    cache, real = environ.get("UV_CACHE_DIR", ""), Path(os.path.realpath(script))
    cached = any(part.startswith(("archive-v", "environments-v")) for part in real.parts)
    if cached or (cache and real.is_relative_to(os.path.realpath(cache))):
        beside = environ.get("UV", "")
        found = shutil.which("uvx", path=environ.get("PATH", ""))
        return (found or (str(Path(beside).with_name("uvx")) if beside else "uvx"), PROGRAM)
    return (str(script),)


def entry_value(target: Target, entry: Entry, name: str, *, second: bool) -> dict[str, object]:
    """Return the entry as the client spells it; `second` is for OpenCode's second format."""
    writer, dialect = target.writer, target.location.dialect
    if entry.url and writer.stdio_only:
        message = f"{writer.name} takes no address of a server."
        raise UsageError(message, remedy="Install it without --http.")
    value: dict[str, object] = {"name": name} if writer.named else {}
    if kind := writer.kinds[bool(entry.url)]:
        value[dialect.type_keys[0]] = kind
    if entry.url:
        value[writer.url_key or dialect.url_keys[0]] = entry.url
        if entry.token:
            above, _, key = dialect.header_keys[0].rpartition(".")
            headers = {key: {"Authorization": f"Bearer {entry.token}"}}
            value |= {above: headers} if above else headers
    else:
        key = dialect.command_keys[0]
        command: dict[str, object] = {key: entry.command, "args": list(entry.args)}
        value |= {key: [entry.command, *entry.args]} if dialect.command_list else command
        value |= {dialect.env_keys[0]: dict(entry.env)} if entry.env else {}
    if second:
        milliseconds = {"startup": START_SECONDS * 1000, "execution": CALL_SECONDS * 1000}
        return {**value, "timeout": milliseconds}
    limits = {}
    if writer.calls:
        limits[writer.calls] = round(CALL_SECONDS / dialect.call_timeouts[writer.calls])
    if writer.starts:
        limits[writer.starts] = round(START_SECONDS / dialect.start_timeouts[writer.starts])
    return {**value, **writer.ours, **limits}


def command_line(value: object, dialect: Dialect) -> tuple[str, ...]:
    try:
        fields = normalize(value, dialect) if isinstance(value, Mapping) else {}
    except MalformedError:
        return ()
    command, args = first_used(fields, dialect.command_keys), fields.get("args")
    words = [fields[command] if command else None, *(args if isinstance(args, list) else ())]
    return tuple(word for word in words if isinstance(word, str))


def address(value: object, dialect: Dialect) -> str:
    texts = [value.get(key) for key in dialect.url_keys] if isinstance(value, Mapping) else []
    return next((text for text in texts if isinstance(text, str)), "")


def is_local(url: str) -> bool:
    """Whether an address is this machine's, where this user's bridge may be."""
    with suppress(ValueError):
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def shown_address(url: str) -> str:
    """Return an address without what may be secret in it."""
    return re.sub(r"[?#].*", "?•••", re.sub(r"//[^/?#]*@", "//•••@", url), flags=re.DOTALL)


def is_bridge(name: str, value: object, dialect: Dialect) -> bool:
    """Whether an entry is this bridge, under any name; one with an address only under its own."""
    words = command_line(value, dialect)
    if words:
        return starts_bridge(words[0], words[1:])
    return name == NAME and bool(address(value, dialect))
