"""A first policy put at the end of the settings file, which is left as it is otherwise.

Owns the writing. What such a policy says is its author's; that it can be read, and that the file
had none, is looked at before anything is written.
"""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

from bridge.errors import SettingsError
from bridge.saving import replace_file, turn
from bridge.settings.file import MAX_CONFIG_BYTES
from bridge.settings.policy import parse_policy

_MODE = 0o600
"""Of a file that is made: what is in it says what may be done in its user's name."""


def append_policy(path: Path, text: str) -> None:
    """Put a policy behind what stands in a settings file, or make one. Blocks; for threads.

    Raises:
        SettingsError: It cannot be written, or would not parse; the file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Written where a link points to, so that it stays one.
        target = path.resolve()
        with turn(target.with_name(f".{target.name}.lock")):
            before, mode = _before(target)
            joint = "" if not before else "\n" if before.endswith("\n") else "\n\n"
            whole = f"{before}{joint}{text}"
            _check(whole, path)
            replace_file(target, whole.encode(), durable=True, mode=mode)
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{path} could not be written: {reason}."
        raise SettingsError(message, remedy="`policy init --print` prints it instead.") from None


def _before(target: Path) -> tuple[str, int]:
    """Return what stands in the file, and who may read it."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return "", _MODE
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        raise SettingsError(f"{target} is no regular file of this user's.")
    if found.st_size > MAX_CONFIG_BYTES:
        raise SettingsError(f"{target} is larger than {MAX_CONFIG_BYTES} bytes.")
    return target.read_text("utf-8"), stat.S_IMODE(found.st_mode)


def _check(text: str, path: Path) -> None:
    if len(text.encode()) > MAX_CONFIG_BYTES:
        raise SettingsError(f"{path} would become larger than {MAX_CONFIG_BYTES} bytes.")
    try:
        document = tomllib.loads(text)
    except ValueError as error:
        raise SettingsError(f"{path} would not be TOML any more: {error}.") from None
    parse_policy(document.get("policy"), f"{path}: policy", path)
