"""What only a real engine shows: its own service, its OCI runtimes, its dead peers, its users."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bridge.errors import ImageMissingError
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.ownership import OWNER_LABEL
from tests.contract.programs import ECHO, echoes, on, spec
from tests.contract.rig import Engine, EngineShelf, ordinary_user, usable_python
from tests.raised import raises_code
from tests.sandbox.process.rig import read_all
from tests.waiting import until

PATIENCE = 90
IMAGE = "localhost/mcp-code-bridge-runtime:slim"

LOOK = r"""
import os
def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines())
print("caps", status.get("CapEff", "?").strip(), status.get("CapBnd", "?").strip())
print("nnp", status.get("NoNewPrivs", "?").strip())
print("seccomp", status.get("Seccomp", "?").strip())
print("uid", os.getuid(), os.getgid())
print("cwd", os.getcwd())
print("host", os.uname().nodename)
print("hosts", repr(read("/etc/hosts")))
print("resolv", repr(read("/etc/resolv.conf")))
print("interfaces", ",".join(sorted(os.listdir("/sys/class/net"))))
writable = []
for line in read("/proc/mounts").splitlines():
    _, where, kind, options = line.split()[:4]
    if kind in ("tmpfs", "overlay", "ext4") and "rw" in options.split(","):
        name = os.path.join(where, "probe")
        try:
            open(name, "w").close()
            writable.append(where + ":" + ("noexec" if "noexec" in options else "exec"))
        except OSError:
            pass
print("writable", ",".join(sorted(writable)))
"""


async def test_what_a_program_finds_inside(
    real_engine: str, engines: EngineShelf, tmp_path: Path
) -> None:
    async with on(engines.get(real_engine), tmp_path / "run") as backend:
        with anyio.fail_after(PATIENCE):
            async with backend.launch(spec(LOOK)) as sandbox:
                found = dict(
                    line.split(" ", 1) for line in (await read_all(sandbox)).decode().splitlines()
                )
    writable = found.pop("writable").split(",")
    # The image's own, where the engine leaves it alone.
    assert found.pop("hosts") in ("''", r"'127.0.0.1 localhost\n'")
    assert found == {
        "caps": "0000000000000000 0000000000000000",
        "nnp": "1",
        "seccomp": "2",
        "uid": "65534 65534",
        "cwd": "/workspace",
        "host": "sandbox",
        "resolv": "''",
        "interfaces": "lo",
    }
    assert writable == ["/dev/shm:noexec", "/tmp:noexec", "/workspace:noexec"]


@pytest.mark.docker
async def test_docker_refuses_a_named_runtime_it_does_not_know(
    engines: EngineShelf, tmp_path: Path
) -> None:
    engine = engines.get("docker")
    with anyio.fail_after(PATIENCE):
        async with on(engine, tmp_path, oci_runtime="no-such-runtime") as backend:
            with raises_code("oci_runtime_broken", match="no-such-runtime"):
                await echoes(backend)
        async with on(engine, tmp_path, oci_runtime="runc") as backend:
            assert (await echoes(backend)).isolation.oci_runtime == "runc"


async def test_a_missing_image_says_how_to_build_it(
    real_engine: str, engines: EngineShelf, tmp_path: Path
) -> None:
    engine = replace(engines.get(real_engine), image="localhost/no-such-image:1")
    async with on(engine, tmp_path) as backend:
        with anyio.fail_after(PATIENCE):
            with pytest.raises(ImageMissingError) as caught:
                await echoes(backend)
            probe = await backend.probe()
    assert "image build" in caught.value.remedy
    assert (probe.ok, probe.error_code) == (False, "image_missing")


async def test_images_are_reached_over_the_same_connection(
    real_engine: str, engines: EngineShelf, tmp_path: Path
) -> None:
    engine = engines.get(real_engine)
    async with on(replace(engine, image=""), tmp_path) as backend:
        with anyio.fail_after(PATIENCE):
            with pytest.raises(ImageMissingError):
                await echoes(backend)
            images = await backend.images()
            assert await images.inspect(engine.image) is not None
            backend.use_image(engine.image)
            await echoes(backend)


DEAD_BRIDGE = """
import os, sys, anyio
from pathlib import Path
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.container.backend import ContainerBackend
async def main():
    engine, image, runtime_dir, program = sys.argv[1:]
    backend = ContainerBackend(
        engine, image=image, runtime_dir=Path(runtime_dir), environ=dict(os.environ)
    )
    argv = ("python3", "-I", "-S", "-c", program)
    spec = LaunchSpec(run_id="dead", argv=argv, env={}, limits=Limits())
    async with backend, backend.launch(spec) as sandbox:
        await sandbox.receive()
        print(sandbox.id, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


@contextmanager
def dead_bridge(engine: Engine, runtime_dir: Path, program: str) -> Iterator[str]:
    """Have a bridge start a sandbox and be killed; yield the sandbox's id."""
    bridge = subprocess.Popen(
        [sys.executable, "-c", DEAD_BRIDGE]
        + [engine.command, engine.image, str(runtime_dir), program],
        env=dict(engine.environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert bridge.stdout is not None
    with bridge.stdout:
        container = bridge.stdout.readline().strip()
        bridge.kill()
        bridge.wait()
    assert container, "the other bridge did not start a sandbox"
    try:
        yield container
    finally:
        engine.remove_container(container)


def exists(engine: Engine, container: str, *, stopped: bool = True) -> bool:
    with engine.outside() as client:
        found = client.containers(all=stopped, filters={"id": container})
    return bool(found)


async def test_a_dead_bridges_sandbox_is_reaped_and_others_are_not(
    real_engine: str, engines: EngineShelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours, other people's and a dead bridge's side by side: only the last goes (law 3)."""
    engine = engines.get(real_engine)
    program = "import os\nos.write(1, b'ready')\nwhile True: pass"
    foreign = {"Image": engine.image, "Entrypoint": ["python3"], "Labels": {OWNER_LABEL: "x"}}
    with engine.outside() as client, anyio.fail_after(PATIENCE):
        create: Callable[..., dict[str, str]] = client.create_container_from_config
        stranger = create(foreign)["Id"]
        try:
            with dead_bridge(engine, tmp_path / "dead", program) as left:
                assert exists(engine, left)
                async with (
                    on(engine, tmp_path / "run") as backend,
                    backend.launch(spec(ECHO)) as mine,
                ):
                    # Another bridge on the same engine may have done it, or be about to.
                    await backend.reap()
                    await until(lambda: not exists(engine, left))
                    assert exists(engine, stranger)
                    await mine.send(b"alive")
                    assert await mine.receive() == b"alive"
        finally:
            client.remove_container(stranger, force=True)
    # What others left is nothing to bother a program's user with.
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_program_that_reads_sees_its_bridge_die(
    real_engine: str, engines: EngineShelf, tmp_path: Path
) -> None:
    engine = engines.get(real_engine)
    program = "import os\nos.write(1, b'ready')\nwhile os.read(0, 100): pass"
    with dead_bridge(engine, tmp_path / "dead", program) as left, anyio.fail_after(PATIENCE):
        # Another bridge on the same engine may remove it as soon as it has stopped.
        await until(lambda: not exists(engine, left, stopped=False))


async def test_an_engine_that_is_not_there_is_explained(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    gone = {"DOCKER_HOST": f"unix://{tmp_path}/x.sock", "PATH": ""}
    cases: list[tuple[str, dict[str, str], str]] = [
        ("podman", {**nothing, "CONTAINERS_CONF": "/x"}, "engine_not_found"),
        ("docker", gone, "engine_down"),
        (str(tmp_path / "podman"), nothing, "engine_not_found"),
    ]
    for engine, environ, code in cases:
        async with ContainerBackend(
            engine, image=IMAGE, runtime_dir=tmp_path / "run", environ=environ
        ) as backend:
            probe = await backend.probe()
            assert (probe.ok, probe.error_code) == (False, code), probe
            assert probe.remedy


REFUSED = """
import os, sys, anyio
from pathlib import Path
from bridge.sandbox.container.backend import ContainerBackend
def probe(url):
    async def main():
        async with ContainerBackend(
            "docker", image="x", runtime_dir=Path("/nonexistent"), environ={"DOCKER_HOST": url}
        ) as backend:
            return await backend.probe()
    return anyio.run(main)
probe("unix:///nonexistent/engine.sock")  # imports all that is imported late
os.setgroups([]), os.setgid(65534), os.setuid(65534)
found = probe(sys.argv[1])
print(found.error_code, found.remedy)
"""


@pytest.mark.docker
def test_a_socket_that_refuses_this_user_is_explained(engines: EngineShelf) -> None:
    engine = engines.get("docker")
    assert os.getuid() == 0, "only root can become somebody else"
    tried = subprocess.run(
        [sys.executable, "-c", REFUSED, engine.url], capture_output=True, text=True, check=True
    )
    assert tried.stdout.startswith("engine_permission ")
    assert "group `docker`" in tried.stdout
    assert "rootless podman" in tried.stdout


ORDINARY = """
import os, sys, anyio
from pathlib import Path
from bridge.sandbox.container.backend import ContainerBackend
async def main():
    image, runtime_dir = sys.argv[1], Path(sys.argv[2])
    async with ContainerBackend(
        "podman", image=image, runtime_dir=runtime_dir, environ=dict(os.environ)
    ) as backend:
        for _ in range(2):
            probe = await backend.probe()
            print(probe.ok, probe.summary, probe.remedy, *probe.isolation.verified)
    print("left:", *(path.name for path in runtime_dir.iterdir() if path.is_dir()))
anyio.run(main)
"""


@pytest.mark.rootless
def test_an_ordinary_user_needs_nothing_but_podman(engines: EngineShelf) -> None:
    """The whole bridge side as that user: its own service, its own containers, nothing left."""
    engine = engines.get("rootless")
    with ordinary_user() as (become, environ, runtime_dir):
        python = usable_python(become, environ)
        tried = subprocess.run(
            [*become, *python, "-c", ORDINARY, engine.image, str(runtime_dir / "run")],
            env=environ,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    lines = tried.stdout.splitlines()
    assert len(lines) == 3, tried.stderr
    for line in lines[:2]:
        assert line.startswith("True podman")
        assert "rootless" in line
        assert "user-namespace" in line
        assert "own-seccomp" in line
    assert lines[2].strip() == "left:"
