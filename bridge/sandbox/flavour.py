"""The flavour (`slim` or `data`) and the Python version that programs last ran in."""

from __future__ import annotations

import logging

from bridge.atomic_files import replace_file
from bridge.private_files import make_directory
from bridge.settings import Settings

logger = logging.getLogger(__name__)


def recall(settings: Settings, fact: str) -> str:
    """Return the "flavour" or the "python" of the last sandbox; empty if that is unknown.

    The bridge's guide, which names them, must not wait for an engine.
    """
    try:
        return (settings.state_dir / fact).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def remember(settings: Settings, fact: str, text: str) -> None:
    """Store a fact about the sandbox of the latest program."""
    path = settings.state_dir / fact
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            make_directory(path.parent)
            replace_file(path, text.encode())
    except (OSError, ValueError) as error:
        logger.warning("cannot store the %s of the sandbox: %s", fact, error)
