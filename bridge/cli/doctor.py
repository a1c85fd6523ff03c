"""Checks sandboxes and settings, and builds the runtime image: `doctor` and `image`."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio.to_thread

from bridge.cli import background
from bridge.cli.app import PROGRAM
from bridge.cli.options import AsJson, flag, opt
from bridge.cli.output import visible, waiting, write_err, write_json, write_out, write_prose
from bridge.cli.terminal import Person
from bridge.commands.plan import CommandCheck, check_commands
from bridge.errors import BridgeError, SandboxError, SettingsError, UsageError
from bridge.inventory.configuration import consents_of, context_for
from bridge.model import MEBIBYTE, Directory
from bridge.packages.requirements import parse_requirements
from bridge.packages.uv import Uv
from bridge.private_files import make_directory
from bridge.sandbox.backend import Probe, limits_for
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
from bridge.sandbox.selection import engines, probe_all
from bridge.settings import Settings, packages_dir, store_of
from bridge.text import counted
from bridge.upstream.launch import explain_missing, server_environment


async def doctor(settings: Settings, *, as_json: AsJson = False) -> int:
    """Starts each engine, and prints the command that repairs each problem. The exit status is 1 if
    no sandbox works. At a terminal it offers to build a missing image, and to close the state
    directory to others.

    Examples:
        doctor --runtime podman
    """
    while True:
        with waiting("trying each sandbox"):
            probes = await probe_all(settings)
        status = await _report(as_json, settings, _describe_gate(settings), probes)
        if as_json or not await offer(probes, settings):
            return status


async def _report(as_json: bool, settings: Settings, gate: str, probes: Sequence[Probe]) -> int:
    discovery = consents_of(settings).discover(context_for(settings))
    commands = check_commands(settings, probes)
    with waiting("looking for packages and the store"):
        packages = await check_packages(settings)
    store = await anyio.to_thread.run_sync(check_store, settings)
    bridges = await anyio.to_thread.run_sync(background.check, settings)
    warnings = list(map(str, discovery.warnings))
    warnings += [
        f"Server {spec.name!r} cannot start. {' '.join(missing)}"
        for spec in discovery.servers
        if spec.transport == "stdio"
        and (missing := explain_missing(spec, server_environment(os.environ, spec)))
    ]
    chosen, state = find_working(probes), check_state(settings)
    status = 0 if chosen and not state else 1
    if as_json:
        document = {
            "chosen": chosen or None,
            "backends": [asdict(probe) for probe in probes],
            "state": {"path": str(settings.state_dir), "problem": state},
            **_settings_document(settings),
            "commands": [asdict(check) for check in commands],
            "packages": packages,
            "store": store,
            "background": bridges,
            "directories": [asdict(one) for one in settings.directories],
            "servers": [spec.name for spec in discovery.servers],
            "definitions": {spec.name: spec.definition for spec in discovery.servers},
            "warnings": warnings,
        }
        write_json(document, indent=2)
        return status
    servers = ", ".join(spec.name for spec in discovery.servers) or "none"
    proposed = ", ".join(dict.fromkeys(each.name for each in discovery.proposed))
    if proposed:
        servers += f". Waiting for your approval (`servers approve NAME`): {proposed}"
    sections = [
        *(_describe(probe, settings.runtime == "auto", chosen=bool(chosen)) for probe in probes),
        describe_state(settings, state, state_remedy(settings)),
        _describe_profile(settings),
        gate,
        *map(_describe_command, commands),
        describe_packages(packages),
        describe_store(store),
        background.describe(bridges),
        describe_directories(settings, root=os.geteuid() == 0),
        f"Servers: {servers}. `mcp-code-bridge servers` shows where each was found.\n",
        *(f"warning: {warning}\n" for warning in warnings),
    ]
    for section in sections:
        write_prose(visible(section))
    fixed = f"Programs will run in {chosen} once this is fixed."
    verdict = fixed if status else f"Programs run in: {chosen}"
    write_prose(
        f"{verdict if chosen else 'No sandbox works here, so the bridge runs no programs.'}\n"
    )
    if status:
        write_prose("Next: run one of the commands above yourself (one sandbox is enough).\n")
    return status


async def doctor_mistake(error: SettingsError, settings: Settings, *, as_json: bool = False) -> int:
    """Check with default settings, because the user's settings have a mistake."""
    write_err(
        "The checks below use the default settings. Until the mistake is fixed, the bridge runs "
        "no programs.\n"
    )
    probes = await probe_all(settings)
    await _report(as_json, settings, "policy: unknown until config.toml is fixed\n", probes)
    return error.exit_status


def _settings_document(settings: Settings) -> dict[str, object]:
    limits, policy = limits_for(settings), settings.policy
    profile = {
        "name": settings.profile,
        "timeout": limits.timeout,
        "longest_timeout": limits.longest_timeout,
        "memory_bytes": limits.memory_bytes,
        "cpus": limits.cpus,
        "guard": settings.guard,
        "listed_servers_only": settings.listed_servers_only,
    }
    gate = {
        "policy": policy.present,
        "start": policy.start if policy.present else "allow",
        "rules": len(policy.rules),
        "trusted": [server.servers for server in policy.servers if server.trust],
        "audit": settings.audit,
    }
    return {"profile": profile, "gate": gate}


def _describe_profile(settings: Settings) -> str:
    limits = limits_for(settings)
    longer = limits.longest_timeout > limits.timeout
    terms = (
        f"{limits.timeout:g} s" + (f" (at most {limits.longest_timeout:g} s)" if longer else ""),
        f"{limits.memory_bytes / MEBIBYTE:g} MiB",
        f"{limits.cpus:g} CPUs" if limits.cpus is not None else "no limit of CPUs",
        f"guard {settings.guard}",
        "listed servers only" if settings.listed_servers_only else "all servers",
    )
    return f"profile: {settings.profile}: {', '.join(terms)}\n"


def _describe_gate(settings: Settings) -> str:
    policy, audit = settings.policy, f"audit: {settings.audit}\n"
    if not policy.present:
        none = "policy: none, so every call is allowed; `policy init` creates one"
        return f"{none}\n{audit}"
    parts = f"{counted(len(policy.rules), 'rule')}, settings of "
    parts += counted(len(policy.servers), "server")
    return (
        f"policy: {parts}; `policy explain SERVER TOOL` explains a decision\n"
        f"      servers start: {policy.start}, unless the policy says otherwise\n{audit}"
    )


def check_state(settings: Settings) -> str:
    """Return the reason why the state directory cannot be used; empty if it can."""
    try:
        make_directory(settings.state_dir)
        with TemporaryFile(dir=settings.state_dir) as file:
            file.write(bytes(1024 * 1024))  # a day's log and a run's output
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def describe_state(settings: Settings, problem: str, command: str) -> str:
    """Describe a problem of the state directory, which `command` fixes; empty without one."""
    remedy = f"`{command}`, if the directory has no other use" if command else ""
    if not problem:
        warning = f"warning: other users can read the bridge's state in {settings.state_dir}"
        return f"{warning}: run {remedy}\n" if remedy else ""
    return (
        f"FAIL  state: cannot write to {settings.state_dir}: {problem}.\n"
        f"      remedy: {remedy or 'give this user write access'}, or set MCP_BRIDGE_STATE_DIR "
        "to another directory.\n"
    )


def _describe_command(check: CommandCheck) -> str:
    lines = [f"commands: {check.name}: {'ok' if check.ok else 'FAIL'}: {check.summary}"]
    lines.extend(f"      note: {note}" for note in check.notes)
    if check.remedy:
        lines.append(f"      remedy: {check.remedy}")
    return "\n".join(lines) + "\n"


def _describe(probe: Probe, auto: bool, *, chosen: bool) -> str:
    # A backend of another system is no failure, and `auto` needs only one that works.
    other = probe.error_code == "wrong_system"
    enough = auto and (chosen or other)
    mark = "ok  " if probe.ok else "off " if enough or other else "FAIL"
    lines = [f"{mark}  {probe.backend}: {probe.summary}"]
    lines.extend(f"      {name}: {text}" for name, text in probe.details.items())
    if probe.isolation is not None:
        seen = probe.isolation.verified
        lines.append(f"      layers seen from inside: {', '.join(seen) or 'none'}")
        asked = [layer for layer in probe.isolation.layers if layer not in seen]
        if asked:
            lines.append(f"      requested, can't be verified from inside: {', '.join(asked)}")
        lines.extend(f"      weaker: {text}" for text in probe.isolation.weaker)
    if probe.remedy and not enough:
        lines.append(f"      remedy: {probe.remedy}")
    return "\n".join(lines) + "\n"


async def check_packages(settings: Settings) -> dict[str, Any]:
    """Let uv resolve one allowed package, and report the problem if it cannot."""
    dependencies, problem = settings.dependencies, ""
    if not dependencies.allow:
        return {"allow": [], "index": "", "cache": "", "problem": ""}
    index = dependencies.index or "from uv's own configuration"
    if "@" in index:
        index = f"{urlsplit(index).scheme}://{index.rpartition('@')[2]}"

    async def silent(_: str) -> None:
        return

    names = [entry.text for entry in dependencies.allow if "*" not in entry.name]
    try:
        if not settings.packages_allowed:
            raise UsageError(f"the profile {settings.profile} allows no packages")
        with TemporaryDirectory(prefix="mcp-code-bridge-") as directory, anyio.fail_after(10):
            uv = Uv(dependencies, settings.environ, Path(directory), None, silent)
            await uv.resolve(names[:1], (), alone=True)
    except TimeoutError:
        problem = "the index did not answer within 10 s"
    except BridgeError as error:
        problem = error.message
    return {
        "allow": [entry.text for entry in dependencies.allow],
        "index": index,
        "cache": str(packages_dir(settings)),
        "problem": problem,
    }


def describe_packages(check: Mapping[str, Any]) -> str:
    allow = check["allow"]
    if not allow:
        return "packages: none are allowed; [dependencies] of config.toml allows some\n"
    verdict = f"FAIL: {check['problem']}" if check["problem"] else "ok"
    about = f"      index: {check['index']}\n      kept in: {check['cache']}\n"
    return f"packages: {verdict}\n      allowed: {', '.join(allow)}\n{about}"


def check_store(settings: Settings) -> dict[str, str]:
    """Return the store's place, without a password, and the problem with it. Blocks."""
    store, problem = store_of(settings), ""
    try:
        with closing(store):
            store.check()
    except OSError as error:
        problem = error.strerror or str(error)
    return {"place": str(store.place), "problem": problem}


def describe_store(check: Mapping[str, str]) -> str:
    if not check["problem"]:
        return f"store: ok: {check['place']}\n"
    return (
        f"store: FAIL: {check['problem']}\n      at: {check['place']}\n"
        "      remedy: check the path in MCP_BRIDGE_STORE, or the state directory\n"
    )


def describe_directories(settings: Settings, *, root: bool) -> str:
    """Describe the host's directories that programs can use.

    Programs of a bridge that is root run as user 65534, so its access is checked.
    """
    offered = {one.name for one in settings.offered_directories}
    lines = []
    for one in settings.directories:
        mode = "read and write" if one.writable else "read-only"
        note = "" if one.name in offered else f"; not with the profile {settings.profile}"
        lines.append(f"directory: {one.name}: {one.path} at {one.inside}, {mode}{note}\n")
        if root and not note and _is_closed(one):
            verb, command = ("write to", "chown 65534") if one.writable else ("read", "chmod o+rx")
            lines.append(
                "      FAIL: the bridge is root, so its programs run as user 65534, who may not "
                f"{verb} it: run `{command} {shlex.quote(one.path)}`, or the bridge as an ordinary "
                "user\n"
            )
    return "".join(lines)


def _is_closed(one: Directory) -> bool:
    """Return whether user 65534 lacks the access that the setting grants."""
    try:
        status = Path(one.path).stat()
    except OSError:
        return True
    if one.writable and status.st_uid != 0:
        # Containers run programs as the directory's owner.
        return False
    wanted = 0o7 if one.writable else 0o5
    return status.st_mode & wanted != wanted


def find_working(probes: Sequence[Probe]) -> str:
    return next((probe.backend for probe in probes if probe.ok), "")


def state_remedy(settings: Settings) -> str:
    """Return the command that makes the state directory private; empty if it is not needed."""
    directory = Path(os.path.realpath(settings.state_dir))
    try:
        status = directory.stat()
    except OSError:
        return ""
    if status.st_uid == os.geteuid():
        private = status.st_mode & 0o777 == 0o700 or not directory.is_dir()
        return "" if private else f"chmod 700 {shlex.quote(str(directory))}"
    usable = os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
    return "" if usable else f"sudo chown -R {os.geteuid()} {shlex.quote(str(directory))}"


async def offer(probes: Sequence[Probe], settings: Settings) -> bool:
    """Offer the user at a terminal to fix what can be fixed; return whether anything was."""
    person = Person()
    if not person.attended:
        return False
    fixed = False
    directory = settings.state_dir
    command = f"chmod 700 {shlex.quote(str(directory))}"
    # A directory that the user named, such as /var, or that a link leads to, may be shared.
    own = directory.name == PROGRAM and command == state_remedy(settings)
    if own and await person.confirm(f"Run `{command}`?"):
        directory.chmod(0o700)
        fixed = True
    lacking = (each.backend for each in probes if each.error_code == "image_missing")
    engine = "" if settings.image or find_working(probes) else next(lacking, "")
    question = f"Build the runtime image on {engine}, in one to three minutes?"
    if engine and await person.confirm(question):
        try:
            await build_image(replace(settings, runtime=engine))
            fixed = True
        except BridgeError as error:
            write_err(visible(f"{error}\n"))
    return fixed


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
    """The first engine that answers builds it.

    Examples:
        image build --flavour data --package seaborn
    """
    packages = tuple(one.text for one in parse_requirements(package or ()))
    request = BuildRequest(flavour=flavour, offline=offline, fresh=fresh, packages=packages)
    context = RootfsContext(
        run=SystemRunner(env=settings.environ), recipe=recipe_dir(), state_dir=settings.state_dir
    )
    version = recipe_version(context.recipe)
    async with aclosing(_image_engines(settings)) as answering:
        engine = await anext(answering)
        built = await describe(engine, local_name(flavour), version)
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
    return 0


async def show_status(settings: Settings, *, as_json: AsJson = False) -> int:
    images: list[ImageStatus] = []
    version = recipe_version(recipe_dir())
    async with aclosing(_image_engines(settings)) as answering:
        async for engine in answering:
            images += await status(engine, version, settings.image)
    if as_json:
        write_json([asdict(one) for one in images], indent=2)
    else:
        write_out("".join(_describe_image(one) for one in images))
    if any(one.present for one in images):
        return 0
    write_err("No engine has an image: `mcp-code-bridge image build` builds one.\n")
    return SandboxError.exit_status


async def _image_engines(settings: Settings) -> AsyncGenerator[ImageEngine, None]:
    """Yield the engines that answer; report why the others do not. One must answer."""
    answered = False
    for name in engines(settings):
        async with container_backend(name, settings) as backend:
            try:
                engine = await backend.images()
            except BridgeError as error:
                write_err(visible(f"{name}: {error}\n"))
                continue
            answered = True
            yield engine
    if not answered:
        remedy = (
            "Only podman and docker use an image; bubblewrap needs none. `mcp-code-bridge doctor` "
            "shows which sandbox programs run in."
        )
        raise SandboxError("No container engine answers.", remedy=remedy, code="no_sandbox")


def _describe_image(one: ImageStatus) -> str:
    if not one.present:
        return f"{one.engine}: {one.name}: not there\n"
    guest = {True: ", carries this bridge's guest", False: ", guest differs", None: ""}
    short = one.id.removeprefix("sha256:")[:12]
    size = f"{one.size // 1024**2} MB"
    more = f", with {', '.join(one.packages)}" if one.packages else ""
    line = f"{one.engine}: {one.name}: {short}, {size}{more}{guest[one.guest_matches]}\n"
    return line + (f"    {one.stale}\n" if one.stale else "")
