"""The order of a build's steps and what is left when one fails, on a fake engine and script."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bridge.errors import SandboxError
from bridge.sandbox.bundle import guest_digest
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from bridge.sandbox.container.endpoints import EngineKind
from bridge.sandbox.container.image import (
    LABEL_FLAVOUR,
    LABEL_GUEST,
    LABEL_VERSION,
    BuildRequest,
    ImageEngine,
    ImageFacts,
    ImageStatus,
    Progress,
    RootfsContext,
    assemble,
    build,
    debian_names,
    local_name,
    recipe_dir,
    with_guest,
)
from tests.raised import raises_code

SLIM = local_name("slim")
CONTAINERFILE = "FROM scratch AS guest\n\nFROM x AS slim\nCOPY --from=guest / /guest/\n"


@dataclass
class FakeEngine(ImageEngine):
    kind: EngineKind = "docker"
    fail: str = ""
    labels: Mapping[str, str] | None = None
    during: Callable[[], object] = lambda: None
    by_name: dict[str, str] = field(default_factory=dict)
    by_id: dict[str, ImageFacts] = field(default_factory=dict)
    contexts: list[set[str]] = field(default_factory=list)

    def add(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        self.by_id[image] = ImageFacts(id=image, size=5 * 1024**2, labels=labels)
        if name:
            self.by_name[name] = image

    async def inspect(self, name: str) -> ImageFacts | None:
        image = self.by_name.get(name, name)
        facts = self.by_id.get(image)
        if facts is None:
            return None
        names = tuple(n for n, i in self.by_name.items() if i == image)
        return ImageFacts(id=image, names=names, size=facts.size, labels=facts.labels)

    async def import_rootfs(self, tarball: Path, *, changes: Sequence[str]) -> str:
        labels = dict(
            line.removeprefix("LABEL ").split("=", 1) for line in changes if line[:6] == "LABEL "
        )
        return await self._make("", labels, "import")

    async def build(self, context: Path, name: str, **about: Any) -> None:
        self.contexts.append(_below(context))
        about["progress"]("STEP 1/1: FROM x")
        await self._make(name, about["labels"], "build")

    async def _make(self, name: str, labels: Mapping[str, str], step: str) -> str:
        self.during()
        await anyio.lowlevel.checkpoint()
        if self.fail == step:
            raise SandboxError(f"{step} failed", code="image_build_failed")
        image = f"image-{len(self.by_id)}"
        self.add(name, image, labels if self.labels is None else self.labels)
        return image

    async def tag(self, name: str, new: str) -> None:
        if self.fail == "tag" and new == SLIM:
            raise SandboxError("tag failed", code="image_build_failed")
        self.by_name[new] = self.by_name.get(name, name)

    async def remove(self, name: str) -> None:
        image = self.by_name.pop(name, name)
        if image not in self.by_name.values():
            self.by_id.pop(image, None)


@dataclass
class FakeScript(SystemRunner):
    result: CompletedCommand = CompletedCommand(exit_code=0)
    calls: list[Sequence[str]] = field(default_factory=list)

    async def __call__(self, argv: Sequence[str], **options: Any) -> CompletedCommand:
        await anyio.lowlevel.checkpoint()
        if "--changes" in argv:
            settings = f"USER 65534:65534\nLABEL {LABEL_FLAVOUR}={argv[-1]}\n"
            return CompletedCommand(exit_code=0, stdout=f"{settings}LABEL {LABEL_VERSION}=1\n")
        self.calls.append(argv)
        _write(Path(argv[-1] if self.result.ok else f"{argv[-1]}.partial"))
        return self.result


def _below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.*")}


def _write(output: Path) -> None:
    output.write_bytes(b"a tarball")


def context(
    tmp_path: Path, script: FakeScript, clock: Callable[[], float] = time.time
) -> RootfsContext:
    recipe = tmp_path / "recipe"
    recipe.mkdir(exist_ok=True)
    (recipe / "VERSION").write_text("1\n", encoding="utf-8")
    (recipe / "Containerfile").write_text(CONTAINERFILE, encoding="utf-8")
    (recipe / "build-rootfs.sh").write_text("exit 1\n", encoding="utf-8")
    return RootfsContext(run=script, recipe=recipe, state_dir=tmp_path / "state", clock=clock)


def quiet(_: str) -> None:
    """Ignore progress."""


async def made(
    tmp_path: Path,
    engine: FakeEngine | None = None,
    script: FakeScript | None = None,
    *,
    rootfs: RootfsContext | None = None,
    progress: Progress = quiet,
    **request: Any,
) -> ImageStatus:
    return await build(
        engine or FakeEngine(),
        BuildRequest(**{"offline": True, **request}),
        rootfs or context(tmp_path, script or FakeScript()),
        progress=progress,
    )


def tarballs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "state" / "rootfs").iterdir())


@pytest.mark.parametrize("offline", [True, False])
async def test_a_build_gives_the_flavours_name_to_an_image_that_carries_this_guest(
    tmp_path: Path, offline: bool
) -> None:
    engine, lines = FakeEngine(), list[str]()
    told = await made(tmp_path, engine, progress=lines.append, offline=offline)
    assert told.name == SLIM
    assert (told.flavour, told.version, told.guest_matches) == ("slim", "1", True)
    assert set(engine.by_name) == {SLIM}
    assert lines[-1] == f"docker: {SLIM} is ready (5 MB)"
    guest = f"guest/{guest_digest()}/bridge/guest/__init__.py"
    assert [guest in files for files in engine.contexts] == ([] if offline else [True])


@pytest.mark.parametrize("step", ["import", "tag", "build"])
async def test_a_build_that_fails_leaves_the_image_that_worked(tmp_path: Path, step: str) -> None:
    engine = FakeEngine(fail=step)
    engine.add(SLIM, "old", {})
    with raises_code("image_build_failed", match=f"{step} failed"):
        await made(tmp_path, engine, offline=step != "build")
    assert engine.by_name == {SLIM: "old"}
    assert set(engine.by_id) == {"old"}


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {LABEL_FLAVOUR: "data", LABEL_VERSION: "1", LABEL_GUEST: guest_digest()},
        {LABEL_FLAVOUR: "slim", LABEL_VERSION: "1", LABEL_GUEST: "another"},
    ],
)
async def test_an_image_without_its_settings_never_gets_the_name(
    tmp_path: Path, labels: dict[str, str]
) -> None:
    engine = FakeEngine(labels=labels)
    engine.add(SLIM, "old", {})
    with raises_code("image_build_failed", match="without the settings"):
        await made(tmp_path, engine)
    assert engine.by_name == {SLIM: "old"}


@pytest.mark.parametrize("offline", [True, False])
async def test_a_cancelled_build_leaves_the_image_that_worked(
    tmp_path: Path, offline: bool
) -> None:
    engine = FakeEngine()
    engine.add(SLIM, "old", {})
    with anyio.CancelScope() as scope:
        engine.during = scope.cancel
        await made(tmp_path, engine, offline=offline)
    assert scope.cancelled_caught
    assert engine.by_name == {SLIM: "old"}


async def test_the_replaced_image_stays_if_the_user_gave_it_another_name(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.add(SLIM, "old", {})
    engine.by_name["mine:1"] = "old"
    await made(tmp_path, engine)
    assert engine.by_name["mine:1"] == "old"
    assert "old" in engine.by_id


async def test_a_root_filesystem_is_made_once_for_both_engines(tmp_path: Path) -> None:
    script = FakeScript()
    for _ in range(2):
        await made(tmp_path, script=script)
    assert len(script.calls) == 1


@pytest.mark.parametrize("cause", ["fresh", "recipe", "age"])
async def test_a_root_filesystem_is_made_again_when_asked_changed_or_old(
    tmp_path: Path, cause: str
) -> None:
    script = FakeScript()
    first = context(tmp_path, script)
    await made(tmp_path, rootfs=first)
    latest = max(path.stat().st_mtime for path in tarballs(tmp_path))
    clock = latest + (15 * 24 * 3600 if cause == "age" else 1)
    second = context(tmp_path, script, lambda: clock)
    if cause == "recipe":
        (second.recipe / "packages-slim.txt").write_bytes(b"python3\n")
    await made(tmp_path, rootfs=second, fresh=cause == "fresh")
    assert len(script.calls) == 2
    assert len(tarballs(tmp_path)) == 1


async def test_a_script_that_fails_leaves_no_file_and_keeps_what_was_made_before(
    tmp_path: Path,
) -> None:
    await made(tmp_path)
    kept = tarballs(tmp_path)
    failing = FakeScript(result=CompletedCommand(exit_code=1, stderr="build-rootfs: it broke"))
    with raises_code("image_build_failed", match="it broke"):
        await made(tmp_path, script=failing, fresh=True)
    assert tarballs(tmp_path) == kept


async def test_an_unusable_state_directory_or_installation_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"in the way")
    with raises_code("image_build_failed", match="nowhere to build") as caught:
        await made(tmp_path)
    assert "MCP_BRIDGE_STATE_DIR" in caught.value.remedy

    rootfs = context(tmp_path, FakeScript())
    (rootfs.recipe / "Containerfile").unlink()
    with raises_code("image_build_failed", match="no Containerfile"):
        await made(tmp_path, rootfs=rootfs, offline=False)


def test_the_context_leaves_compiled_files_out(tmp_path: Path) -> None:
    recipe, guest = tmp_path / "recipe", tmp_path / "guest"
    for path in (recipe / "Containerfile", recipe / "__pycache__" / "x.pyc", guest / "d" / "m.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (recipe / "Containerfile").write_bytes(CONTAINERFILE.encode())
    request = BuildRequest(packages=("polars<2", "seaborn"))
    assemble(recipe, guest, tmp_path / "out", request)
    assert _below(tmp_path / "out") == {"guest/d/m.py", "packages-slim-added.txt"}
    asked = (tmp_path / "out" / "packages-slim-added.txt").read_text(encoding="utf-8")
    assert asked == "polars<2\nseaborn\n"


@pytest.mark.parametrize("offline", [True, False])
async def test_an_image_carries_what_was_added_and_its_tarball_is_another(
    tmp_path: Path, offline: bool
) -> None:
    script = FakeScript()
    for packages in ((), ("python-pptx", "scikit-image"), ("python-pptx", "scikit-image")):
        built = await made(tmp_path, script=script, packages=packages, offline=offline)
        assert built.packages == packages
    if offline:
        added = [argv[2:-4] for argv in script.calls if "--package" in argv]
        names = ["python3-pptx python3-python-pptx", "python3-skimage python3-scikit-image"]
        assert added == [["--package", names[0], "--package", names[1]]]
        assert len(script.calls) == 2


def test_debian_has_one_version_of_a_package() -> None:
    for name in ("numpy<2", "httpx[http2]", 'x; python_version > "3"'):
        with raises_code("image_build_failed", match="one version of each") as caught:
            debian_names(name)
        assert "leave out `--offline`" in caught.value.remedy


def test_the_guests_stage_is_filled_from_the_context() -> None:
    told = with_guest(CONTAINERFILE).splitlines()
    assert told[:2] == ["FROM scratch AS guest", "COPY guest/ /"]
    assert told[2:] == CONTAINERFILE.splitlines()[1:]

    text = (recipe_dir() / "Containerfile").read_text(encoding="utf-8")
    assert "COPY guest/ /" in with_guest(text)

    with raises_code("image_build_failed", match="no stage for the guest"):
        with_guest("FROM x AS slim\n")
