"""The paths of the bridge's own files, and the checks that no other user can change them.

Also finds the user's time zone, and records which settings files had a policy: the bridge does not
start if such a file is lost.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bridge.atomic_files import exclusive_lock, read_regular, replace_file
from bridge.background_instance import socket_directory, xdg_directory
from bridge.errors import SettingsError
from bridge.private_files import exposure, make_directory
from bridge.settings import fields, parsers
from bridge.settings.values import Settings
from bridge.store import ServerUrl, Store

logger = logging.getLogger(__name__)

CONFIG = "MCP_BRIDGE_CONFIG"

_ZONE = re.compile(r"[A-Za-z0-9_+\-,.:<>][A-Za-z0-9_+\-/,.:<>]{0,99}")

ROOT_PACKAGES_DIR = Path("/var/cache/mcp-code-bridge")
"""Package directory of a bridge that runs as root. Its embedded sandboxes run as another user,
which cannot enter root's own directories.
"""


def config_path(environ: Mapping[str, str]) -> Path:
    if environ.get(CONFIG):
        found: Path = fields.parse_text(parsers.place, environ[CONFIG], CONFIG)
        return found
    return Path(xdg_directory(environ, "XDG_CONFIG_HOME", ".config"), "config.toml")


def moved_dir(environ: Mapping[str, str]) -> Path:
    return Path(xdg_directory(environ, "XDG_CONFIG_HOME", ".config"), "moved")


def default_state_dir(environ: Mapping[str, str]) -> Path:
    return Path(xdg_directory(environ, "XDG_STATE_HOME", ".local/state"))


def runtime_dir(settings: Settings) -> Path:
    """Return the directory for sockets, as `socket_directory` chooses it.

    The caller creates it and checks that it is private.
    """
    state, temporary = str(settings.state_dir), tempfile.gettempdir()
    # A socket's path has at most 108 bytes (104 on macOS), and sockets are a level deeper.
    return Path(socket_directory(settings.environ, state, 70, temporary))


def home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def time_zone(environ: Mapping[str, str], etc: Path = Path("/etc")) -> str:
    """Return the user's time zone, a tz database name or POSIX rule; "UTC" if unknown."""
    texts = [environ["TZ"] or "UTC"] if "TZ" in environ else []
    link = str((etc / "localtime").resolve())
    texts += [link] if "zoneinfo/" in link else []
    with suppress(OSError):
        texts.append((etc / "timezone").read_text("ascii", "replace"))
    with suppress(OSError):
        # The last line of a tzfile is its current POSIX rule.
        texts.append(
            (etc / "localtime").read_bytes().strip().rpartition(b"\n")[2].decode("latin-1")
        )
    for text in texts:
        zone = text.strip().removeprefix(":").rpartition("zoneinfo/")[2]
        zone = re.sub("^(posix|right)/|^Etc/(?=UTC$)", "", zone)
        if _ZONE.fullmatch(zone) and ".." not in zone:
            return zone
    return "UTC"


def store_of(settings: Settings) -> Store:
    if settings.store is None:
        return Store(settings.state_dir)
    if isinstance(settings.store, ServerUrl):
        from bridge.store.postgresql import ServerStore

        return ServerStore(settings.state_dir, settings.store, settings.store_pool)
    return Store(settings.store.parent, settings.store.name)


def packages_dir(settings: Settings) -> Path:
    own = ROOT_PACKAGES_DIR if os.geteuid() == 0 else settings.state_dir / "packages"
    return settings.dependencies.cache or own


TOKEN_FILE = "http-token"

POLICY_MARK = "policy-in-force.json"
"""A file in the state directory that lists the settings files with a policy."""


SOLE_USER = "MCP_BRIDGE_SOLE_USER"
"""The value "1" asserts that there are no other users. Kubelets make volumes writable for all."""


def require_private(path: Path, what: str, variable: str) -> None:
    """Raise if other users could change a path; `variable` sets another path."""
    reason, remedy = exposure(path)
    if reason and os.environ.get(SOLE_USER) != "1":
        remedy += (
            f" Or set {variable} to another place, or {SOLE_USER}=1 if there is no other user."
        )
        raise SettingsError(f"{what} {path} is not used: {reason}.", remedy=remedy)


def http_token(settings: Settings) -> str:
    """Return the token of this user's bridges over HTTP, created by the first call."""
    path = settings.state_dir / TOKEN_FILE
    try:
        make_directory(path.parent)
        if not path.exists():
            with exclusive_lock(path.with_name(f"{TOKEN_FILE}.lock"), seconds=30):
                if not path.exists():
                    replace_file(path, secrets.token_urlsafe(32).encode())
        require_private(path, "The token", "MCP_BRIDGE_STATE_DIR")
        if token := read_regular(path, 1000).decode("ascii", "replace").strip():
            return token
    except OSError as error:
        message = f"The token {path} cannot be used: {error.strerror or error}."
        remedy = "Make its directory writable, or use --no-token."
        raise SettingsError(message, remedy=remedy) from error
    raise SettingsError(f"The token {path} is empty.", remedy="Remove the file.")


def prepare_state(settings: Settings) -> None:
    """Make the state directory. Raises `SettingsError` if the policy's file is lost."""
    try:
        make_directory(settings.state_dir)
    except OSError as error:
        # The home directory may be read-only. Code that needs the directory raises later.
        logger.debug("%s cannot be made: %s", settings.state_dir, error)
    _require_policy(settings)


def _require_policy(settings: Settings) -> None:
    config = settings.policy.path
    if config is None:
        return
    mark = settings.state_dir / POLICY_MARK
    marked = _read_mark(mark)
    if settings.policy.present:
        if str(config) not in marked:
            _write_mark(mark, [*marked, str(config)])
        return
    if str(config) not in marked:
        return
    if not (config.exists() and config.stat().st_size):
        message = f"{config} had a policy, and now is empty or missing."
        remedy = (
            "Restore it. To run without a policy, create the file without a [policy] table; "
            "a comment is enough."
        )
        raise SettingsError(message, remedy=remedy)
    # The user removed the table from the file.
    _write_mark(mark, [path for path in marked if path != str(config)])


def _read_mark(mark: Path) -> list[str]:
    try:
        return [str(path) for path in json.loads(mark.read_bytes())["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write_mark(mark: Path, files: list[str]) -> None:
    try:
        replace_file(mark, json.dumps({"files": files[-50:]}).encode())
    except OSError as error:
        logger.warning(
            "%s cannot be written, so a lost policy will not be detected: %s", mark, error
        )
