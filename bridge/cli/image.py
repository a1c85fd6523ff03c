"""`image build` and `image status`: the runtime image on this machine's engines."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated

from bridge.cli.options import AsJson, flag, opt
from bridge.cli.output import visible, write_err, write_json, write_out
from bridge.cli.status import waiting
from bridge.errors import BridgeError, SandboxError
from bridge.packages.requirements import parse_requirements
from bridge.sandbox.container.backend import container_backend
from bridge.sandbox.container.command_runner import SystemRunner
from bridge.sandbox.container.image import (
    BuildRequest,
    Flavour,
    ImageEngine,
    ImageStatus,
    RootfsContext,
    build,
    describe,
    local_name,
    recipe_dir,
    recipe_version,
    status,
)
from bridge.sandbox.selection import engines
from bridge.settings import Settings


async def build_image(
    settings: Settings,
    *,
    flavour: Annotated[
        Flavour,
        opt("<slim|data>", "data adds numpy, pandas, matplotlib, scikit-learn and a dozen more"),
    ] = "slim",
    package: Annotated[list[str] | None, opt("NAME", "a package to add; may be repeated")] = None,
    offline: Annotated[bool, flag("--offline", "from Debian packages, without a registry")] = False,
    fresh: Annotated[bool, flag("--fresh", "rebuild even if up to date")] = False,
    as_json: AsJson = False,
) -> int:
    """Build the runtime image.

    The first engine that answers builds it.

    Examples:
        image build --flavour data --package seaborn
    """
    packages = tuple(one.text for one in parse_requirements(package or ()))
    request = BuildRequest(flavour=flavour, offline=offline, fresh=fresh, packages=packages)
    context = RootfsContext(
        run=SystemRunner(env=settings.environ), recipe=recipe_dir(), state_dir=settings.state_dir
    )
    version = recipe_version(context.recipe)

    async def make(engine: ImageEngine) -> None:
        name = local_name(request.flavour)
        built = await describe(engine, name, version)
        lost = [text for text in built.packages if text not in packages]
        if lost:
            again = " ".join(f"--package {shlex.quote(text)}" for text in lost)
            write_err(f"{built.name} had packages that it will lack; {again} keeps them\n")
        with waiting("building the image") as say:

            def progress(text: str) -> None:
                write_err(f"{text}\n")
                say(text)

            if built.present and not (built.stale or fresh) and built.packages == packages:
                progress(f"{engine.kind}: {built.name} is up to date; --fresh builds it anyway")
            else:
                built = await build(engine, request, context, progress=progress)
        if as_json:
            write_json(asdict(built))

    await _with_engines(settings, make, only_first=True)
    return 0


async def show_status(settings: Settings, *, as_json: AsJson = False) -> int:
    """Show the image on every engine."""
    images: list[ImageStatus] = []
    version = recipe_version(recipe_dir())

    async def inspect(engine: ImageEngine) -> None:
        images.extend(await status(engine, version, settings.image))

    await _with_engines(settings, inspect, only_first=False)
    if as_json:
        write_json([asdict(one) for one in images], indent=2)
    else:
        write_out("".join(_describe(one) for one in images))
    if any(one.present for one in images):
        return 0
    write_err("No engine has an image: `mcp-code-bridge image build` builds one.\n")
    return SandboxError.exit_status


async def _with_engines(
    settings: Settings, act: Callable[[ImageEngine], Awaitable[None]], *, only_first: bool
) -> None:
    """Act on the engines that answer; report why the others do not."""
    answered = False
    for name in engines(settings):
        async with container_backend(name, settings) as backend:
            try:
                engine = await backend.images()
            except BridgeError as error:
                write_err(visible(f"{name}: {error}\n"))
                continue
            answered = True
            await act(engine)
        if only_first:
            return
    if not answered:
        remedy = (
            "Only podman and docker use an image; bubblewrap needs none. `mcp-code-bridge doctor` "
            "shows which sandbox programs run in."
        )
        raise SandboxError("No container engine answers.", remedy=remedy, code="no_sandbox")


def _describe(one: ImageStatus) -> str:
    if not one.present:
        return f"{one.engine}: {one.name}: not there\n"
    guest = {True: ", carries this bridge's guest", False: ", guest differs", None: ""}
    short = one.id.removeprefix("sha256:")[:12]
    size = f"{one.size // 1024**2} MB"
    more = f", with {', '.join(one.packages)}" if one.packages else ""
    line = f"{one.engine}: {one.name}: {short}, {size}{more}{guest[one.guest_matches]}\n"
    return line + (f"    {one.stale}\n" if one.stale else "")
