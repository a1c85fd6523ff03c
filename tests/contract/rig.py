"""Backends for the contract suite, and an outside view of each engine.

Where the engines are is read from the environment here and nowhere else: `DOCKER_HOST`,
`CONTAINERS_CONF` and `CONTAINERS_STORAGE_CONF` as the engines know them, and

- `MCP_BRIDGE_TEST_ENGINES`: which to run on, e.g. "fake,podman"; all when unset. An engine that is
  wanted and absent fails its tests.
- `MCP_BRIDGE_TEST_IMAGE`: the image's name on every engine.
- `MCP_BRIDGE_TEST_USER`: the ordinary user that rootless podman runs as when the tests run as root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import docker
import docker.errors
import pytest

from bridge.sandbox.backend import Backend, Sandbox
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.container.connection import service_argv
from bridge.sandbox.container.image import local_name
from bridge.sandbox.ownership import OWNER_LABEL
from bridge.sandbox.process.backend import BubblewrapBackend
from tests.fakes.backend import FakeBackend
from tests.sandbox.process.rig import left_groups, processes_below
from tests.ssh_rig import ssh_server

ALL_ENGINES = ("fake", "bubblewrap", "podman", "docker", "rootless", "ssh")
ENGINELESS = ("fake", "bubblewrap")
"""What is no engine that a container backend talks to by itself."""
DEFAULT_USER = "mcpbridge-test"
SET_UP = {
    "HOME": "MCP_TEST_ROOTLESS_HOME",
    "XDG_RUNTIME_DIR": "MCP_TEST_ROOTLESS_RUNTIME_DIR",
    "CONTAINERS_CONF": "MCP_TEST_ROOTLESS_CONF",
}
"""The ordinary user's environment, and where scripts/with-engines gives it."""

SERVICE_SECONDS = 120.0
COMMAND_SECONDS = 120.0


def marks_of(engine: str) -> list[pytest.MarkDecorator]:
    names = {"ssh": ("ssh", "docker"), **dict.fromkeys(ENGINELESS, ())}.get(engine, (engine,))
    return [getattr(pytest.mark, name) for name in names]


def on_engines(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks_of(n)) for n in names])


def wanted_engines() -> tuple[str, ...]:
    text = os.environ.get("MCP_BRIDGE_TEST_ENGINES", "")
    names = tuple(name.strip() for name in text.split(",") if name.strip()) or ALL_ENGINES
    unknown = set(names) - set(ALL_ENGINES)
    if unknown:
        raise pytest.UsageError(f"MCP_BRIDGE_TEST_ENGINES: no such engine: {sorted(unknown)}")
    return names


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine as the tests reach it; `open_backend` opens one that its name does not tell."""

    name: str
    command: str = ""
    url: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    applies_limits: bool = True
    open_backend: Callable[[], AbstractAsyncContextManager[Backend]] | None = None

    @property
    def oom_reports(self) -> tuple[bool | None, ...]:
        # podman 4's monitor misses it on cgroup v1.
        return (True,) if self.command == "docker" else (True, None)

    @contextmanager
    def outside(self) -> Iterator[docker.APIClient]:
        client = docker.APIClient(base_url=self.url, version="1.41", timeout=60)
        try:
            yield client
        finally:
            client.close()

    def ours(self) -> list[str]:
        if self.name == "bubblewrap":
            launchers = [pid for pid in processes_below() if is_bubblewrap(pid)]
            return [*map(str, launchers), *map(str, left_groups())]
        if not self.url:
            return []
        label = f"{OWNER_LABEL}={os.getpid()}"
        with self.outside() as client:
            found = client.containers(all=True, filters={"label": label})
        return [str(container["Names"]) for container in found]

    def image_environment(self) -> frozenset[str]:
        if not self.url:
            return frozenset()
        with self.outside() as client:
            entries = _inspect_image(client, self.image)["Config"].get("Env") or []
        return frozenset(entry.partition("=")[0] for entry in entries)

    def kill_from_outside(self, sandbox: Sandbox) -> None:
        if not self.url:
            os.kill(int(sandbox.id), 9)
            return
        with self.outside() as client:
            client.kill(sandbox.id, "SIGKILL")

    def remove_from_outside(self, sandbox: Sandbox) -> None:
        if self.url:
            self.remove_container(sandbox.id)
        else:
            self.kill_from_outside(sandbox)

    def remove_container(self, container: str) -> None:
        with self.outside() as client, suppress(docker.errors.NotFound):
            client.remove_container(container, force=True)


def own_service(engine: Engine, **environ: str) -> Engine:
    kept = {name: value for name, value in engine.environ.items() if name != "CONTAINER_HOST"}
    # Its presence is what tells the backend to leave a listening service alone.
    kept.setdefault("CONTAINERS_CONF", "/etc/containers/containers.conf")
    return replace(engine, environ={**kept, **environ})


def extend_configuration(variable: str, path: Path, more: str = "") -> str:
    """Write a copy of the file that a variable names, with more at its end; return its path."""
    given = os.environ.get(variable)
    path.write_text(f"{Path(given).read_text() if given else ''}\n{more}\n")
    return str(path)


class EngineSet:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._ready: dict[str, Engine | str] = {}

    def get(self, name: str) -> Engine:
        if name not in wanted_engines():
            pytest.skip(f"MCP_BRIDGE_TEST_ENGINES leaves out {name}")
        if name not in self._ready:
            try:
                self._ready[name] = self._bring_up(name)
            except (OSError, subprocess.SubprocessError, docker.errors.DockerException) as error:
                self._ready[name] = f"{name} is wanted, and not available here: {error}"
        found = self._ready[name]
        if isinstance(found, str):
            pytest.fail(f"{found} (MCP_BRIDGE_TEST_ENGINES limits what is wanted)")
        return found

    def _bring_up(self, name: str) -> Engine:
        image = os.environ.get("MCP_BRIDGE_TEST_IMAGE") or local_name("slim")
        # What a host may hold and a sandbox may not.
        environ = {**os.environ, "CANARY_TOKEN": "x", "HTTP_PROXY": "http://user:password@proxy"}
        if name == "fake":
            return Engine(name=name, applies_limits=False)
        if name == "bubblewrap":
            # An ordinary user may have no control group to put it into.
            return Engine(name=name, environ=environ, applies_limits=os.getuid() == 0)
        if name == "ssh":
            near, server = self.get("docker"), self._stack.enter_context(ssh_server())
            address = {"DOCKER_HOST": f"ssh://there{near.url.removeprefix('unix://')}"}
            return replace(near, name=name, environ={**environ, **server.environ, **address})
        if name == "docker":
            url = environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
            engine = Engine(name=name, command="docker", url=url, environ=environ, image=image)
        else:
            rootless = name == "rootless" or os.getuid() != 0
            service = _rootless_service(image) if rootless else _service([], dict(os.environ))
            url = self._stack.enter_context(service)
            environ["CONTAINER_HOST"] = url
            engine = Engine(
                name=name,
                command="podman",
                url=url,
                environ=environ,
                image=image,
                applies_limits=not rootless or Path("/sys/fs/cgroup/cgroup.controllers").exists(),
            )
        with engine.outside() as client:
            _inspect_image(client, image)
        return engine


def _inspect_image(client: docker.APIClient, image: str) -> dict[str, Any]:
    inspect = cast("Callable[[str], dict[str, Any]]", client.inspect_image)
    return inspect(image)


@contextmanager
def ordinary_user() -> Iterator[tuple[list[str], dict[str, str], Path]]:
    """Say how to run a command as an ordinary user, who the tests may be themselves.

    Yields:
        The words to put before the command, its environment, a directory of that user's.
    """
    if os.getuid() != 0:
        with tempfile.TemporaryDirectory(prefix="mcb-rootless-") as directory:
            yield [], dict(os.environ), Path(directory)
        return
    name = os.environ.get("MCP_BRIDGE_TEST_USER") or DEFAULT_USER
    try:
        user = pwd.getpwnam(name)
    except KeyError as error:
        raise OSError(f"there is no user {name!r}") from error
    with _directory_of(user) as runtime:
        environ = {"HOME": user.pw_dir, "XDG_RUNTIME_DIR": str(runtime)}
        environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin")
        if "CONTAINERS_CONF" in os.environ:
            environ["CONTAINERS_CONF"] = os.environ["CONTAINERS_CONF"]
        # The test set-up has a place of its own for that user, with the image in its storage.
        for variable, given in SET_UP.items():
            if given in os.environ:
                environ[variable] = os.environ[given]
        # Said again: runuser puts the passwd entry's in its place, where podman would find neither
        # the image nor the settings of its storage, and copy all of the image for every container.
        home = f"HOME={environ['HOME']}"
        yield ["runuser", "-u", name, "--", "env", home], environ, runtime


def usable_python(become: list[str], environ: dict[str, str]) -> list[str]:
    """Find an interpreter which that user can run the bridge with; may extend `environ`."""
    if "MCP_TEST_ROOTLESS_PYTHON" in os.environ:
        return [os.environ["MCP_TEST_ROOTLESS_PYTHON"]]
    packages = [str(Path(docker.__file__).parents[1]), str(Path(__file__).parents[2])]
    environ["PYTHONPATH"] = os.pathsep.join(packages)
    said = b""
    for python in (sys.executable, "/usr/bin/python3"):
        tried = subprocess.run(
            [*become, python, "-c", "import bridge.sandbox.container.backend"],
            env=environ,
            cwd="/",
            check=False,
            capture_output=True,
        )
        if tried.returncode == 0:
            return [python]
        said = tried.stderr
    pytest.fail(f"no Python here runs the bridge as another user: {said!r}")


@contextmanager
def _rootless_service(image: str) -> Iterator[str]:
    with ordinary_user() as (become, environ, runtime):
        if become:
            _copy_image(image, become, environ)
        with _service(become, environ, runtime) as url:
            yield url


@contextmanager
def _directory_of(user: pwd.struct_passwd) -> Iterator[Path]:
    # Short, since sockets live in it, and outside of directories only root may enter.
    directory = Path(tempfile.mkdtemp(prefix="mcb-rootless-", dir="/tmp"))
    try:
        os.chown(directory, user.pw_uid, user.pw_gid)
        yield directory
    finally:
        # Rootless podman keeps one process per runtime directory, to hold its user namespace.
        with suppress(OSError, ValueError):
            os.kill(int((directory / "libpod/tmp/pause.pid").read_text()), signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


def _copy_image(image: str, become: list[str], environ: Mapping[str, str]) -> None:
    there = subprocess.run(
        [*become, "podman", "image", "exists", image],
        env=environ,
        check=False,
        timeout=COMMAND_SECONDS,
        cwd="/",
    )
    if there.returncode == 0:
        return
    with tempfile.TemporaryFile() as archive:
        save, load = ["podman", "save", image], [*become, "podman", "load"]
        subprocess.run(save, stdout=archive, check=True, timeout=COMMAND_SECONDS)
        archive.seek(0)
        subprocess.run(
            load, env=environ, stdin=archive, check=True, timeout=COMMAND_SECONDS, cwd="/"
        )


@contextmanager
def _service(
    become: list[str], environ: Mapping[str, str], directory: Path | None = None
) -> Iterator[str]:
    if shutil.which("podman") is None:
        raise OSError("podman is not installed")
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcb-")))
        path = directory / "podman.sock"
        with (directory / "service.log").open("wb") as log:
            process = subprocess.Popen(
                [*become, *service_argv("podman", path, None)],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        try:
            deadline = time.monotonic() + SERVICE_SECONDS
            while not listens(path):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise OSError((directory / "service.log").read_text())
                time.sleep(0.05)
            yield f"unix://{path}"
        finally:
            process.terminate()
            process.wait(SERVICE_SECONDS)


def listens(path: Path) -> bool:
    """Return whether a socket takes connections; its file is there a moment before it does."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return True
    return False


def _services(runtime_dir: Path) -> list[Path]:
    # The profile of system calls is a file.
    return [each for each in runtime_dir.glob("*-*") if each.is_dir()]


@dataclass(frozen=True, kw_only=True)
class Rig:
    backend: Backend
    engine: Engine


@asynccontextmanager
async def rig_on(engine: Engine, runtime_dir: Path) -> AsyncIterator[Rig]:
    backend: AbstractAsyncContextManager[Backend]
    if engine.name == "fake":
        backend = FakeBackend()
    elif engine.open_backend is not None:
        backend = engine.open_backend()
    elif engine.name == "bubblewrap":
        backend = BubblewrapBackend(environ=engine.environ)
    else:
        backend = ContainerBackend(
            engine.command, image=engine.image, runtime_dir=runtime_dir, environ=engine.environ
        )
    async with backend as opened:
        yield Rig(backend=opened, engine=engine)
    assert engine.ours() == []
    assert not isinstance(backend, FakeBackend) or not backend.live
    assert _services(runtime_dir) == []


def is_bubblewrap(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "bwrap\n"
    return False


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts
