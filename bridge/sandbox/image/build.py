"""`image build`: the runtime image onto an engine, from the public base image or from packages.

An engine gives an image its name only when it is complete, so a build that fails, is cancelled or
is killed leaves the previous image.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.errors import SandboxError
from bridge.sandbox.bundle import guest_digest
from bridge.sandbox.container.image import (
    LABEL_FLAVOUR,
    LABEL_GUEST,
    LABEL_PACKAGES,
    LABEL_VERSION,
    Flavour,
    ImageEngine,
    ImageStatus,
    Progress,
    describe,
    local_name,
)
from bridge.sandbox.image import rootfs as image_rootfs
from bridge.sandbox.image.rootfs import RootfsContext, recipe_version

CONTAINERFILE = "Containerfile"

_GUEST_STAGE = re.compile(r"^FROM scratch AS guest[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to build.

    Attributes:
        packages: Requirements of what is added, sorted; offline without versions.
        offline: From Debian packages, with no image registry.
        fresh: Offline: rebuild the root filesystem even if a cached one could be used.
    """

    flavour: Flavour = "slim"
    packages: tuple[str, ...] = ()
    offline: bool = False
    fresh: bool = False


async def build(
    engine: ImageEngine, request: BuildRequest, context: RootfsContext, *, progress: Progress
) -> ImageStatus:
    """Build the runtime image on `engine` and return its status.

    Args:
        context: Where the recipe is, and how the offline build runs its script.

    Raises:
        SandboxError: It could not be built; an image that was there is still there.
        SandboxError: The engine does not answer.
    """
    name = local_name(request.flavour)
    before = await engine.inspect(name)
    if request.offline:
        image = await _import(engine, request, context, progress)
        try:
            _check(await _status(engine, image, context), request)
            await engine.tag(image, name)
        except BaseException:
            await _remove(engine, image)
            raise
    else:
        await _build_online(engine, request, context.recipe, name, progress)
    status = await _status(engine, name, context)
    if before is not None and before.id != status.id:
        await _remove_nameless(engine, before.id)
    progress(f"{engine.kind}: {name} is ready ({status.size // 1024**2} MB)")
    return status


async def _status(engine: ImageEngine, image: str, context: RootfsContext) -> ImageStatus:
    version = recipe_version(context.recipe)
    return await describe(engine, image, guest_digest=guest_digest(), version=version)


async def _import(
    engine: ImageEngine, request: BuildRequest, context: RootfsContext, progress: Progress
) -> str:
    """Import the root filesystem and return the image's id; it has no name yet."""
    settings = await image_rootfs.changes(context, request.flavour)
    if request.packages:
        settings = (*settings, f"LABEL {LABEL_PACKAGES}={'|'.join(request.packages)}")
    context = replace(context, packages=request.packages)
    tarball = await image_rootfs.rootfs(
        context, request.flavour, fresh=request.fresh, progress=progress
    )
    progress(f"{engine.kind}: importing {tarball.stat().st_size // 1024**2} MB")
    return await engine.import_rootfs(tarball, changes=settings)


async def _build_online(
    engine: ImageEngine, request: BuildRequest, recipe: Path, name: str, progress: Progress
) -> None:
    if not (recipe / CONTAINERFILE).is_file():
        message = f"There is no {CONTAINERFILE} in {recipe}."
        raise SandboxError(message, remedy="Reinstall mcp-code-bridge.", code="image_build_failed")
    labels = {
        LABEL_FLAVOUR: request.flavour,
        LABEL_PACKAGES: "|".join(request.packages),
        LABEL_VERSION: recipe_version(recipe),
        LABEL_GUEST: guest_digest(),
    }
    with image_rootfs.guest_tree() as guest, tempfile.TemporaryDirectory() as directory:
        assembled = Path(directory) / "context"
        await anyio.to_thread.run_sync(partial(assemble, recipe, guest, assembled, request))
        target = request.flavour
        await engine.build(assembled, name, target=target, labels=labels, progress=progress)


def assemble(recipe: Path, guest: Path, output: Path, request: BuildRequest) -> None:
    """Write an engine's build context: the recipe's files, and the guest's below `guest/`.

    The request's packages join those of its flavour.
    """
    shutil.copytree(recipe, output, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copytree(guest, output / "guest", dirs_exist_ok=True)
    with (output / f"packages-{request.flavour}-added.txt").open("a", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in request.packages)
    text = (recipe / CONTAINERFILE).read_text(encoding="utf-8")
    (output / CONTAINERFILE).write_text(with_guest(text), encoding="utf-8")


def with_guest(containerfile: str) -> str:
    """Fill the Containerfile's empty `guest` stage from the context's `guest/`.

    `--build-context guest=DIR` would do it with BuildKit or buildah; Docker may be without both.
    """
    filled, count = _GUEST_STAGE.subn(r"\g<0>\nCOPY guest/ /", containerfile)
    if count != 1:
        message = f"The {CONTAINERFILE} has no stage for the guest package."
        raise SandboxError(message, remedy="Reinstall mcp-code-bridge.", code="image_build_failed")
    return filled


def _check(status: ImageStatus, request: BuildRequest) -> None:
    """Reject an image that is not the requested one, before it gets the real name."""
    asked = (request.flavour, request.packages)
    if not status.guest_matches or (status.flavour, status.packages) != asked:
        message = (
            f"{status.engine} made an image without the settings it was given (flavour "
            f"{status.flavour or 'none'}, guest {'right' if status.guest_matches else 'wrong'})."
        )
        raise SandboxError(
            message,
            remedy=f"Update {status.engine}, or use another engine.",
            code="image_build_failed",
        )


async def _remove_nameless(engine: ImageEngine, image: str) -> None:
    """Remove an image that lost its name, unless the user gave it another one."""
    facts = await engine.inspect(image)
    if facts is not None and not facts.names:
        await _remove(engine, image)


async def _remove(engine: ImageEngine, name: str) -> None:
    """Remove an unused image; if that fails, a later build tries again."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(60.0), suppress(SandboxError):
        await engine.remove(name)
