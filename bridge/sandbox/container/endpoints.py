"""The endpoints where an engine may listen, in the order to try them.

They come from docker's and podman's variables, docker's context and podman's connections. This
module imports no engine's client library, which is slow to import.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import shlex
import socket
import ssl
import sys
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bridge.errors import EngineDownError, SandboxError
from bridge.sandbox.container.command_runner import SystemRunner

EngineKind = Literal["docker", "podman"]

_SCHEMES = ("unix", "tcp", "http", "https")


@dataclass(frozen=True, kw_only=True)
class EngineEndpoint:
    url: str  # In the docker SDK's form ("unix:///run/podman/podman.sock").
    origin: str  # Its source, for messages ("DOCKER_HOST").
    explicit: bool = False  # Whether the user names it; then it is the only one.
    certificates: Path | None = None  # For TLS: a directory with ca.pem, cert.pem and key.pem.
    verify: bool = True  # Whether to check the engine's certificate.
    target: SshTarget | None = None  # The target of an ssh:// address, which needs a forward.
    remote: bool = False  # Whether it is a forwarded socket of another machine.

    @property
    def elsewhere(self) -> bool:
        return self.remote or self.socket_path is None

    @property
    def exposed(self) -> bool:
        """Whether its traffic crosses a network without TLS or SSH."""
        plain = self.certificates is None and self.url.startswith(("tcp://", "http://"))
        return plain and not is_loopback(self.address[0])

    @property
    def socket_path(self) -> Path | None:
        scheme, _, rest = self.url.partition("://")
        return Path("/" + rest.lstrip("/")) if scheme == "unix" else None

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.partition("://")[2].partition("/")[0].rpartition(":")
        return host.strip("[]"), int(port or 2375)

    def connect(self, seconds: float) -> socket.socket:
        """Connect with a timeout; raise OSError. Blocks."""
        path, here = self.socket_path, self.certificates
        with ExitStack() as stack:
            if path is not None:
                made = stack.enter_context(socket.socket(socket.AF_UNIX))
                made.settimeout(seconds)
                made.connect(str(path))
            else:
                made = stack.enter_context(socket.create_connection(self.address, seconds))
            if path is None and (here is not None or self.url.startswith("https:")):
                context = ssl.create_default_context(cafile=here and here / "ca.pem")
                if here is not None:
                    context.load_cert_chain(here / "cert.pem", here / "key.pem")
                if not self.verify:
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                made = context.wrap_socket(made, server_hostname=self.address[0])
            stack.pop_all()
            return made


def candidates(
    kind: EngineKind, environ: Mapping[str, str], *, uid: int | None = None
) -> tuple[EngineEndpoint, ...]:
    """Return the endpoint that the user names, or the usual ones, likeliest first."""
    named = named_address(kind, environ)
    if named is not None:
        return (_explicit(*named, kind, environ),)
    own, runtime_dir = os.getuid() if uid is None else uid, environ.get("XDG_RUNTIME_DIR")
    places: list[Path] = []
    if kind == "docker":
        places = [Path(DOCKER_SOCKET), *([Path(runtime_dir, "docker.sock")] if runtime_dir else ())]
        for below in (".docker/run", ".docker/desktop", ".colima/default", ".orbstack/run"):
            places.append(_home(environ) / below / "docker.sock")
    # A listening service has its own storage and OCI runtime, so skip it if the user sets others.
    elif not any(environ.get(name) for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF")):
        places = [Path(runtime_dir, "podman/podman.sock")] if runtime_dir else []
        places.append(Path(f"/run/user/{own}" if own else "/run", "podman/podman.sock"))
    urls = dict.fromkeys(f"unix://{path}" for path in places)
    return tuple(EngineEndpoint(url=url, origin="the usual place") for url in urls)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "/")


def _explicit(
    url: str, origin: str, engine: EngineKind, environ: Mapping[str, str], identity: str = ""
) -> EngineEndpoint:
    scheme, separator, rest = url.partition("://")
    if scheme == "ssh":
        identity = identity or environ.get("CONTAINER_SSHKEY", "")
        target = ssh_target(url, origin, engine, identity if engine == "podman" else "")
        return EngineEndpoint(url=url, origin=origin, explicit=True, target=target)
    if not separator or scheme not in _SCHEMES or not rest:
        message = f"{origin} is {url!r}, which is no address of {engine}."
        remedy = "Use unix:///path/to/socket, ssh://user@host or tcp://host:port."
        raise EngineDownError(message, remedy=remedy)
    endpoint = EngineEndpoint(url=url, origin=origin, explicit=True)
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    path = environ.get("DOCKER_CERT_PATH")
    if engine != "docker" or scheme == "unix" or not (verify or path or scheme == "https"):
        return endpoint
    certificates = Path(path) if path else _home(environ) / ".docker"
    return replace(endpoint, certificates=certificates, verify=verify)


async def podman_connection(
    podman: str, environ: Mapping[str, str], run: SystemRunner, *, platform: str = sys.platform
) -> EngineEndpoint | None:
    """Return podman's configured connection, unless it leads to podman's own machine.

    podman uses its default connection only as a remote client: on other systems than Linux, with
    `remote = true` in containers.conf, or if CONTAINER_CONNECTION names one.
    """
    name = environ.get("CONTAINER_CONNECTION", "")
    remote = name or platform != "linux" or _is_remote_client(environ)
    if environ.get("CONTAINER_HOST") or not remote:
        return None
    argv = [podman, "system", "connection", "list", "--format", "json"]
    result = await run(argv, timeout=20.0)
    try:
        for row in json.loads(result.stdout or "null") or []:
            chosen = row["Name"].rstrip("*") == name if name else row.get("Default") is True
            if chosen and (name or not row.get("IsMachine")):
                origin = f"podman's connection {row['Name']}"
                return _explicit(row["URI"], origin, "podman", environ, row.get("Identity") or "")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"`{' '.join(argv)}` printed no list of connections: {error!r}."
        raise EngineDownError(message, remedy="Update podman.") from error
    if not name:
        return None
    message = f"podman has no connection {name}, which CONTAINER_CONNECTION names."
    raise EngineDownError(message, remedy="See `podman system connection list`.")


def _is_remote_client(environ: Mapping[str, str]) -> bool:
    named = environ.get("CONTAINERS_CONF")
    own = _home(environ) / ".config/containers/containers.conf"
    remote: object = False
    for path in [Path(named)] if named else [Path("/etc/containers/containers.conf"), own]:
        with suppress(OSError, ValueError, AttributeError):
            engine = tomllib.loads(path.read_text(encoding="utf-8")).get("engine", {})
            remote = engine.get("remote", remote)
    return remote is True


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


def named_address(kind: EngineKind, environ: Mapping[str, str]) -> tuple[str, str] | None:
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
    config = Path(environ.get("DOCKER_CONFIG") or _home(environ) / ".docker")
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
