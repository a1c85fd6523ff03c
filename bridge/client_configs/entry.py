"""Builds and recognises the bridge's entry in a client's file: command, variables, time limits."""

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
from bridge.discovery.precedence import OWN_NAME, starts_bridge
from bridge.errors import UsageError
from bridge.guest.schema.schemas import as_list, as_mapping

NAME = OWN_NAME  # The default name of the bridge's entry.

PROGRAM = "mcp-code-bridge"

CALL_SECONDS = 780
"""The longest call: the default limits of the wait for a slot (120 s) and of a run with its tools
(600 s), and a minute to start the sandbox and save results."""

START_SECONDS = 60
"""The longest start: a busy machine reads a hundred files of a slow home directory."""

INHERITED = (
    "PATH", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "DOCKER_HOST",
    "CONTAINER_HOST", "MCP_BRIDGE_CONFIG", "MCP_BRIDGE_STATE_DIR",
)  # fmt: skip
"""Variables that decide which engines, servers and settings the bridge finds. A client started from
a desktop has another PATH and none of the others. Some clients pass no variables on."""

_NETWORK = re.compile(r"(?i)SSL_CERT_\w+|\w+_CA_(CERTS|BUNDLE)|(ALL|HTTPS?|NO)_PROXY|UV_(?!RUN)\w+")
_SECRET = re.compile(r"://[^/]*@|PASSWORD|USERNAME|TOKEN", re.IGNORECASE)


def network_variables(environ: Mapping[str, str], *, secrets: bool) -> dict[str, str]:
    """Return the proxy, certificate and uv variables, with or without those that hold a login."""
    return {
        name: value
        for name, value in environ.items()
        if value and _NETWORK.fullmatch(name) and (secrets or not _SECRET.search(f"{name}={value}"))
    }


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The bridge's entry in a file: a command, or an address with a bearer token.

    An empty name keeps the name of an existing entry; a new one gets `NAME`.
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
    """Return the entry that starts this installation of the bridge, or connects to an address."""
    if url:
        return Entry(name=name, url=url, token=token)
    command, *args = own_command(sys.argv[0], environ)
    env = {key: environ[key] for key in INHERITED if environ.get(key)} | {**(network or {})}
    for key in env.keys() & {"MCP_BRIDGE_CONFIG", "MCP_BRIDGE_STATE_DIR"}:
        # The client starts the bridge in another directory.
        env[key] = str(Path(env[key]).expanduser().absolute())
    return Entry(name=name, command=command, args=(*args, "serve"), env=env)


def own_command(started: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that starts this installation of the bridge from any directory."""
    script = Path(shutil.which(started, path=environ.get("PATH", "")) or started)
    if script.name != PROGRAM:
        # After `python -m bridge`, and in tests, the script is next to the interpreter.
        script = Path(sys.executable).parent / PROGRAM
    if not script.is_file():
        return (sys.executable, "-m", "bridge")
    script = Path(os.path.abspath(script))  # noqa: PTH100 - keeps a link, whose target may move
    # uv may remove the environments in its cache, so `uvx` has to find the bridge again.
    cache, real = environ.get("UV_CACHE_DIR", ""), Path(os.path.realpath(script))
    cached = any(part.startswith(("archive-v", "environments-v")) for part in real.parts)
    if cached or (cache and real.is_relative_to(os.path.realpath(cache))):
        uv = environ.get("UV", "")
        uvx = shutil.which("uvx", path=environ.get("PATH", ""))
        return (uvx or (str(Path(uv).with_name("uvx")) if uv else "uvx"), PROGRAM)
    return (str(script),)


def entry_value(target: Target, entry: Entry, name: str, *, second: bool) -> dict[str, object]:
    """Return the entry in the client's format; `second` selects OpenCode's second format."""
    writer, dialect = target.writer, target.location.dialect
    if entry.url and writer.stdio_only:
        message = f"{writer.name} does not support servers with an address."
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
        fields = normalize(as_mapping(value), dialect)
    except MalformedError:
        return ()
    command = first_used(fields, dialect.command_keys)
    words = [fields[command] if command else None, *as_list(fields.get("args"))]
    return tuple(word for word in words if isinstance(word, str))


def address(value: object, dialect: Dialect) -> str:
    texts = [as_mapping(value).get(key) for key in dialect.url_keys]
    return next((text for text in texts if isinstance(text, str)), "")


def is_local(url: str) -> bool:
    """Return whether an address is on this machine, where this user's bridge may run."""
    with suppress(ValueError):
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def shown_address(url: str) -> str:
    """Mask a URL's login, query and fragment."""
    return re.sub(r"[?#].*", "?•••", re.sub(r"//[^/?#]*@", "//•••@", url), flags=re.DOTALL)


def is_bridge(name: str, value: object, dialect: Dialect) -> bool:
    """Return whether an entry is the bridge: by its command, or by `NAME` if it has an address."""
    if words := command_line(value, dialect):
        return starts_bridge(words[0], words[1:])
    return name == NAME and bool(address(value, dialect))
