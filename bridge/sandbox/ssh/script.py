"""What the bridge starts for a connection, there and here, and what failures mean. Pure.

The script on the host ends all sandboxes of its connection when it hears nothing more from the
bridge: at once when the connection is closed, after `SILENCE_SECONDS` when it falls silent. So no
program outlives the bridge or the way to it, busy or not, whichever engine runs it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from bridge.errors import HostDownError, HostKeyError
from bridge.sandbox.container.extra_layers import profile_text
from bridge.sandbox.container.faults import shorten
from bridge.sandbox.container.service import service_argv
from bridge.sandbox.ownership import LABEL_PREFIX
from bridge.settings.ssh import SshHost

SILENCE_SECONDS = 15
"""After so long without a word from the bridge a host ends its sandboxes: three missed beats."""

CONNECTION_LABEL = f"{LABEL_PREFIX}.connection"

ENGINE = "e"
"""The engine's socket, in a connection's directory here."""

READY = "mcp-code-bridge-ready"

_OPTIONS = (
    "BatchMode=yes",  # nobody can answer a question
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=10",
    # A silent connection is given up after six seconds.
    "ServerAliveInterval=2",
    "ServerAliveCountMax=3",
    "ExitOnForwardFailure=yes",
    "ControlPersist=no",
    # The user's configuration may say otherwise for their own sessions.
    "ForwardAgent=no",
    "ForwardX11=no",
    "ForkAfterAuthentication=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "StdinNull=no",
    "LogLevel=ERROR",
)

_SCRIPT = """
umask 077
trap '' PIPE HUP
fail() {{ echo "$1" >&2; exit 72; }}
for each in {command} timeout head; do
  command -v "$each" >/dev/null || fail "there is no command $each"
done
sweep() {{
  found=$({engine} ps --all --quiet --filter "label={label}=$1")
  [ -z "$found" ] || {engine} rm --force --volumes $found
}} >/dev/null 2>&1
service=
end() {{
  trap '' TERM INT
  [ -z "$service" ] || {{ kill "$service"; wait "$service"; }} 2>/dev/null
  sweep {connection}
  rm -rf {directory}
}}
mkdir {directory} || fail "it cannot make {directory}"
trap end EXIT
trap 'exit 0' TERM INT
printf %s {profile} >{directory}/seccomp.json
{start}
tries=0
until [ -S {socket} ]; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ] || {{ [ -n "$service" ] && ! kill -0 "$service" 2>/dev/null; }}; then
    fail "nothing listens at {socket} $(tail -c 2000 {directory}/log 2>/dev/null)"
  fi
  sleep 0.1
done
[ -z "{earlier}" ] || sweep "{earlier}"
echo {ready}
while [ -n "$(timeout {silence} head -c 1)" ]; do echo; done
"""


def remote_directory(connection: str) -> str:
    """Return a connection's own directory on its host."""
    return f"/tmp/mcb-{connection}"


def ssh_argv(
    host: SshHost, directory: Path, connection: str, oci_runtime: str, earlier: str
) -> list[str]:
    """Return OpenSSH's command line for the one connection to a host, a master of its own.

    One that the user keeps open is not shared: what is forwarded there would outlive the bridge.

    Args:
        directory: Where its sockets are here.
        connection: The connection's id, which is its sandboxes' label.
        oci_runtime: What podman starts containers with; empty for its own choice.
        earlier: Id of a lost connection, whose sandboxes are removed.
    """
    there, start = remote_directory(connection), ""
    engine: str = host.engine
    socket = host.socket or ("/var/run/docker.sock" if engine == "docker" else f"{there}/s")
    if host.engine == "docker":
        engine = f"docker --host {shlex.quote(f'unix://{socket}')}"
    elif not host.socket:
        service = shlex.join(service_argv("podman", Path(socket), oci_runtime or None))
        start = f"{service} >{there}/log 2>&1 </dev/null & service=$!"
    script = _SCRIPT.format(
        command=host.engine,
        engine=engine,
        label=CONNECTION_LABEL,
        connection=connection,
        earlier=earlier,
        directory=there,
        profile=shlex.quote(profile_text("program")),
        socket=shlex.quote(socket),
        start=start,
        ready=READY,
        silence=SILENCE_SECONDS,
    )
    argv = ["ssh", "-T", "-M", "-S", str(directory / "c"), "-L", f"{directory / ENGINE}:{socket}"]
    argv += [word for option in _OPTIONS for word in ("-o", option)]
    argv += ["-F", str(host.config_file)] if host.config_file else []
    argv += ["-p", str(host.port)] if host.port else []
    argv += (
        ["-i", str(host.identity_file), "-o", "IdentitiesOnly=yes"] if host.identity_file else []
    )
    # The login shell there may be no POSIX shell.
    return [*argv, "--", host.destination, f"exec sh -c {shlex.quote(script.strip())}"]


def failure(host: SshHost, status: int | None, said: str) -> HostDownError:
    """Return the error for a connection that did not come about.

    Args:
        status: OpenSSH's exit status, or the script's.
        said: What was written to stderr.
    """
    login = shlex.join(["ssh", *(["-p", str(host.port)] if host.port else []), host.destination])
    if "IDENTIFICATION HAS CHANGED" in said:
        found = re.search(r'ssh-keygen -f "[^"]*" -R "[^"]*"', said)
        removal = found[0] if found else f"ssh-keygen -R {host.destination.rpartition('@')[2]}"
        return HostKeyError(
            f"{host.name} is not the host that was known: its key has changed.",
            remedy="Someone may be in between. Compare the key with the host's own; if it was"
            f" renewed, run `{removal}`, then `{login}`.",
        )
    detail = shorten(said) or "it gave no answer in time"
    if "ost key" in said:
        remedy = f"Run `{login}` once, and compare the key that it shows with the host's own."
        return HostKeyError(f"{host.name} is not known: {detail}.", remedy=remedy)
    message = f"{host.name} cannot be reached: {detail}."
    remedy = f"Try `{login}`."
    if status == 72:  # the script's own
        message = f"{host.name} has no {host.engine} that runs: {detail}."
        remedy = f"Try `{login} {host.engine} info`; the host's `engine` and `socket` can be set."
    elif "ermission denied" in said:
        remedy = (
            "Put the public key into ~/.ssh/authorized_keys there, and name the private one as the"
            " host's `identity_file` or in OpenSSH's configuration."
        )
    return HostDownError(message, remedy=remedy)
