"""The runtime image: its names and labels, the choice for runs, its status, and `image build`.

A build runs the recipe, on the public base image or from Debian packages. It keeps the root
filesystems of offline builds. An image gets its name only when it is complete, so a build that
fails or is killed leaves the previous image.
"""

from __future__ import annotations

import hashlib
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal

import anyio.to_thread

from bridge.errors import SandboxError
from bridge.sandbox.bundle import guest_digest, write_guest_tree
from bridge.sandbox.container import faults
from bridge.sandbox.container.api import EngineApi
from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner
from bridge.sandbox.container.endpoints import EngineKind

Progress = Callable[[str], None]
Flavour = Literal["slim", "data"]

# In order of preference: a user who built `data` needs its packages.
FLAVOURS: tuple[Flavour, ...] = ("data", "slim")

DEFAULT_FALLBACK = "python:3.13-slim"  # The image of runs if none was built and none is set.

# podman's prefix of built images, which docker accepts. Neither pulls from it.
REPOSITORY = "localhost/mcp-code-bridge-runtime"

LABEL_FLAVOUR = "org.mcp-code-bridge.image.flavour"
LABEL_VERSION = "org.mcp-code-bridge.image.version"
LABEL_GUEST = "org.mcp-code-bridge.guest-digest"
LABEL_PACKAGES = "org.mcp-code-bridge.image.packages"  # From `image build --package`.


_REGISTRY = (
    "pinging container registry", "initializing source docker://", "manifest unknown",
    "pull access denied", "toomanyrequests", "dial tcp", "no such host", "i/o timeout",
    "tls handshake", "connection refused", "request canceled while waiting for connection",
    "temporary failure", "could not resolve",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    id: str
    names: tuple[str, ...] = ()
    size: int = 0
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class ImageEngine:
    """One engine's images; `command` is its command line with the same address."""

    def __init__(self, api: EngineApi, *, command: Sequence[str], run: SystemRunner) -> None:
        self._api = api
        self.kind: EngineKind = api.kind
        self._command = command
        self._run = run

    async def inspect(self, name: str) -> ImageFacts | None:
        look, harmless = self._api.client.inspect_image, (faults.is_no_image,)
        seen = await self._api.ask("look for an image", look, name, harmless=harmless)
        if seen is None:
            return None
        config = seen.get("Config") or seen.get("ContainerConfig") or {}
        return ImageFacts(
            id=str(seen["Id"]).removeprefix("sha256:"),
            names=_names(seen.get("RepoTags")),
            size=int(seen.get("Size") or 0),
            created=str(seen.get("Created") or ""),
            labels={str(k): str(v) for k, v in (config.get("Labels") or {}).items()},
        )

    async def names(self, repository: str) -> frozenset[str]:
        return frozenset(
            name
            for image in await self._api.ask("list images", self._api.client.images)
            for name in _names(image.get("RepoTags"))
            if name.rpartition(":")[0] == repository
        )

    async def pull(self, name: str, *, progress: Progress) -> None:
        done = await self._run([*self._command, "pull", name], timeout=1800.0, on_line=progress)
        if not done.ok:
            message = f"{self.kind} could not pull {name}: {faults.one_line(_reason(done))}."
            raise SandboxError(message, code="image_pull_failed")

    async def import_rootfs(self, tarball: Path, *, changes: Sequence[str]) -> str:
        words = [word for change in changes for word in ("--change", change)]
        # The slowest storage driver (vfs) unpacks a few hundred megabytes.
        words = [*self._command, "import", *words, str(tarball)]
        done = await self._run(words, timeout=900.0)
        ids = re.findall(r"[0-9a-f]{64}", done.stdout)
        if not done.ok or not ids:
            raise build_failure(self.kind, f"import {tarball.name}", _reason(done))
        return str(ids[-1])

    async def build(
        self,
        context: Path,
        name: str,
        *,
        target: str,
        labels: Mapping[str, str],
        progress: Progress,
    ) -> None:
        words = [*self._command, "build", "--force-rm", "--file", str(context / "Containerfile")]
        words += ["--target", target, "--tag", name]
        words += [word for each in labels.items() for word in ("--label", "=".join(each))]
        done = await self._run([*words, str(context)], timeout=3600.0, on_line=progress)
        if not done.ok:
            raise build_failure(self.kind, f"build {name}", _reason(done))

    async def tag(self, name: str, new: str) -> None:
        """Give an image another name and tag, which an earlier image loses."""
        repository, _, tag = new.rpartition(":")
        await self._api.ask("tag an image", self._api.client.tag, name, repository, tag)

    async def remove(self, name: str) -> None:
        """Remove a name or id, and with the last name the image, unless it is in use."""
        # `image prune` removes an image that a container uses.
        harmless = (faults.is_no_image, faults.is_in_use)
        remove = self._api.client.remove_image
        await self._api.ask("remove an image", remove, name, harmless=harmless)


def _reason(done: CompletedCommand) -> str:
    if done.timed_out:
        return "it did not finish in time"
    return done.stderr.strip() or done.stdout.strip() or "it named no image"


def build_failure(engine: str, doing: str, output: str) -> SandboxError:
    low = output.lower()
    remedy = "Run `mcp-code-bridge doctor` to see whether the engine works at all."
    if "no space left on device" in low or "disk quota exceeded" in low:
        remedy = f"Free space where {engine} keeps its images (`{engine} system df`)."
    elif any(mark in low for mark in _REGISTRY):
        remedy = "Run `mcp-code-bridge image build --offline`, which needs no registry."
    message = f"{engine} could not {doing}: {faults.one_line(output[-faults.MAX_DETAIL :])}."
    return SandboxError(message, remedy=remedy, code="image_build_failed")


def _names(tags: Iterable[object] | None) -> tuple[str, ...]:
    return tuple(str(tag) for tag in tags or () if "<none>" not in str(tag))


def local_name(flavour: Flavour) -> str:
    return f"{REPOSITORY}:{flavour}"


async def choose(setting: str | None, engine: ImageEngine) -> str:
    """Return the image of runs: the configured one, else a built one, else the public one."""
    if setting:
        return setting
    built = await engine.names(REPOSITORY)
    names = (local_name(flavour) for flavour in FLAVOURS)
    return next((name for name in names if name in built), DEFAULT_FALLBACK)


async def ensure_present(
    name: str, engine: ImageEngine, *, progress: Progress | None, place: str = "MCP_BRIDGE_IMAGE"
) -> None:
    """Pull a missing image; without `progress` a missing image is an error."""
    if await engine.inspect(name) is not None:
        return
    ours = name.startswith("localhost/") or name == DEFAULT_FALLBACK
    if name.startswith("localhost/") or progress is None:
        what = "runtime image" if name == DEFAULT_FALLBACK else f"image {name}"
        remedy = None if ours else f"Run `{engine.kind} pull {name}`."
        raise SandboxError(f"{engine.kind} has no {what} yet.", remedy=remedy, code="image_missing")
    size = " (about 45 MB; a minute on most lines)" if name == DEFAULT_FALLBACK else ""
    progress(f"{engine.kind}: pulling {name}, once{size}")
    try:
        await engine.pull(name, progress=progress)
    except SandboxError as error:
        if name == DEFAULT_FALLBACK or error.code != "image_pull_failed":
            raise
        remedy = f"Check the name in {place}, or unset it."
        raise SandboxError(error.message, remedy=remedy, code="image_pull_failed") from error


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    engine: EngineKind
    name: str
    present: bool  # If not, the other fields are empty.
    id: str = ""
    size: int = 0
    created: str = ""  # The engine's text, in ISO 8601.
    # From the bridge's labels; empty for other images.
    flavour: str = ""
    version: str = ""
    packages: tuple[str, ...] = ()  # The requirements of `image build --package`.
    # Whether it contains this bridge's compiled guest; None for other images.
    guest_matches: bool | None = None
    stale: str = ""  # The reason to rebuild it, if any. A stale image still works.


async def describe(engine: ImageEngine, name: str, version: str) -> ImageStatus:
    """Return an image's status, compared with this bridge's guest and a recipe's version."""
    facts = await engine.inspect(name)
    if facts is None:
        return ImageStatus(engine=engine.kind, name=name, present=False)
    built, matches, stale = facts.labels.get(LABEL_VERSION), None, ""
    if built is not None:
        matches = facts.labels.get(LABEL_GUEST) == guest_digest()
        if built != version:
            stale = f"It was built by recipe {built or 'unknown'}; this bridge has {version}."
        elif not matches:
            stale = "It has another version's guest, so runs start slower until it is rebuilt."
    return ImageStatus(
        engine=engine.kind,
        name=name,
        present=True,
        id=facts.id,
        size=facts.size,
        created=facts.created,
        flavour=facts.labels.get(LABEL_FLAVOUR, ""),
        version=built or "",
        packages=tuple(filter(None, facts.labels.get(LABEL_PACKAGES, "").split("|"))),
        guest_matches=matches,
        stale=stale,
    )


async def status(
    engine: ImageEngine, version: str, setting: str | None = None
) -> tuple[ImageStatus, ...]:
    chosen = await choose(setting, engine)
    names = dict.fromkeys([*(local_name(flavour) for flavour in FLAVOURS), chosen])
    return tuple([await describe(engine, name, version) for name in names])


SCRIPT = "build-rootfs.sh"
CONTAINERFILE = "Containerfile"


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    flavour: Flavour = "slim"
    # Requirements to add to the flavour's, sorted; without versions if offline.
    packages: tuple[str, ...] = ()
    offline: bool = False  # Whether to build from Debian packages, without an image registry.
    fresh: bool = False  # Whether an offline build ignores a kept root filesystem.


@dataclass(frozen=True, kw_only=True)
class RootfsContext:
    run: SystemRunner
    recipe: Path  # The recipe's directory.
    state_dir: Path  # The bridge's; tarballs are kept below it.
    clock: Callable[[], float] = time.time  # Seconds since the epoch, as files' times are.


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
    context: RootfsContext, options: Sequence[str], timeout: float, progress: Progress | None = None
) -> str:
    argv = ["sh", str(context.recipe / SCRIPT), *options]
    result = await context.run(argv, timeout=timeout, on_line=progress)
    if not result.ok:
        raise script_failure(result)
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


def script_failure(result: CompletedCommand) -> SandboxError:
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
    name, version = local_name(request.flavour), recipe_version(context.recipe)
    before = await engine.inspect(name)
    if request.offline:
        image = await _import(engine, request, context, progress)
        try:
            _check(await describe(engine, image, version), request)
            await engine.tag(image, name)
        except BaseException:
            await _remove(engine, image)
            raise
    else:
        await _build_online(engine, request, context.recipe, name, progress)
    status = await describe(engine, name, version)
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
    """Write a build context: the recipe, the guest below `guest/`, and the added packages."""
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
        seen = f"flavour {status.flavour or 'none'}, "
        seen += f"guest {'right' if status.guest_matches else 'wrong'}"
        message = f"{status.engine} made an image without the settings it was given ({seen})."
        raise _build_error(message, f"Update {status.engine}, or use another engine.")


async def _remove(engine: ImageEngine, name: str) -> None:
    """Remove an unused image; if that fails, a later build tries again."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(60.0), suppress(SandboxError):
        await engine.remove(name)
