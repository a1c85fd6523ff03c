"""A podman service of the bridge's own: command line, failures, and its death with the bridge."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from bridge.errors import EngineDownError, SandboxError
from bridge.sandbox.container.connection import (
    SocketService,
    podman_service,
    reap_services,
    service_argv,
    service_environment,
)
from bridge.sandbox.ownership import current_owner
from tests.sandbox.process.rig import exists
from tests.waiting import until

LISTENS = """#!/bin/sh
for last; do :; done
exec {python} -c '
import signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1].removeprefix("unix://"))
listener.listen()
signal.pause()
' "$last"
"""


def podman_that(directory: Path, script: str) -> str:
    path = directory / "podman"
    path.write_text(script.replace("{python}", sys.executable))
    path.chmod(0o755)
    return str(path)


def service(podman: str, runtime_dir: Path, oci_runtime: str | None = None) -> SocketService:
    return podman_service(podman, runtime_dir, {"PATH": "/usr/bin:/bin"}, oci_runtime)


def start(argv: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def is_running(made: SocketService) -> bool:  # mypy would keep a property's first value
    return made.running


def test_the_command_line_and_its_environment() -> None:
    socket = Path("/run/x/podman.sock")
    plain = service_argv("podman", socket, None)
    assert plain == ["podman", "system", "service", "--time=0", "unix:///run/x/podman.sock"]
    flags = ["--runtime", "runsc", "--runtime-flag", "network=none"]
    assert service_argv("podman", socket, "runsc") == ["podman", *flags, *plain[1:]]
    environ = {"CONTAINER_HOST": "unix:///x", "CONTAINERS_CONF": "/c", "HOME": "/h"}
    assert service_environment(environ) == {"CONTAINERS_CONF": "/c", "HOME": "/h"}


async def test_a_service_lives_in_a_private_directory_and_leaves_none(tmp_path: Path) -> None:
    made = service(podman_that(tmp_path, LISTENS), tmp_path / "run")
    endpoint = await made.start()
    try:
        assert is_running(made)
        assert endpoint.socket_path == made.socket
        assert stat.S_IMODE(made.socket.parent.stat().st_mode) == 0o700
    finally:
        await made.aclose()
    assert not is_running(made)
    assert names_in(tmp_path / "run") == []
    await made.aclose()


WHY = 'Error: default OCI runtime "x" not found: invalid argument'


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (f"echo '{WHY}' >&2; exit 125", "oci_runtime_broken", "default OCI runtime"),
        ("exit 1", "engine_down", "podman"),
        ("", "engine_down", "No such file"),
    ],
)
async def test_a_service_that_does_not_start_says_why_and_leaves_nothing(
    tmp_path: Path, script: str, code: str, said: str
) -> None:
    podman = podman_that(tmp_path, f"#!/bin/sh\n{script}\n") if script else "/no/podman"
    with pytest.raises(SandboxError, match=said) as caught:
        await service(podman, tmp_path / "run", "x").start()
    assert caught.value.code == code
    assert names_in(tmp_path / "run") == []


async def test_a_directory_that_is_too_long_or_others_may_write_to_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(EngineDownError, match=r"too long .* XDG_RUNTIME_DIR"):
        await service("podman", tmp_path / ("x" * 100)).start()
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(EngineDownError, match="every user can write to it"):
        await service(podman_that(tmp_path, LISTENS), tmp_path / "run").start()


async def test_cancelled_while_it_starts_a_service_goes(tmp_path: Path) -> None:
    made = service(podman_that(tmp_path, "#!/bin/sh\nexec sleep 1000\n"), tmp_path / "run")
    async with anyio.create_task_group() as group:
        group.start_soon(made.start)
        while not is_running(made):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert not is_running(made)
    assert names_in(tmp_path / "run") == []


KILLED_BRIDGE = """
import sys, anyio
from pathlib import Path
from bridge.sandbox.container.connection import podman_service
async def main():
    service = podman_service(sys.argv[1], Path(sys.argv[2]), {})
    await service.start()
    print(service._process.pid, flush=True)
    await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell children")
async def test_a_service_dies_with_a_bridge_that_is_killed(tmp_path: Path) -> None:
    podman = podman_that(tmp_path, LISTENS)
    bridge = start([sys.executable, "-c", KILLED_BRIDGE, podman, str(tmp_path / "run")])
    assert bridge.stdout is not None
    with bridge.stdout:
        pid = int(bridge.stdout.readline())
        bridge.kill()
        bridge.wait()
    await until(lambda: not exists(pid))
    # Its directory stays, until the next bridge starts.
    assert await anyio.to_thread.run_sync(reap_services, tmp_path / "run") == 1
    assert names_in(tmp_path / "run") == []


@pytest.mark.parametrize("word", ["unix://{}", "{}:/var/run/docker.sock"], ids=["podman", "ssh"])
async def test_only_dead_bridges_services_are_reaped(tmp_path: Path, word: str) -> None:
    owners = {"podman-live": current_owner(), "podman-dead": replace(current_owner(), start="1")}
    for name, owner in owners.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "owner").write_text(str(owner))
    (tmp_path / "podman-odd").mkdir()
    (tmp_path / "podman-odd" / "owner").write_text("[]")
    served = word.format(tmp_path / "podman-dead" / "engine.sock")
    left = start([sys.executable, "-c", "import signal; signal.pause()", served])
    assert left.stdout is not None
    with left.stdout:
        assert await anyio.to_thread.run_sync(reap_services, tmp_path) == 1
        assert await anyio.to_thread.run_sync(left.wait) == -signal.SIGKILL
    assert names_in(tmp_path) == ["podman-live", "podman-odd"]
