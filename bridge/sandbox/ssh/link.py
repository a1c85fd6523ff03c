"""The connection to one host: OpenSSH's client, the engine's socket through it, and its heartbeat.

Owns the process, its private directory, and the thread that watches it. The thread beats also while
the event loop is busy, so that the host does not take a busy bridge for a lost one.

A script on the host ends all sandboxes of the connection when it hears nothing more: at once when
the connection is closed, which it also is when the bridge is killed, and after `SILENCE_SECONDS`
when it falls silent. So no program outlives the bridge or the way to it, busy or not.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import select
import shlex
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from bridge.errors import HostDownError, HostKeyError
from bridge.sandbox.container.api import answers
from bridge.sandbox.container.endpoints import Endpoint
from bridge.sandbox.container.extra_layers import profile_text
from bridge.sandbox.container.faults import shorten
from bridge.sandbox.container.service import make_owned, service_argv
from bridge.sandbox.ownership import LABEL_PREFIX
from bridge.settings import Settings, runtime_dir
from bridge.settings.ssh import SshHost

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""Interval of the health check."""

SILENCE_SECONDS = 15
"""After so long without a word from the bridge a host ends its sandboxes: three missed beats."""

ANSWER_SECONDS = 8.0
"""For the host's answer to a beat: with the interval less than `SILENCE_SECONDS`."""

READY_SECONDS = 45.0
"""For the connection, the engine's start on a cold disk, and the removal of what was left."""

CLOSE_SECONDS = 10.0
"""For the script to end what it minds, and for OpenSSH after it."""

CONNECTION_LABEL, READY = f"{LABEL_PREFIX}.connection", "mcp-code-bridge-ready"
REMOTE = "/tmp/mcb-"
"""A connection's own directory on its host, with its id behind it."""
_NO_ENGINE = 72
_ENVIRONMENT = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK")
_CHUNK = 4096

_OPTIONS = (
    # Nobody can answer a question. A silent connection is given up after six seconds.
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ExitOnForwardFailure=yes", "LogLevel=ERROR"),
    *("ConnectTimeout=10", "ServerAliveInterval=2", "ServerAliveCountMax=3", "ControlPersist=no"),
    # The user's configuration may say otherwise for their own sessions.
    *("ForwardAgent=no", "ForwardX11=no", "ForkAfterAuthentication=no", "StdinNull=no"),
    *("PermitLocalCommand=no", "RemoteCommand=none"),
)


def ssh_argv(
    host: SshHost, directory: Path, connection: str, oci_runtime: str = "", earlier: str = ""
) -> list[str]:
    """Return OpenSSH's command line for the one connection to a host, a master of its own.

    One that the user keeps open is not shared: what is forwarded there would outlive the bridge.

    Args:
        directory: Where its sockets are here.
        connection: The connection's id, which is its sandboxes' label.
        oci_runtime: What podman starts containers with; empty for its own choice.
        earlier: Id of a lost connection, whose sandboxes are removed; empty for none.
    """
    own = f"{REMOTE}{connection}/s" if host.engine == "podman" else "/var/run/docker.sock"
    target = host.socket or own
    # No terminal, and no Kerberos tickets for the host, whatever the configuration says.
    argv = ["ssh", "-T", "-k", "-M", "-S", f"{directory}/c", "-L", f"{directory}/e:{target}"]
    argv += [word for option in _OPTIONS for word in ("-o", option)]
    argv += ["-F", str(host.config_file)] if host.config_file else []
    argv += ["-p", str(host.port)] if host.port else []
    if host.identity_file:
        argv += ["-i", str(host.identity_file), "-o", "IdentitiesOnly=yes"]
    script = shlex.quote(_script(host, connection, target, oci_runtime, earlier))
    # The login shell there may be no POSIX shell.
    return [*argv, "--", host.destination, f"exec sh -c {script}"]


def _script(host: SshHost, connection: str, socket: str, oci_runtime: str, earlier: str) -> str:
    there, start, engine = f"{REMOTE}{connection}", "", "podman"
    if host.engine == "docker":
        engine = f"docker --host {shlex.quote(f'unix://{socket}')}"
    elif not host.socket:
        service = shlex.join(service_argv("podman", Path(socket), oci_runtime or None))
        start = f"{service} >{there}/log 2>&1 </dev/null & service=$!"
    listening, profile = shlex.quote(socket), shlex.quote(profile_text("program"))
    return f"""umask 077
trap '' PIPE HUP
fail() {{ echo "$1" >&2; exit {_NO_ENGINE}; }}
for it in {host.engine} timeout head; do command -v $it >/dev/null || fail "it has no $it"; done
sweep() {{
  found=$({engine} ps --all --quiet --filter "label={CONNECTION_LABEL}=$1")
  [ -z "$found" ] || {engine} rm --force --volumes $found
}} >/dev/null 2>&1
end() {{
  trap '' TERM INT
  [ -z "$service" ] || {{ kill $service; wait $service; }} 2>/dev/null
  sweep {connection}
  rm -rf {there}
}}
mkdir {there} || fail "it cannot make {there}"
trap end EXIT
trap 'exit 0' TERM INT
printf %s {profile} >{there}/seccomp.json
service= tries=0
{start}
until [ -S {listening} ]; do
  tries=$((tries + 1))
  [ $tries -lt 300 ] && kill -0 ${{service:-$$}} 2>/dev/null ||
    fail "nothing listens at {listening} $(tail -c 2000 {there}/log 2>/dev/null)"
  sleep 0.1
done
[ -z "{earlier}" ] || sweep "{earlier}"
echo {READY}
while [ -n "$(timeout {SILENCE_SECONDS} head -c 1)" ]; do echo; done"""


def failure(host: SshHost, status: int | None, said: str) -> HostDownError:
    """Return the error for OpenSSH's status, or the script's, and what was said on stderr."""
    login = shlex.join(["ssh", *(["-p", str(host.port)] if host.port else []), host.destination])
    detail = shorten(said) or "it gave no answer in time"
    kind, message = HostDownError, f"{host.name} cannot be reached: {detail}."
    remedy = f"Try `{login}`."
    if "IDENTIFICATION HAS CHANGED" in said:
        # It may be the host's own word, and is for a person's shell.
        found = re.search(r'ssh-keygen -f "[\w@%+=:,./ -]*" -R "[\w@%:,.\[\]-]*"', said, re.ASCII)
        removal = found[0] if found else f"ssh-keygen -R {host.destination.rpartition('@')[2]}"
        kind, message = HostKeyError, f"{host.name} is another host: its key has changed."
        remedy = "Someone may be in between. Compare the key with the host's own; if it was"
        remedy += f" renewed, run `{removal}`, then `{login}`."
    elif "ost key" in said:
        kind, message = HostKeyError, f"{host.name} is not known: {detail}."
        remedy = f"Run `{login}` once, and compare the key that it shows with the host's own."
    elif status == _NO_ENGINE:
        message = f"{host.name} has no {host.engine} that runs: {detail}."
        remedy = f"Try `{login} {host.engine} info`; the host's `engine` and `socket` can be set."
    elif "ermission denied" in said:
        remedy = "Put the bridge's public key into ~/.ssh/authorized_keys there, and name the"
        remedy += " private one as the host's `identity_file` or in OpenSSH's configuration."
    return kind(message, remedy=remedy)


class Link:
    """One connection; made by `open_link`. `close` ends it and all its sandboxes.

    Attributes:
        connection: Its id.
        directory, socket: Where its sockets are on this machine, and the engine's.
        alive: Whether it is not known to be lost.
        latency: Seconds that the last beat took to the host and back.
        well: Whether the engine answered last time.
    """

    def __init__(
        self, host: SshHost, connection: str, directory: Path, process: subprocess.Popen[bytes]
    ) -> None:
        self.connection, self.directory, self.socket = connection, directory, directory / "e"
        self.latency, self.alive, self.well = 0.0, True, True
        self._name, self._process = host.name, process
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._over, self._threads = threading.Event(), list[threading.Thread]()

    def begin(self) -> bool:
        """Wait until the host is ready, and begin to beat; return whether it became so. Blocks."""
        # What a login shell prints before is passed over.
        heard, deadline = b"", time.monotonic() + READY_SECONDS
        while f"{READY}\n".encode() not in heard:
            data = self._hear(deadline - time.monotonic())
            if not data:
                return False
            heard = (heard + data)[-_CHUNK:]
        self._beat()
        for task in (self._watch, self._ask_engine):
            self._threads.append(threading.Thread(target=task, daemon=True))
            self._threads[-1].start()
        return True

    def close(self) -> int | None:
        """End it, and all sandboxes that it has; return OpenSSH's status. Blocks; idempotent."""
        self._over.set()
        self.alive = False
        with suppress(OSError):
            self._input.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        self._output.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        return self._process.returncode

    def _watch(self) -> None:
        # Until it is time for the next beat nothing comes but the connection's end.
        while self._hear(BEAT_SECONDS) is None and not self._over.is_set() and self._beat():
            pass
        if not self._over.is_set():
            logger.warning("the connection to %s is lost", self._name)
            self.alive = False
            # Also when it only seems to live: the host has given its sandboxes up by now, or will.
            self._process.kill()

    def _ask_engine(self) -> None:
        # Not between beats: the host would take an engine that is slow for a bridge that is gone.
        while not self._over.wait(BEAT_SECONDS):
            self.well = answers(Endpoint(url=f"unix://{self.socket}", origin=self._name))

    def _beat(self) -> bool:
        began = time.monotonic()
        try:
            self._input.write(b".")
        except (OSError, ValueError):
            return False
        heard = self._hear(ANSWER_SECONDS)
        self.latency = time.monotonic() - began
        return bool(heard)

    def _hear(self, seconds: float) -> bytes | None:
        """Return what comes; nothing at the connection's end, None when the time is over."""
        # Not `select`, which takes no number beyond 1,023.
        waiting = select.poll()
        waiting.register(self._output, select.POLLIN)
        ready = waiting.poll(max(0.0, seconds) * 1000)
        return os.read(self._output.fileno(), _CHUNK) if ready else None


def open_link(host: SshHost, settings: Settings, earlier: str) -> Link:
    """Connect to a host as in `ssh_argv`; return once its engine listens. Blocks.

    Raises:
        HostDownError: The host cannot be used; it says why.
    """
    connection = secrets.token_hex(8)
    directory = runtime_dir(settings) / f"ssh-{os.getpid()}-{connection[:6]}"
    argv = ssh_argv(host, directory, connection, settings.oci_runtime, earlier)
    passed = {name: settings.environ[name] for name in _ENVIRONMENT if name in settings.environ}
    try:
        make_owned(directory)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                # What the host says on stderr is kept in a file, of at most a megabyte.
                ["sh", "-c", 'ulimit -f 2048; exec "$@"', "sh", *argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Its messages are read.
                env={**passed, "LC_ALL": "C"},
                # Ctrl-C at the terminal is the bridge's.
                start_new_session=True,
            )
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        remedy = "Install openssh-client; set XDG_RUNTIME_DIR to a directory of this user's."
        raise HostDownError(f"OpenSSH cannot be started: {error}.", remedy=remedy) from error
    link = Link(host, connection, directory, process)
    if not link.begin():
        said = (directory / "log").read_text(errors="replace")
        raise failure(host, link.close(), said)
    return link
