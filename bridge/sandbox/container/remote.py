"""Engine addresses in docker's and podman's variables and docker's context.

It imports no engine's client library, which is slow to import.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bridge.errors import EngineDownError, SandboxError

DOCKER_SOCKET = "/var/run/docker.sock"  # docker's default.

_ADDRESS = re.compile(
    r"ssh://(?:(?P<user>[\w.-]+)@)?(?P<host>[\w.-]+|\[[\w:.]+\])(?::(?P<port>\d{1,5}))?"
    r"(?P<path>/[^\s:%$]*)?",
    re.ASCII,
)

_OPTIONS = (
    # No user can answer a question. A silent connection ends after six seconds.
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10"),
    # At this level ssh reports a connection that the other end refuses.
    "LogLevel=INFO",
    *("ServerAliveInterval=2", "ServerAliveCountMax=3"),
    # The user's configuration may have other values for their own sessions.
    *("ControlMaster=no", "ControlPath=none", "ForwardAgent=no", "ForwardX11=no"),
    *("PermitLocalCommand=no", "RemoteCommand=none", "IgnoreUnknown=ForkAfterAuthentication"),
    "ForkAfterAuthentication=no",
)


@dataclass(frozen=True, kw_only=True)
class SshTarget:
    """An engine's socket on another machine."""

    destination: str  # `user@address`, or a `Host` of OpenSSH's configuration.
    port: str  # Empty for OpenSSH's default.
    socket: str
    identity: str = ""  # A key's file; empty for OpenSSH's default.

    @property
    def login(self) -> str:
        return shlex.join(["ssh", *(["-p", self.port] if self.port else []), self.destination])

    def argv(self, socket: Path) -> list[str]:
        # No terminal, no command, and no Kerberos tickets for the host.
        argv = ["ssh", "-N", "-T", "-k", "-L", f"{socket}:{self.socket}"]
        argv += [word for option in _OPTIONS for word in ("-o", option)]
        argv += ["-p", self.port] if self.port else []
        argv += ["-i", self.identity, "-o", "IdentitiesOnly=yes"] if self.identity else []
        return [*argv, "--", self.destination]

    def failure(self, said: str) -> SandboxError:
        detail = " ".join(said.split())[-500:] or "it gave no answer in time"
        message = f"{self.destination} cannot be reached over SSH: {detail}."
        if "IDENTIFICATION HAS CHANGED" in said:
            message = f"{self.destination} has another host key than the known one."
            remedy = "An attacker may be in between. Compare the key with the host's. If it was "
            host = self.destination.rpartition("@")[2]
            known = f"[{host}]:{self.port}" if self.port else host
            remedy += f"renewed, run `ssh-keygen -R {shlex.quote(known)}`, then `{self.login}`."
        elif "ost key" in said:
            remedy = f"Run `{self.login}` once, and compare the displayed key with the host's."
        elif "open failed" in said:
            message = f"{self.destination} does not forward {self.socket}: {detail}."
            remedy = f"Try `{self.login} ls -l {self.socket}`; the address can name another path."
        elif "ermission denied" in said:
            remedy = "Put the public key into ~/.ssh/authorized_keys there, and name the private "
            remedy += "one in OpenSSH's configuration."
            return SandboxError(message, remedy=remedy, code="engine_permission")
        else:
            remedy = f"Try `{self.login}`."
        return EngineDownError(message, remedy=remedy)


def ssh_target(url: str, origin: str, engine: str, identity: str = "") -> SshTarget:
    """Parse an ssh:// address. An error's message has no password."""
    match = _ADDRESS.fullmatch(url)
    path = match and match["path"]
    if match is None or (engine == "podman" and not path) or match["host"].startswith("-"):
        message = f"{origin} is no address of {engine} over SSH."
        remedy = "Use ssh://USER@HOST:PORT/PATH/OF/THE/SOCKET, without a password; user and port"
        remedy += " may be left out" + (", and docker's path." if engine == "docker" else ".")
        raise EngineDownError(message, remedy=remedy)
    host = match["host"].strip("[]")
    return SshTarget(
        destination=f"{match['user']}@{host}" if match["user"] else host,
        port=match["port"] or "",
        socket=path if path and path != "/" else DOCKER_SOCKET,
        identity=identity,
    )


def named_address(
    kind: Literal["docker", "podman"], environ: Mapping[str, str]
) -> tuple[str, str] | None:
    variable = "DOCKER_HOST" if kind == "docker" else "CONTAINER_HOST"
    if environ.get(variable):
        return environ[variable], variable
    context = _context_address(environ) if kind == "docker" else None
    return (context, "the docker context") if context else None


def names_another_machine(kind: str, environ: Mapping[str, str]) -> bool:
    """Return whether the environment names an engine without a socket on this machine."""
    if kind == "podman" and environ.get("CONTAINER_CONNECTION"):
        return True
    named = named_address("docker" if kind == "docker" else "podman", environ)
    return named is not None and named[0].partition("://")[0] in ("ssh", "tcp", "http", "https")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _context_address(environ: Mapping[str, str]) -> str | None:
    """Return the address of the current docker context; None for the default one."""
    config = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or "/") / ".docker")
    try:
        name = environ.get("DOCKER_CONTEXT") or _read(config / "config.json")["currentContext"]
        if name == "default":
            return None
        digest = hashlib.sha256(name.encode()).hexdigest()
        meta = _read(config / "contexts" / "meta" / digest / "meta.json")
        host = meta["Endpoints"]["docker"]["Host"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return host if isinstance(host, str) and host else None


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
