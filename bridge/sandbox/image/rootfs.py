"""The root filesystem of the offline image: its recipe, how it is built, where it is cached.

Owns running `build-rootfs.sh` and the cache of its results. The recipe decides what is in the
image; `image_build` turns the tarball into one.
"""

from __future__ import annotations

import hashlib
import platform
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import anyio.to_thread

from bridge.errors import SandboxError
from bridge.sandbox.bundle import guest_digest, write_guest_tree
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from bridge.sandbox.container.image import LABEL_GUEST, Flavour, Progress

SCRIPT = "build-rootfs.sh"


@dataclass(frozen=True, kw_only=True)
class RootfsContext:
    """The environment of building a root filesystem.

    Attributes:
        recipe: The directory with the script.
        state_dir: The bridge's state directory; tarballs are kept below it.
        packages: Names of PyPI or Debian, of what is added to a flavour's packages.
        clock: Seconds since the epoch, as files' times are.
    """

    run: SystemRunner
    recipe: Path
    state_dir: Path
    packages: tuple[str, ...] = ()
    clock: Callable[[], float] = time.time

    @property
    def cache(self) -> Path:
        return self.state_dir / "rootfs"


def recipe_dir() -> Path:
    """Return the directory of the image's recipe, in the repository or in the installed package."""
    package = Path(str(resources.files("bridge")))
    for candidate in (package.parent / "runtime_image", package / "_runtime_image"):
        if (candidate / SCRIPT).is_file():
            return candidate
    message = "The recipe of the runtime image is not part of this installation."
    raise SandboxError(message, remedy="Reinstall mcp-code-bridge.", code="image_build_failed")


def recipe_version(recipe: Path) -> str:
    """Return the version that images made from this recipe carry."""
    try:
        return (recipe / "VERSION").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


async def rootfs(
    context: RootfsContext, flavour: Flavour, *, fresh: bool, progress: Progress
) -> Path:
    """Return a tarball of the image's root filesystem, made now or kept from before.

    Args:
        fresh: Make it again whatever is kept.
    """
    tarball = context.cache / f"{flavour}-{_key(context, flavour)}.tar"
    # Two weeks later its packages miss security fixes.
    if not fresh and _age(context, tarball) < 14 * 24 * 3600.0:
        progress(f"Using the root filesystem made before: {tarball}")
        return tarball
    progress(f"Building the {flavour} root filesystem from Debian packages")
    try:
        context.cache.mkdir(parents=True, exist_ok=True)
        for path in context.cache.glob(f"{flavour}-*"):
            # An unfinished one may be another bridge's.
            if path != tarball and (path.suffix == ".tar" or _age(context, path) > 6 * 3600.0):
                path.unlink(missing_ok=True)
    except OSError as error:
        message = f"There is nowhere to build: {error}."
        raise SandboxError(
            message, remedy="Set MCP_BRIDGE_STATE_DIR elsewhere.", code="image_build_failed"
        ) from error
    added = [word for name in context.packages for word in ("--package", debian_names(name))]
    unfinished = tarball.with_name(f"{tarball.stem}.{secrets.token_hex(4)}.partial")
    with guest_tree() as guest:
        options = [*added, "--guest-bundle", str(guest), flavour, str(unfinished)]
        await _make(context, options, unfinished, tarball, progress)
    return tarball


def _age(context: RootfsContext, path: Path) -> float:
    try:
        return context.clock() - path.stat().st_mtime
    except OSError:
        return float("inf")


def _key(context: RootfsContext, flavour: Flavour) -> str:
    """Return what names a tarball: anything that could change its content changes the name."""
    digest = hashlib.sha256()
    parts = [flavour, guest_digest(), _system(), *context.packages]
    for path in sorted(context.recipe.iterdir()):
        if path.is_file() and path.name != "Containerfile":
            parts += [path.name, hashlib.sha256(path.read_bytes()).hexdigest()]
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:32]


_DEBIAN = """
beautifulsoup4=bs4 opencv-python=opencv opencv-python-headless=opencv pillow=pil pyjwt=jwt
psycopg2-binary=psycopg2 pymupdf=fitz pytz=tz pyyaml=yaml scikit-image=skimage scikit-learn=sklearn
"""
"""Packages of PyPI, and what Debian calls them behind `python3-`."""

_ONLINE = "build online, from PyPI: leave out `--offline`"


def debian_names(name: str) -> str:
    """Return the Debian packages that may be a package of PyPI, as words, the likeliest first."""
    if not re.fullmatch("[a-z0-9-]+", name):
        message = f"{name} asks for more than a name, and Debian has one version of each package."
        raise SandboxError(
            message, remedy=f"Name the package alone, or {_ONLINE}.", code="image_build_failed"
        )
    known = dict(pair.split("=") for pair in _DEBIAN.split())
    plain = name.removeprefix("python3-").removeprefix("python-")
    return f"python3-{known.get(name, plain)} python3-{name}"


async def changes(context: RootfsContext, flavour: Flavour) -> tuple[str, ...]:
    """Return the image's settings as Dockerfile instructions, from the recipe."""
    argv = ["sh", str(context.recipe / SCRIPT), "--changes", flavour]
    result = await context.run(argv, timeout=30.0)
    if not result.ok:
        raise failure(result)
    lines = [line.strip() for line in result.stdout.splitlines()]
    return (*(line for line in lines if line), f"LABEL {LABEL_GUEST}={guest_digest()}")


@contextmanager
def guest_tree() -> Iterator[Path]:
    """Yield a temporary directory with the guest's sources, laid out as in an image."""
    with tempfile.TemporaryDirectory(prefix="mcp-code-bridge-") as name:
        # Another user reads it when packages are unpacked in a user namespace.
        root = Path(name)
        root.chmod(0o755)
        write_guest_tree(root)
        yield root


async def _make(
    context: RootfsContext,
    options: Sequence[str],
    unfinished: Path,
    output: Path,
    progress: Progress,
) -> None:
    """Run the script and put what it made at `output`, whole or not at all."""
    argv = ["sh", str(context.recipe / SCRIPT), *options]
    try:
        # `slim` takes about half a minute, `data` a few; mirrors can be slow.
        result = await context.run(argv, timeout=3600.0, on_line=progress)
        if not result.ok:
            raise failure(result)
        await anyio.to_thread.run_sync(unfinished.replace, output)
    finally:
        # The script has a partial file of its own next to its output.
        for path in output.parent.glob(f"{unfinished.name}*"):
            path.unlink(missing_ok=True)


def failure(result: CompletedCommand) -> SandboxError:
    """Return the error for a script that failed, with its remedy."""
    told = result.stderr.strip() or result.stdout.strip()
    detail = " ".join(told[-1500:].split()) or "it wrote nothing"
    if result.timed_out:
        message = f"The root filesystem was not built in time: {detail}"
        return SandboxError(
            message, remedy="Check the Debian mirror in /etc/apt.", code="image_build_failed"
        )
    message = f"The root filesystem could not be built: {detail}"
    return SandboxError(message, remedy=_remedy(told, result), code="image_build_failed")


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


def _system() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    return f"{release.get('ID')} {release.get('VERSION_CODENAME')} {platform.machine()}"
