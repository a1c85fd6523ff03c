"""Returns the paths of the bridge's own files: its settings, its state, its sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bridge.errors import SettingsError
from bridge.settings import parsers
from bridge.settings.values import Settings
from bridge.store import ServerUrl, Store

CONFIG = "MCP_BRIDGE_CONFIG"

ROOT_PACKAGES_DIR = Path("/var/cache/mcp-code-bridge")
"""Packages of bridges that root runs: programs in embedded sandboxes run as `nobody` then, and
cannot enter root's own directories."""


def config_path(environ: Mapping[str, str]) -> Path:
    if environ.get(CONFIG):
        try:
            return parsers.place(environ[CONFIG])
        except ValueError as error:
            message = f"{CONFIG}: {environ[CONFIG]!r} {error}."
            raise SettingsError(message) from None
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"


def moved_dir(environ: Mapping[str, str]) -> Path:
    """Return where servers are kept that were moved behind the bridge; other settings files too."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "moved"


def default_state_dir(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    # The XDG specification says that relative values are to be ignored.
    base = Path(environ.get(variable, ""))
    if not base.is_absolute():
        base = home(environ) / fallback
    return base / "mcp-code-bridge"


def runtime_dir(settings: Settings) -> Path:
    """Return the directory for sockets: in `XDG_RUNTIME_DIR`, the state, or a short path in /tmp.

    The caller makes it, and checks that it is private.
    """
    base = Path(settings.environ.get("XDG_RUNTIME_DIR", ""))
    if base.is_absolute() and base.is_dir() and os.access(base, os.W_OK):
        found = base / "mcp-code-bridge"
    else:
        found = settings.state_dir / "run"
    # A socket's path has at most 108 bytes (104 on macOS), and ours lie a level deeper.
    if len(os.fsencode(found)) > 70:
        found = Path(tempfile.gettempdir()) / f"mcp-code-bridge-{os.getuid()}"
    return found


def home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def store_of(settings: Settings) -> Store:
    if settings.store is None:
        return Store(settings.state_dir)
    if isinstance(settings.store, ServerUrl):
        from bridge.store.postgresql import ServerStore

        return ServerStore(settings.state_dir, settings.store)
    return Store(settings.store.parent, settings.store.name)


def packages_dir(settings: Settings) -> Path:
    own = ROOT_PACKAGES_DIR if os.geteuid() == 0 else settings.state_dir / "packages"
    return settings.dependencies.cache or own
