"""The flavour (`slim` or `data`) of the runtime image that programs last ran in."""

from __future__ import annotations

import logging

from bridge.atomic_files import replace_file
from bridge.private_files import make_directory
from bridge.settings import Settings

logger = logging.getLogger(__name__)

_FLAVOUR = "flavour"  # File in the state directory that holds the flavour.


def runs_in_data_image(settings: Settings) -> bool:
    """Return whether programs last ran here in the `data` image.

    The bridge's guide, which names its packages, must not wait for an engine.
    """
    try:
        return (settings.state_dir / _FLAVOUR).read_text(encoding="utf-8") == "data"
    except (OSError, ValueError):
        return False


def remember_flavour(settings: Settings, flavour: str) -> None:
    """Store the flavour of the image that programs run in now."""
    path = settings.state_dir / _FLAVOUR
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != flavour:
            make_directory(path.parent)
            replace_file(path, flavour.encode())
    except (OSError, ValueError) as error:
        logger.warning("cannot store the flavour of the runtime image: %s", error)
