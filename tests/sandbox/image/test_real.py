"""The offline image built and imported for real, and what a program finds in it.

Other tests run in the real image at the same time, so Docker's has another name and podman's
another storage. The root filesystem stays in the repository's `.state` between runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import docker
import pytest

from bridge.sandbox.bundle import guest_digest
from bridge.sandbox.container.api import connect
from bridge.sandbox.container.command_runner import SystemRunner
from bridge.sandbox.container.endpoints import EngineEndpoint
from bridge.sandbox.container.image import (
    REPOSITORY,
    BuildRequest,
    ImageEngine,
    ImageFacts,
    ImageStatus,
    RootfsContext,
    assemble,
    build,
    choose,
    local_name,
    recipe_dir,
)
from tests.contract.rig import listens
from tests.raised import raises_code

SLIM = local_name("slim")
STATE = Path(__file__).parents[3] / ".state"
SERVICE_SECONDS = 120.0
RUN_SECONDS = 120
OWN = f"localhost/mcb-image-test-{uuid.uuid4().hex}"
"""Stands for the runtime image's repository on the engine: no one else has images of that name."""

LOOK = """
import importlib.util, json, os, sys, tokenize
from pathlib import Path
guest = Path("/usr/local/lib/mcp-code-bridge/guest") / sys.argv[1] / "bridge" / "guest"
def flags(path):
    return int.from_bytes(Path(path).read_bytes()[4:8], "little")
def writable(path):
    try:
        Path(path, "probe").touch()
    except OSError:
        return False
    return True
sources = sorted(guest.rglob("*.py"))
stdlib = [m for m in sys.modules.values() if getattr(m, "__cached__", None)]
print(json.dumps({
    "uid": os.getuid(),
    "stdlib": {m.__name__: flags(m.__cached__) for m in stdlib},
    "magic": all(Path(m.__cached__).read_bytes()[:4] == importlib.util.MAGIC_NUMBER
                 for m in stdlib),
    "guest": [s.relative_to(guest).with_suffix("").as_posix() for s in sources],
    "compiled": [flags(importlib.util.cache_from_source(str(s))) for s in sources],
    "writable": [p for p in ("/", "/usr/lib", str(guest)) if writable(p)],
}))
"""


class OwnImages(ImageEngine):
    """An engine on which the runtime image's repository has a name of this test's own."""

    async def inspect(self, name: str) -> ImageFacts | None:
        return await super().inspect(own(name))

    async def names(self, repository: str) -> frozenset[str]:
        names = await super().names(own(repository))
        return frozenset(name.replace(OWN, REPOSITORY) for name in names)

    async def build(self, context: Path, name: str, **about: Any) -> None:
        await super().build(context, own(name), **about)

    async def tag(self, name: str, new: str) -> None:
        await super().tag(own(name), own(new))

    async def remove(self, name: str) -> None:
        await super().remove(own(name))


def own(name: str) -> str:
    return name.replace(REPOSITORY, OWN)


@contextmanager
def podman_service() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="mcb-", ignore_cleanup_errors=True) as name:
        where, root = Path(name) / "s", ["--root", f"{name}/root", "--runroot", f"{name}/run"]
        process = subprocess.Popen(
            ["podman", *root, "system", "service", "--time=0", f"unix://{where}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield f"unix://{where}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(SERVICE_SECONDS)
            # Unmounts what overlay storage has mounted below the directory.
            for word in ("rm", "rmi"):
                subprocess.run(["podman", *root, word, "-af"], capture_output=True, check=False)


async def wait_for(url: str) -> None:
    with anyio.fail_after(SERVICE_SECONDS):
        while not listens(Path(url.removeprefix("unix://"))):  # noqa: ASYNC110 - another's process
            await anyio.sleep(0.05)


ENGINES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "podman")]


@pytest.fixture(scope="module", params=ENGINES)
async def engine(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[ImageEngine, docker.APIClient]]:
    with contextmanager(_endpoint)(request.param) as url:
        await wait_for(url)
        api = await connect(EngineEndpoint(url=url, origin="a test"), asked=request.param)
        try:
            option = "--host" if request.param == "docker" else "--url"
            images = OwnImages(api, command=[request.param, option, url], run=SystemRunner())
            yield images, api.client
            await images.remove(SLIM)
        finally:
            api.close()


@pytest.fixture(scope="module")
async def built(engine: tuple[ImageEngine, docker.APIClient]) -> ImageStatus:
    return await build(engine[0], BuildRequest(offline=True), context(), progress=print)


def _endpoint(kind: str) -> Iterator[str]:
    if kind == "podman":
        with podman_service() as url:
            yield url
    else:
        yield os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


def context() -> RootfsContext:
    return RootfsContext(run=SystemRunner(), recipe=recipe_dir(), state_dir=STATE)


def run(client: docker.APIClient, image: str, *argv: str) -> Any:
    limits = [docker.types.Ulimit(name=name, soft=1024, hard=1024) for name in ("nofile", "nproc")]
    host = client.create_host_config(network_mode="none", read_only=True, ulimits=limits)
    made = client.create_container(image, command=list(argv), host_config=host)
    try:
        client.start(made["Id"])
        ended = client.wait(made["Id"], timeout=RUN_SECONDS)
        said = client.logs(made["Id"], stdout=True, stderr=True).decode()
        assert ended["StatusCode"] == 0, said
        return json.loads(said)
    finally:
        client.remove_container(made["Id"], force=True)


@pytest.mark.slow
async def test_the_offline_image_runs_python_with_the_stdlib_and_the_guest_compiled(
    engine: tuple[ImageEngine, docker.APIClient], built: ImageStatus
) -> None:
    images, client = engine
    assert (built.flavour, built.guest_matches, built.stale) == ("slim", True, "")
    assert await choose(None, images) == SLIM
    assert await images.names(REPOSITORY) == {SLIM}

    seen = run(client, own(SLIM), "python3", "-I", "-S", "-c", LOOK, guest_digest())
    assert seen["uid"] == 65534
    assert seen["writable"] == []
    assert {"json", "json.decoder", "pathlib", "tokenize"} <= set(seen["stdlib"])
    assert seen["magic"]
    # A pyc whose flags say 1 is never checked against its source, so no timestamp can undo it.
    assert set(seen["stdlib"].values()) == {1}
    assert {"__init__", "protocol/wire", "bootstrap"} <= set(seen["guest"])
    assert set(seen["compiled"]) == {1}


async def test_a_rebuild_replaces_the_image_and_leaves_none_without_a_name(
    engine: tuple[ImageEngine, docker.APIClient], built: ImageStatus
) -> None:
    images, _ = engine
    second = await build(images, BuildRequest(offline=True), context(), progress=print)
    facts = await images.inspect(SLIM)
    assert facts is not None
    assert facts.id == second.id
    assert second.id == built.id or await images.inspect(built.id) is None


async def test_a_tarball_that_is_none_is_refused_and_the_image_stays(
    engine: tuple[ImageEngine, docker.APIClient], built: ImageStatus, tmp_path: Path
) -> None:
    images, _ = engine
    before = await images.inspect(SLIM)
    bad = tmp_path / "bad.tar"
    bad.write_text("root:x:0:0\n" * 100, encoding="utf-8")
    with raises_code("image_build_failed", match="tar"):
        await images.import_rootfs(bad, changes=["USER 1"])
    with raises_code("image_build_failed", match="(?i)no such file"):
        await images.import_rootfs(tmp_path / "none.tar", changes=[])
    assert await images.inspect(SLIM) == before


async def test_a_containerfile_is_built_by_the_engine(
    engine: tuple[ImageEngine, docker.APIClient], built: ImageStatus, tmp_path: Path
) -> None:
    images, client = engine
    text = (
        f"FROM scratch AS guest\nFROM {own(SLIM)} AS good\nCOPY --from=guest / /told/\n"
        "FROM good AS bad\nRUN exit 3\n"
    )
    recipe, guest, files = tmp_path / "recipe", tmp_path / "guest", tmp_path / "context"
    recipe.mkdir()
    guest.mkdir()
    (recipe / "Containerfile").write_text(text, encoding="utf-8")
    (guest / "told.json").write_text('{"told": 1}', encoding="utf-8")
    assemble(recipe, guest, files, BuildRequest())
    name, lines = f"{OWN}:good", list[str]()
    try:
        await images.build(files, name, target="good", labels={"mcb": "yes"}, progress=lines.append)
        facts = await images.inspect(name)
        assert facts is not None
        assert facts.labels["mcb"] == "yes"
        assert any("COPY" in line for line in lines)
        code = "print(open('/told/told.json').read())"
        assert run(client, name, "python3", "-I", "-c", code) == {"told": 1}
        with raises_code("image_build_failed", match="3"):
            await images.build(files, f"{name}-2", target="bad", labels={}, progress=print)
        assert await images.inspect(f"{name}-2") is None
    finally:
        await images.remove(name)
        await images.remove(name)  # harmless
    assert await images.inspect(name) is None


async def test_what_the_engine_does_not_have_is_told_from_an_engine_that_is_down(
    engine: tuple[ImageEngine, docker.APIClient],
) -> None:
    images, _ = engine
    assert await images.inspect("localhost/mcb-none:x") is None
    with raises_code("image_missing"):
        await images.tag("localhost/mcb-none:x", "localhost/mcb-none:y")
    # No one listens on port 9, so this fails the same with and without a network.
    with raises_code("image_pull_failed") as caught:
        await images.pull("localhost:9/mcb/none:1", progress=print)
    assert "--offline" in caught.value.remedy
