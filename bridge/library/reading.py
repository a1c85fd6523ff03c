"""Files of the library's own, read whole and with a bound. Blocks; for threads."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path, most: int) -> bytes:
    """Return what a regular file holds.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read, or is a link.
        ValueError: It is something else, or larger than `most` bytes.
    """
    # Not blocking, in case it is a pipe.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            message = "it is no regular file"
            raise ValueError(message)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        message = f"it is larger than {most:,} bytes"
        raise ValueError(message)
    return data
