"""The flavour of the runtime image (`plain` or `data`) that programs ran in last."""

from __future__ import annotations

import logging

from bridge.atomic_files import replace_file
from bridge.private_files import make_directory
from bridge.settings import Settings

logger = logging.getLogger(__name__)

_FLAVOUR = "flavour"
"""File in the state directory: the flavour of the image that programs ran in last."""


def runs_in_data_image(settings: Settings) -> bool:
    """Return whether programs found the `data` image's packages when they last ran here.

    What a bridge tells of itself before its first run must not wait for an engine.
    """
    try:
        return (settings.state_dir / _FLAVOUR).read_text(encoding="utf-8") == "data"
    except (OSError, ValueError):
        return False


def remember_flavour(settings: Settings, flavour: str) -> None:
    """Keep which flavour of the image programs run in now."""
    path = settings.state_dir / _FLAVOUR
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != flavour:
            make_directory(path.parent)
            replace_file(path, flavour.encode())
    except (OSError, ValueError) as error:
        logger.warning("which image programs run in is not remembered: %s", error)
