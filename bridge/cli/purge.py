"""`purge`: removes all data of the bridge from this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import anyio.to_thread

from bridge import private_files
from bridge.atomic_files import replace_file
from bridge.background_instance import directory_of
from bridge.cli.app import PROGRAM
from bridge.cli.background import LOG_NAME, ask_all, end_all
from bridge.cli.install import machine_here
from bridge.cli.options import Yes, flag
from bridge.cli.output import visible, write_err_line, write_out
from bridge.cli.terminal import Person
from bridge.client_configs.install import installed_entries
from bridge.client_configs.journal import MovedServers
from bridge.errors import BridgeError, UsageError
from bridge.sandbox.container.backend import container_backend
from bridge.sandbox.container.image import REPOSITORY
from bridge.settings import Settings, config_path, moved_dir, packages_dir, runtime_dir, store_of
from bridge.settings.parsers import ENGINES
from bridge.settings.state import default_state_dir
from bridge.upstream.token_store import TokenStore

_STATE = (
    *("audit", "blobs", "clients", "logins", "logs", "packages", "rootfs", "run", "runs", "skills"),
    *("http-token*", "policy-in-force.json", "project-servers.json", "sandbox-*.json", "store.db*"),
    f"{LOG_NAME}*",
)
"""The bridge's files in a state directory that may be shared, because it has another name."""

_COMPLETIONS = (
    ".bash_completions/mcp-code-bridge.sh",
    ".zfunc/_mcp-code-bridge",
    ".config/fish/completions/mcp-code-bridge.fish",
)


async def purge(
    settings: Settings,
    *,
    keep_settings: Annotated[
        bool, flag("--keep-settings", "keep config.toml, with the policy")
    ] = False,
    yes: Yes = False,
) -> int:
    """Shows what goes and asks: settings and policy, logins, records, artifacts, sessions, skills,
    packages, images and containers. Refuses while a client uses the bridge or is set up for it.
    """
    _require_uninstalled(settings)
    await anyio.to_thread.run_sync(_end_unused_bridges, settings)
    with private_files.in_use(settings.state_dir, alone=True) as alone:
        if not alone:
            message = "Nothing was removed: a bridge runs."
            raise UsageError(message, remedy="Close the clients that started it.")
        # First, because asking the engines creates files.
        images = await _in_engines(settings, remove=False)
        present = filter(os.path.lexists, _candidates(settings, keep_settings))
        candidates = await anyio.to_thread.run_sync(lambda: dict.fromkeys(present))
        paths = [path for path in candidates if not candidates.keys() & set(path.parents)]
        if not paths and not images:
            write_err_line("There is nothing to remove.")
            return 0
        shown = [f"{path}{os.sep if path.is_dir() else ''}" for path in paths]
        write_out(visible("".join(f"  {each}\n" for each in [*shown, *images])))
        question, nothing = "Remove all of this?", "Nothing was removed"
        if not await Person().agrees(question, yes=yes, nothing=nothing):
            write_err_line(f"{nothing}.")
            return 1
        await TokenStore(settings.state_dir / "logins").clear()
        await _in_engines(settings, remove=True)
        remaining = await anyio.to_thread.run_sync(_remove, paths, settings)
    for path in remaining:
        write_err_line(f"{path} could not be removed.")
    write_err_line("Removed. Uninstall the program with its installer, such as `pipx uninstall`.")
    return 1 if remaining else 0


def _require_uninstalled(settings: Settings) -> None:
    clients = {each.target.writer.name for each in installed_entries(machine_here(settings))}
    reasons = [f"{', '.join(sorted(clients))} still start the bridge"] if clients else []
    if any(file.entries for file in MovedServers(moved_dir(settings.environ)).files()):
        reasons.append("servers that moved behind the bridge are not back in their clients")
    if reasons:
        raise UsageError(
            f"Nothing was removed: {' and '.join(reasons)}.",
            remedy="Run `mcp-code-bridge uninstall all --restore` first.",
        )


def _end_unused_bridges(settings: Settings) -> None:
    """End the background bridges if no client uses one."""
    state = str(settings.state_dir)
    if not any(each["clients"] for each in ask_all(settings.environ, state)):
        end_all(settings.environ, settings.drain_seconds, state)


async def _in_engines(settings: Settings, *, remove: bool) -> list[str]:
    listed = []
    for name in ENGINES:
        async with container_backend(name, settings) as backend:
            with suppress(BridgeError):
                engine = await backend.images()
                images = sorted(await engine.names(REPOSITORY))
                listed += [f"{name}: {image}" for image in images]
                if remove:
                    # No bridge runs, so all its containers are left over.
                    await backend.reap()
                    for image in images:
                        await engine.remove(image)
    return listed


def _candidates(settings: Settings, keep_settings: bool) -> Iterator[Path]:
    for directory in dict.fromkeys((settings.state_dir, default_state_dir(settings.environ))):
        if directory.name == PROGRAM:
            yield directory
        else:
            yield from (path for name in _STATE for path in sorted(directory.glob(name)))
    moved = moved_dir(settings.environ)
    yield from (moved,) if keep_settings else (config_path(settings.environ), moved.parent)
    # Bridges with other state directories share these.
    temporary = Path(tempfile.gettempdir()) / f"{PROGRAM}-{os.getuid()}"
    sockets = (runtime_dir(settings), Path(directory_of(settings.environ)))
    for directory in dict.fromkeys((*sockets, temporary)):
        with suppress(OSError), private_files.in_use(directory, alone=True) as free:
            if free:
                yield directory
    yield packages_dir(settings)
    if isinstance(settings.store, Path):
        yield from sorted(settings.store.parent.glob(f"{settings.store.name}*"))
        yield store_of(settings).blobs.root
    home = Path(settings.environ.get("HOME", ""))
    yield from (home / name for name in _COMPLETIONS)


def _remove(paths: list[Path], settings: Settings) -> list[Path]:
    """Remove paths and the completion's line in .bashrc; return the paths that remain."""
    bashrc = Path(settings.environ.get("HOME", "")) / ".bashrc"
    with suppress(OSError):
        before = bashrc.read_bytes()
        lines = before.splitlines(keepends=True)
        after = b"".join(line for line in lines if _COMPLETIONS[0].encode() not in line)
        if after != before:
            replace_file(bashrc, after, mode=bashrc.stat().st_mode & 0o777)
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    with suppress(OSError):
        settings.state_dir.rmdir()
    return [path for path in paths if os.path.lexists(path)]
