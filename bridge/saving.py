"""Files that are written whole or not at all.

Owns the one way in which the bridge's own files are replaced: beside the old one, then renamed over
it, so that no reader sees half of one and a bridge that is killed leaves the old.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

UNFINISHED = "writing-"
"""How the names of files begin that are being written; one that stays was left by a dead bridge."""


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Have `path` hold `data`, readable by this user alone. Its directory has to be there.

    Args:
        durable: Whether it has to survive a power cut from now on; waits for the disk.

    Raises:
        OSError: It cannot be written. The old file is as it was.
    """
    # Made with mode 0600.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        raise
