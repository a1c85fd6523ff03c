"""`image build`: the runtime image on an engine, from the public base image or from packages.

Runs the recipe and keeps the root filesystems of offline builds. An image gets its name only when
it is complete, so a build that fails or is killed leaves the previous image.
"""

from __future__ import annotations

import hashlib
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.errors import SandboxError
from bridge.sandbox.bundle import guest_digest, write_guest_tree
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
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

SCRIPT = "build-rootfs.sh"
CONTAINERFILE = "Containerfile"


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """The image to build.

    Attributes:
        packages: Requirements to add to the flavour's, sorted; without versions if offline.
        offline: Whether to build from Debian packages, without an image registry.
        fresh: Whether an offline build ignores a kept root filesystem.
    """

    flavour: Flavour = "slim"
    packages: tuple[str, ...] = ()
    offline: bool = False
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class RootfsContext:
    """The tools of a build.

    Attributes:
        recipe: The directory of the image's recipe.
        state_dir: The bridge's state directory; tarballs are kept below it.
        clock: Returns seconds since the epoch, as files' times are.
    """

    run: SystemRunner
    recipe: Path
    state_dir: Path
    clock: Callable[[], float] = time.time


def _build_error(message: str, remedy: str) -> SandboxError:
    return SandboxError(message, remedy=remedy, code="image_build_failed")


def recipe_dir() -> Path:
    """Return the recipe's directory, in the repository or in the installed package."""
    package = Path(str(resources.files("bridge")))
    for candidate in (package.parent / "runtime_image", package / "_runtime_image"):
        if (candidate / SCRIPT).is_file():
            return candidate
    message = "The recipe of the runtime image is not part of this installation."
    raise _build_error(message, "Reinstall mcp-code-bridge.")


def recipe_version(recipe: Path) -> str:
    try:
        return (recipe / "VERSION").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


async def _rootfs(request: BuildRequest, context: RootfsContext, progress: Progress) -> Path:
    """Return a tarball of the image's root filesystem, a kept one or a new one."""
    flavour, directory = request.flavour, context.state_dir / "rootfs"
    tarball = directory / f"{flavour}-{_key(request, context)}.tar"
    # After two weeks its packages miss security fixes.
    if not request.fresh and _age(context, tarball) < 14 * 24 * 3600.0:
        progress(f"Using the root filesystem made before: {tarball}")
        return tarball
    progress(f"Building the {flavour} root filesystem from Debian packages")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob(f"{flavour}-*"):
            # Another bridge may be writing an unfinished one.
            if path != tarball and (path.suffix == ".tar" or _age(context, path) > 6 * 3600.0):
                path.unlink(missing_ok=True)
    except OSError as error:
        message = f"There is nowhere to build: {error}."
        raise _build_error(message, "Set MCP_BRIDGE_STATE_DIR elsewhere.") from error
    added = [word for name in request.packages for word in ("--package", debian_names(name))]
    unfinished = tarball.with_name(f"{tarball.stem}.{secrets.token_hex(4)}.partial")
    try:
        with guest_tree() as guest:
            options = [*added, "--guest-bundle", str(guest), flavour, str(unfinished)]
            # `slim` takes about half a minute, `data` a few; mirrors can be slow.
            await _run_script(context, options, 3600.0, progress)
        await anyio.to_thread.run_sync(unfinished.replace, tarball)
    finally:
        # The script writes a partial file of its own next to its output.
        for path in directory.glob(f"{unfinished.name}*"):
            path.unlink(missing_ok=True)
    return tarball


async def _run_script(
    context: RootfsContext,
    options: Sequence[str],
    timeout: float,
    progress: Progress | None = None,
) -> str:
    argv = ["sh", str(context.recipe / SCRIPT), *options]
    result = await context.run(argv, timeout=timeout, on_line=progress)
    if not result.ok:
        raise failure(result)
    return result.stdout


def _age(context: RootfsContext, path: Path) -> float:
    try:
        return context.clock() - path.stat().st_mtime
    except OSError:
        return float("inf")


def _key(request: BuildRequest, context: RootfsContext) -> str:
    """Return a tarball's key, which changes with everything that could change its content."""
    release = {}
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    system = f"{release.get('ID')} {release.get('VERSION_CODENAME')} {platform.machine()}"
    parts = [request.flavour, guest_digest(), system, *request.packages]
    for path in sorted(context.recipe.iterdir()):
        if path.is_file() and path.name != CONTAINERFILE:
            parts += [path.name, hashlib.sha256(path.read_bytes()).hexdigest()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


_DEBIAN = """
beautifulsoup4=bs4 opencv-python=opencv opencv-python-headless=opencv pillow=pil pyjwt=jwt
psycopg2-binary=psycopg2 pymupdf=fitz pytz=tz pyyaml=yaml scikit-image=skimage scikit-learn=sklearn
"""
"""Packages of PyPI, and their names in Debian after `python3-`."""

_ONLINE = "build online, from PyPI: leave out `--offline`"


def debian_names(name: str) -> str:
    """Return the Debian names that a package of PyPI may have, in one string, likeliest first."""
    if not re.fullmatch("[a-z0-9-]+", name):
        message = f"{name} asks for more than a name, and Debian has one version of each package."
        raise _build_error(message, f"Name the package alone, or {_ONLINE}.")
    known = dict(pair.split("=") for pair in _DEBIAN.split())
    plain = name.removeprefix("python3-").removeprefix("python-")
    return f"python3-{known.get(name, plain)} python3-{name}"


@contextmanager
def guest_tree() -> Iterator[Path]:
    """Yield a temporary directory with the guest's sources, as they lie in an image."""
    with tempfile.TemporaryDirectory(prefix="mcp-code-bridge-") as name:
        # Another user reads it when packages are unpacked in a user namespace.
        root = Path(name)
        root.chmod(0o755)
        write_guest_tree(root)
        yield root


def failure(result: CompletedCommand) -> SandboxError:
    """Return the error of a failed script."""
    told = result.stderr.strip() or result.stdout.strip()
    detail = " ".join(told[-1500:].split()) or "it wrote nothing"
    if result.timed_out:
        message = f"The root filesystem was not built in time: {detail}"
        return _build_error(message, "Check the Debian mirror in /etc/apt.")
    message = f"The root filesystem could not be built: {detail}"
    return _build_error(message, _remedy(told, result))


_NAMESPACES = ("newuidmap", "newgidmap", "unshare", "/etc/subuid", "user namespace")
_MIRROR = (
    "could not resolve", "temporary failure", "failed to fetch", "unable to fetch",
    "could not connect", "connection timed out", "unable to locate package", "apt-get update",
)  # fmt: skip


def _remedy(told: str, result: CompletedCommand) -> str:
    low = told.lower()
    if result.missing or "is not installed" in low or "not found" in low:
        return (
            "The offline build needs Debian's mmdebstrap: `apt-get install mmdebstrap`. On another "
            "system build online: `mcp-code-bridge image build`."
        )
    if "is called" in low:
        return f"Find its Debian name with `apt-cache search`, or {_ONLINE}."
    if "no space left on device" in low or "disk quota exceeded" in low:
        return "Free disk space, or point TMPDIR and MCP_BRIDGE_STATE_DIR to where there is some."
    if "no debian" in low or "has no" in low and "source" in low:
        return "The offline build uses apt's own Debian mirror: name one in /etc/apt/sources.list.d"
    if any(mark in low for mark in _MIRROR):
        return "Check that `apt-get update` works here: the packages come from the same mirror."
    if any(mark in low for mark in _NAMESPACES):
        return (
            "An ordinary user needs user namespaces for this: install uidmap and give the user a "
            "range in /etc/subuid and /etc/subgid, or build as root."
        )
    return "Run it with MCP_BRIDGE_LOG_LEVEL=DEBUG, or build online: `mcp-code-bridge image build`."


_GUEST_STAGE = re.compile(r"^FROM scratch AS guest[ \t]*$", re.MULTILINE)


async def build(
    engine: ImageEngine, request: BuildRequest, context: RootfsContext, *, progress: Progress
) -> ImageStatus:
    """Build the runtime image on `engine` and return its status."""
    name, version = local_name(request.flavour), recipe_version(context.recipe)
    look = partial(describe, engine, guest_digest=guest_digest(), version=version)
    before = await engine.inspect(name)
    if request.offline:
        image = await _import(engine, request, context, progress)
        try:
            _check(await look(image), request)
            await engine.tag(image, name)
        except BaseException:
            await _remove(engine, image)
            raise
    else:
        await _build_online(engine, request, context.recipe, name, progress)
    status = await look(name)
    if before is not None and before.id != status.id:
        # The previous image lost its name, unless the user gave it another one.
        facts = await engine.inspect(before.id)
        if facts is not None and not facts.names:
            await _remove(engine, before.id)
    progress(f"{engine.kind}: {name} is ready ({status.size // 1024**2} MB)")
    return status


async def _import(
    engine: ImageEngine, request: BuildRequest, context: RootfsContext, progress: Progress
) -> str:
    """Import the root filesystem; return the id of the image, which has no name yet."""
    # The image's settings, as Dockerfile instructions.
    said = await _run_script(context, ["--changes", request.flavour], 30.0)
    changes = [line.strip() for line in said.splitlines() if line.strip()]
    changes.append(f"LABEL {LABEL_GUEST}={guest_digest()}")
    if request.packages:
        changes.append(f"LABEL {LABEL_PACKAGES}={'|'.join(request.packages)}")
    tarball = await _rootfs(request, context, progress)
    progress(f"{engine.kind}: importing {tarball.stat().st_size // 1024**2} MB")
    return await engine.import_rootfs(tarball, changes=changes)


async def _build_online(
    engine: ImageEngine, request: BuildRequest, recipe: Path, name: str, progress: Progress
) -> None:
    if not (recipe / CONTAINERFILE).is_file():
        message = f"There is no {CONTAINERFILE} in {recipe}."
        raise _build_error(message, "Reinstall mcp-code-bridge.")
    labels = {
        LABEL_FLAVOUR: request.flavour,
        LABEL_PACKAGES: "|".join(request.packages),
        LABEL_VERSION: recipe_version(recipe),
        LABEL_GUEST: guest_digest(),
    }
    with guest_tree() as guest, tempfile.TemporaryDirectory() as directory:
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
        raise _build_error(message, "Reinstall mcp-code-bridge.")
    return filled


def _check(status: ImageStatus, request: BuildRequest) -> None:
    """Reject an image that is not the requested one, before it gets the real name."""
    asked = (request.flavour, request.packages)
    if not status.guest_matches or (status.flavour, status.packages) != asked:
        message = (
            f"{status.engine} made an image without the settings it was given (flavour "
            f"{status.flavour or 'none'}, guest {'right' if status.guest_matches else 'wrong'})."
        )
        raise _build_error(message, f"Update {status.engine}, or use another engine.")


async def _remove(engine: ImageEngine, name: str) -> None:
    """Remove an unused image; if that fails, a later build tries again."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(60.0), suppress(SandboxError):
        await engine.remove(name)
