"""Writes a server's stderr to a bounded log file, and keeps its last lines for error messages."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

LOG_BYTES = 1024 * 1024
"""Size at which a server's log is rotated. One older file is kept."""

ALL_LOGS_BYTES = 128 * 1024 * 1024
"""Size of the logs of all current and past servers, checked when a new log starts. Each running
server adds at most `LOG_BYTES`."""

TAIL_BYTES = 2048
"""Size of the tail in memory for error messages, as of a traceback's end or a usage text."""


def log_path(log_dir: Path, server: str) -> Path:
    """Return the path of a server's log file, with a digest if the name is unusual."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", server)[:100].lstrip(".")
    if stem != server:
        digest = hashlib.sha256(server.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        stem = f"{stem}-{digest}" if stem else digest
    return log_dir / f"{stem}.log"


def remove_oldest(log_dir: Path, keep: Path) -> None:
    """Remove the least recently written logs except `keep` beyond `ALL_LOGS_BYTES`."""
    logs = [(path.lstat(), path) for path in (*log_dir.glob("*.log"), *log_dir.glob("*.log.1"))]
    size = sum(status.st_size for status, _ in logs)
    for status, path in sorted(logs, key=lambda each: each[0].st_mtime_ns):
        if size <= ALL_LOGS_BYTES:
            return
        if path != keep and stat.S_ISREG(status.st_mode):
            # If another bridge still writes to it, its next rotation frees the disk space.
            path.unlink(missing_ok=True)
            size -= status.st_size


class ServerLog:
    """A server's log file and its last lines; only the lines without a writable directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._size = 0
        self._tail = b""

    def __enter__(self) -> ServerLog:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._rotate()
            remove_oldest(self.path.parent, keep=self.path)
        except OSError as error:
            logger.warning("no log file for this server: %s", error)
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._fd is None:
            return
        try:
            if self._size + len(data) > LOG_BYTES:
                self._rotate()
            os.write(self._fd, data[-LOG_BYTES:])
            self._size += len(data)
        except OSError as error:
            logger.warning("the log file %s is no longer written: %s", self.path, error)
            self._close()

    def note(self, text: str) -> None:
        """Append a line of the bridge itself, which `tail` leaves out."""
        tail = self._tail
        self.write(f"[bridge] {text}\n".encode("utf-8", "replace"))
        self._tail = tail

    def tail(self) -> str:
        """Return the end of the server's output, from the start of a line where possible."""
        data = self._tail
        if len(data) == TAIL_BYTES:
            data = data[data.find(b"\n") + 1 :]
        return data.decode("utf-8", "replace").strip()

    def _rotate(self) -> None:
        self._close()
        # Renamed, not truncated: another bridge of the same user may still be writing to it.
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)
        self._size = 0

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
