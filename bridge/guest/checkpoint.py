"""What a session holds, as bytes that another sandbox makes a session of again.

Owns the format: which names are kept, in which order, and what becomes of those that cannot be.
How a value is written is `checkpoint_values`' and `cloudpickle`'s, which are loaded only where
something is saved or a function or class comes back.

A checkpoint is a line that names the format, the length of a header, the header as JSON, one
pickle after the other (a list of name and value each, all written by one pickler and read by one
unpickler, so that what they share stays shared) and the contents of the workspace's files. Reading
one may run what its programs could have run: only a guest does that, in a sandbox of the same
owner; the host keeps it as it came.
"""

from __future__ import annotations

import _pickle
import binascii
import json
import os
import sys
import types

from bridge.guest.checkpoint_files import gather
from bridge.guest.checkpoint_restore import (
    LENGTH_BYTES,
    MAGIC,
    MAX_LOST,
    VERSION,
    Collecting,
    pair,
    restore,
    why,
)
from bridge.guest.wire import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

__all__ = ["restore", "save"]

PART_BYTES = 384 * 1024
"""Of one frame, which are 512 KiB as base64: far below what a frame may have."""

MAX_SOURCE_CHARS = 2 * 1024 * 1024
"""Of the sources that functions are from, which tracebacks show; the newest are kept."""

_LEAST_BYTES = 4096
"""Of an empty checkpoint, and more than that."""

_FILES_SHARE = 2
"""One part in so many of the limit may be files."""

_GIVEN = frozenset(
    ("runtime", "mcp", "mcp_servers", "LOADED_MCP_SERVERS", "MCPError", "Blob", "display")
)
"""What programs find in their globals without having put it there."""

_hung: Dict[str, int] = {}
"""Names whose keeping was interrupted, and which values they had: they are not tried again."""


class _Full(Exception):
    """What is written exceeds the limit."""


class _Sink:
    """Takes what a pickler writes, up to a limit; or only counts it."""

    def __init__(self, limit: int, counting: bool = False) -> None:
        self.limit = limit
        self.size = 0
        self.data = bytearray()
        self._counting = counting

    def write(self, data: Any) -> int:
        """Take a part."""
        # Large arrays are handed over in place, in their own order, which only `raw` keeps.
        view = data.raw() if isinstance(data, _pickle.PickleBuffer) else memoryview(data)
        if self.size + view.nbytes > self.limit:
            raise _Full
        self.size += view.nbytes
        if not self._counting:
            self.data += view
        return int(view.nbytes)

    def cut(self, size: int) -> None:
        """Forget all beyond the first `size` bytes."""
        self.size = size
        del self.data[size:]


# --- saving ---------------------------------------------------------------------------------------


def save(namespace: Dict[str, Any], workspace: str, limit: int) -> Iterator[State]:
    """Yield what a session holds, in parts; the last says what is not in them, and why.

    Calls what the session's classes define for being written down. An interrupt ends it.

    Args:
        namespace: The session's globals, or those of them that are the programs' own.
        workspace: The directory whose files are kept too.
        limit: In bytes, of all of it.
    """
    entries, contents, lost = gather(workspace, limit // _FILES_SHARE)
    saver = _Saver(namespace, limit - sum(map(len, contents)))
    with Collecting():
        saver.run()
    lost = [*saver.losses(), *lost]
    header = json.dumps(
        {
            "directory": _directory(workspace, lost),
            "sources": _sources(saver.files),
            "names": saver.lengths,
            "files": entries,
        },
        ensure_ascii=False,
    ).encode("utf-8", "surrogatepass")
    begin = b"%s%d\n%s" % (MAGIC, VERSION, len(header).to_bytes(LENGTH_BYTES, "big"))
    told = [pair(name, reason) for name, reason in lost[:MAX_LOST]]
    if len(lost) > MAX_LOST:
        told.append(["...", "%d more could not be kept" % (len(lost) - MAX_LOST)])
    last = ""
    for part in _parts((begin, header, saver.written, *contents)):
        if last:
            yield State(data=last)
        last = binascii.b2a_base64(part, newline=False).decode("ascii")
    yield State(data=last, lost=told)


def _parts(pieces: Iterable[Any]) -> Iterator[bytes]:
    left = b""
    for piece in pieces:
        view = memoryview(piece)
        if left:
            missing = PART_BYTES - len(left)
            left, view = left + bytes(view[:missing]), view[missing:]
            if len(left) < PART_BYTES:
                continue
            yield left
        whole = len(view) - len(view) % PART_BYTES
        for start in range(0, whole, PART_BYTES):
            yield bytes(view[start : start + PART_BYTES])
        left = bytes(view[whole:])
    if left:
        yield left


def _directory(workspace: str, lost: List[List[str]]) -> str:
    """Return where in the workspace the session is, "" for the workspace itself."""
    try:
        below = os.path.relpath(os.path.realpath(os.getcwd()), os.path.realpath(workspace))
    except OSError as error:
        lost.append(["working directory", "it is gone: %s" % error.strerror])
        return ""
    if below == os.pardir or below.startswith(os.pardir + os.sep):
        lost.append(["working directory", "it is outside of the workspace"])
        return ""
    return "" if below == os.curdir else below


def _sources(files: Iterable[str]) -> Dict[str, str]:
    """Return the texts of programs that functions are from, of too much the newest."""
    import linecache  # whoever has a traceback has it, and few keep functions

    found: Dict[str, str] = {}
    left = MAX_SOURCE_CHARS
    for file in reversed([file for file in linecache.cache if file in files]):
        entry = linecache.cache[file]
        # Only what programs were registered with: the others are files, or how a guest is started.
        if len(entry) == 4 and entry[1] is None and file != "<string>":
            text = "".join(entry[2])
            left -= len(text)
            if left < 0:
                break
            found[file] = text
    return dict(reversed(list(found.items())))


class _Saver:
    """Writes the names of one namespace.

    Attributes:
        written: The pickles, one after the other.
        lengths: Name and length of each.
        files: Names of the sources that functions among them are from.
    """

    def __init__(self, namespace: Dict[str, Any], limit: int) -> None:
        from bridge.guest import checkpoint_values

        self._values = checkpoint_values
        self.files: Iterable[str] = ()
        self.lengths: List[List[Any]] = []
        self.written = bytearray()
        self._namespace = namespace
        self._limit = limit
        self._lost: Dict[str, str] = {}

    def run(self) -> None:
        """Write as much as there is room for."""
        names: List[str] = []
        for name, value in list(self._namespace.items()):
            if type(name) is not str or _is_given(name, value):
                continue
            if _hung.get(name) == id(value):
                self._lost[name] = "keeping it took too long the last time"
            else:
                names.append(name)
        # Modules first: what restores other values may need them.
        names.sort(key=lambda name: type(self._namespace[name]) is not types.ModuleType)
        if not self._write(names):
            self._write(self._chosen(names))

    def losses(self) -> List[List[str]]:
        """Return what could not be kept, in the order of the names."""
        return [[name, self._lost[name]] for name in self._namespace if name in self._lost]

    def _write(self, names: List[str]) -> bool:
        """Write names; return whether there was room for all that could be written."""
        sink = _Sink(max(self._limit, _LEAST_BYTES))
        keeper = self._values.Keeper(sink, self._namespace)
        self.lengths = []
        for name in names:
            before = sink.size
            # A new list, which stands for all that is written after it has begun.
            entry = [name, self._namespace[name]]
            try:
                problem = self._dump(keeper, entry)
                if problem:
                    sink.cut(before)
                    keeper.go_back(entry)
                    imported = _imported(name, entry[1])
                    if imported is None:
                        self._lost[name] = problem
                        continue
                    keeper.dump([name, self._values.Imported(*imported)])
            except _Full:
                return False
            self.lengths.append([name, sink.size - before])
        self.written, self.files = sink.data, keeper.files
        return True

    def _dump(self, keeper: Any, entry: List[Any]) -> str:
        """Write a name and its value; return why that cannot be done, empty if it was."""
        words = self._values.what_it_is(entry[1])
        if words:
            return "it is %s" % words
        try:
            keeper.dump(entry)
        except _Full:
            raise
        except KeyboardInterrupt:
            _hung[entry[0]] = id(entry[1])
            raise
        except BaseException as error:
            return why(error)
        return ""

    def _chosen(self, names: List[str]) -> List[str]:
        """Return the names for which there is room when the largest are left out."""
        sizes: Dict[str, int] = {}
        for name in names:
            if name in self._lost:
                continue
            sink = _Sink(self._limit, counting=True)
            keeper = self._values.Keeper(sink, self._namespace)
            try:
                self._dump(keeper, [name, self._namespace[name]])
            except _Full:
                self._lost[name] = "it takes more than the %s bytes there are" % f"{self._limit:,}"
            else:
                # What could not be written is told of when it is tried again.
                sizes[name] = sink.size
        total = sum(sizes.values())
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            if total <= self._limit:
                break
            total -= sizes.pop(name)
            words = "there is no room for it: all names together take more than %s bytes"
            self._lost[name] = words % f"{self._limit:,}"
        return [name for name in names if name in sizes]


def _is_given(name: str, value: Any) -> bool:
    """Whether a name is the interpreter's or the guest's own."""
    if name.startswith("__"):
        return True
    if name not in _GIVEN and not name.startswith("mcp_"):
        return False
    kind = type(value)
    home = str(getattr(value, "__module__", ""))
    return (
        name == "LOADED_MCP_SERVERS"
        or (isinstance(value, types.ModuleType) and value.__name__ in ("mcp", "mcp.runtime"))
        or str(kind.__module__).startswith("bridge.guest")
        or home.startswith(("bridge.guest", "mcp.runtime"))
    )


def _imported(name: str, value: Any) -> Optional[Tuple[str, str]]:
    """Return where a value can be imported from; None if no module has it under this name."""
    for module, other in list(sys.modules.items()):
        known = getattr(other, "__dict__", None)
        if module != "__main__" and type(known) is dict and known.get(name) is value:
            return (module, name)
    return None
