"""The files that a run brings along, in the program's working directory before it begins.

Owns their writing. Their names and sizes were checked by the host, which alone decides about them;
here they only have to fit what is there, which in a session is whatever its programs made.
"""

from __future__ import annotations

import binascii
import os

from bridge.guest.wire import Done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional


def put(files: List[Dict[str, str]], root: str = ".") -> Optional[Done]:
    """Write the files, and forget their content: as text it takes more room than the files do.

    Returns:
        What a run ends with of which one cannot be written; None if all of them are there.
    """
    files.reverse()
    while files:
        given = files.pop()
        try:
            _write(os.path.join(root, *given["name"].split("/")), given["data"])
        except OSError as error:
            message = "%s: the file %r could not be put into the working directory: %s"
            name = type(error).__name__
            text = message % (name, given["name"], error.strerror or error)
            return Done("exception", 1, error=text, error_type=name)
    return None


def _write(path: str, data: str) -> None:
    directory = os.path.dirname(path)
    os.makedirs(directory or ".", exist_ok=True)
    if os.path.islink(path):
        # What it leads to was not meant.
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
    try:
        content = memoryview(binascii.a2b_base64(data))
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)
