"""What a session holds, as bytes that another sandbox makes a session of again.

Owns the format: which names are kept, in which order, and what becomes of those that cannot be.
How values are taken apart is `checkpoint_values`', how they are put together `checkpoint_steps`'.

A checkpoint is a line that names the format, the length of a header, the header as JSON, one
pickle after the other (a list of name and value each, all written by one pickler and read by one
unpickler, so that what they share stays shared) and the contents of the workspace's files. Only a
guest reads one: the host keeps it as it came.
"""

from __future__ import annotations

import _pickle
import binascii
import gc
import json
import os
import sys
import types

from bridge.guest.checkpoint_code import Sources
from bridge.guest.checkpoint_files import gather
from bridge.guest.checkpoint_parts import home_of, module_name
from bridge.guest.checkpoint_reasons import MAX_LOST, pair, what_it_is, why
from bridge.guest.checkpoint_restore import EVERYTHING, MAGIC, VERSION, restore
from bridge.guest.checkpoint_steps import STEPS
from bridge.guest.checkpoint_values import Keeper
from bridge.guest.wire import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

__all__ = ["restore", "save"]

PART_BYTES = 384 * 1024
"""Of one frame, which are 512 KiB as base64: far below what a frame may have."""

MAX_SOURCE_CHARS = 2 * 1024 * 1024
"""Of the sources that definitions come from: more than any session's programs have."""

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
    # What is written down lasts until it is sent; to look for garbage in it takes as long again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        saver.run()
    finally:
        if collecting:
            gc.enable()
    lost = [*saver.losses(), *lost]
    header = json.dumps(
        {
            "python": list(sys.version_info[:2]),
            "directory": _directory(workspace, lost),
            "imports": saver.imports,
            "sources": saver.sources.used,
            "names": saver.lengths,
            "files": entries,
        },
        ensure_ascii=False,
    ).encode("utf-8", "surrogatepass")
    begin = b"%s%d\n%s" % (MAGIC, VERSION, len(header).to_bytes(8, "big"))
    told = [list(pair(name, reason)) for name, reason in lost[:MAX_LOST]]
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


class _Saver:
    """Writes the names of one namespace.

    Attributes:
        written: The pickles, one after the other.
        lengths: Name and length of each.
        imports: Name, module and what of it, of what is imported again.
    """

    def __init__(self, namespace: Dict[str, Any], limit: int) -> None:
        self.sources = Sources()
        self.imports: List[List[str]] = []
        self.lengths: List[List[Any]] = []
        self.written = bytearray()
        self._namespace = namespace
        self._limit = limit
        self._lost: Dict[str, str] = {}
        self._everything = ""

    def run(self) -> None:
        """Write as much as there is room for."""
        names: List[str] = []
        for name, value in list(self._namespace.items()):
            if type(name) is not str or _is_given(name, value):
                continue
            imported = _import_of(name, value)
            words = None if imported else what_it_is(value)
            if imported:
                self.imports.append([name, *imported])
            elif words:
                self._lost[name] = "it is %s" % words
            elif _hung.get(name) == id(value):
                self._lost[name] = "keeping it took too long the last time"
            else:
                names.append(name)
        if not self._write(names):
            self._write(self._chosen(names))
        self._find_elsewhere()
        text = sum(map(len, self.sources.used.values()))
        if text > MAX_SOURCE_CHARS:
            self._give_up("its programs are longer than what is kept of them")

    def _give_up(self, reason: str) -> None:
        self.imports, self.lengths, self.written = [], [], bytearray()
        self.sources.used.clear()
        self._everything = reason

    def losses(self) -> List[List[str]]:
        """Return what could not be kept, in the order of the names."""
        if self._everything:
            return [[EVERYTHING, self._everything]]
        names = [name for name in self._namespace if name in self._lost]
        return [[name, self._lost[name]] for name in names]

    def _write(self, names: List[str]) -> bool:
        """Write names; return whether there was room for all that could be written."""
        sink = _Sink(max(self._limit, _LEAST_BYTES))
        self.sources.used.clear()
        keeper = Keeper(sink, self._namespace, self.sources)
        # All that later ones refer to whatever becomes of those between.
        keeper.dump([None, list(STEPS.values())])
        self.lengths = [[None, sink.size]]
        for name in names:
            before = sink.size
            # A new list, which stands for all that is written after it has begun.
            entry = [name, self._namespace[name]]
            try:
                _interruptible(keeper, entry)
            except _Full:
                return False
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                sink.cut(before)
                keeper.go_back(entry)
                self._lost[name] = why(error)
            else:
                self.lengths.append([name, sink.size - before])
        self.written = sink.data
        return True

    def _chosen(self, names: List[str]) -> List[str]:
        """Return the names for which there is room when the largest are left out."""
        sizes: Dict[str, int] = {}
        for name in names:
            if name in self._lost:
                continue
            sink = _Sink(self._limit, counting=True)
            try:
                _interruptible(
                    Keeper(sink, self._namespace, Sources()), [name, self._namespace[name]]
                )
            except _Full:
                self._lost[name] = "it takes more than the %s bytes there are" % f"{self._limit:,}"
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                self._lost[name] = why(error)
            else:
                sizes[name] = sink.size
        total = sum(sizes.values())
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            if total <= self._limit:
                break
            total -= sizes.pop(name)
            words = "there is no room for it: all names together take more than %s bytes"
            self._lost[name] = words % f"{self._limit:,}"
        return [name for name in names if name in sizes]

    def _find_elsewhere(self) -> None:
        """Import again what could not be written but is found in a module under its name."""
        for name in list(self._lost):
            value = self._namespace[name]
            for module, other in list(sys.modules.items()):
                known = getattr(other, "__dict__", None)
                if module != "__main__" and type(known) is dict and known.get(name) is value:
                    del self._lost[name]
                    self.imports.append([name, module, name])
                    break


def _interruptible(keeper: Keeper, entry: List[Any]) -> None:
    try:
        keeper.dump(entry)
    except KeyboardInterrupt:
        _hung[entry[0]] = id(entry[1])
        raise


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


def _import_of(name: str, value: Any) -> Optional[Tuple[str, str]]:
    """Return the module, and what of it, that a name is an import of."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        module = module_name(value)
        return None if module is None else (module, "")
    if kind in (types.FunctionType, types.BuiltinFunctionType) or issubclass(kind, type):
        return home_of(value)
    return None
