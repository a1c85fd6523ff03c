"""Saves a session's values and files for another sandbox; reports the values it cannot save.

Unlike in `cloudpickle`, functions refer to the session's namespace instead of copying it. Code is
marked with its Python version. The bridge's objects are saved as references. A value whose copy
would differ is refused.
"""

from __future__ import annotations

import _pickle
import contextlib
import functools
import io
import json
import marshal
import os
import stat
import sys
import types
from enum import Enum

from bridge.guest.protocol.helpers import OWN_GLOBALS
from bridge.guest.protocol.placeholders import Unknown
from bridge.guest.protocol.wire import State
from bridge.guest.state import checkpoint
from bridge.guest.state.checkpoint import NotKept
from bridge.guest.state.cloudpickle import Pickler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

PART_BYTES = 512 * 1024  # Size of a part, far below the limit on a frame.

MAX_LOOKED_AT = 20_000
"""Files of the workspace that are examined; a program may have unpacked an archive."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_hung: Dict[str, int] = {}
"""Name to `id` of values whose saving was interrupted: they are not tried again."""


class _Full(Exception):
    """The data exceeds the limit."""


class _Sink:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()

    def write(self, data: Any) -> int:
        # Large arrays come as a buffer in memory order; only `raw` keeps that order.
        view = data.raw() if isinstance(data, _pickle.PickleBuffer) else memoryview(data)
        if len(self.data) + view.nbytes > self._limit:
            raise _Full
        self.data += view
        return int(view.nbytes)


def save(namespace: Dict[str, Any], workspace: str, limit: int) -> Iterator[State]:
    """Yield a session's checkpoint in parts; the last has [name, reason] of each loss."""
    entries, contents, lost = _read_files(workspace, limit // 2)
    saver = _Saver(namespace, limit - len(contents))
    with checkpoint.uncollected():
        saver.run()
    lost[:0] = [[name, saver.lost[name]] for name in namespace if name in saver.lost]
    header = json.dumps(
        {
            "directory": _directory(workspace, lost),
            "sources": _sources(saver.files),
            "names": saver.lengths,
            "files": entries,
            "packed": saver.packed,
        },
        ensure_ascii=False,
    ).encode("utf-8", "surrogatepass")
    size = len(header).to_bytes(checkpoint.LENGTH_BYTES, "big")
    head = b"%s%d\n%s%s" % (checkpoint.MAGIC, checkpoint.VERSION, size, header)
    data = b"".join((head, saver.written, contents))
    for start in range(0, len(data), PART_BYTES):
        part = data[start : start + PART_BYTES]
        is_last = start + PART_BYTES >= len(data)
        yield State(data=part, lost=checkpoint.told(lost) if is_last else [])


def _directory(workspace: str, lost: List[List[str]]) -> str:
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
    import linecache  # slow; few sessions need it

    found: Dict[str, str] = {}
    left = 2 * 1024 * 1024
    for file in reversed([file for file in linecache.cache if file in files]):
        entry = linecache.cache[file]
        # Registered programs only: other entries are files, or the guest's start command.
        if len(entry) == 4 and entry[1] is None and file != "<string>":
            text = "".join(entry[2])
            left -= len(text)
            if left < 0:
                break
            found[file] = text
    return dict(reversed(list(found.items())))


class _Saver:
    def __init__(self, namespace: Dict[str, Any], limit: int) -> None:
        self.files: Iterable[str] = ()
        self.lengths: List[List[Any]] = []
        self.written = bytearray()
        self.packed = 0
        self._namespace = namespace
        self._limit = limit
        self.lost: Dict[str, str] = {}

    def run(self) -> None:
        """Write all names, compressed if need be; without the largest if that does not help."""
        names = self._names()
        complete = self._write(names, 2 * self._limit)
        if complete and len(self.written) > self._limit:
            import zlib  # few states are large

            data = bytearray(zlib.compress(self.written, 1))
            if len(data) <= self._limit:
                self.written, self.packed = data, len(data)
        if not complete or len(self.written) > self._limit:
            names.sort(key=self._order)
            self._write(names, self._limit)

    def _order(self, name: str) -> Tuple[bool, int]:
        self._write([name], self._limit)
        return type(self._namespace[name]) is not types.ModuleType, sum(n for _, n in self.lengths)

    def _names(self) -> List[str]:
        names: List[str] = []
        for name, value in list(self._namespace.items()):
            if type(name) is not str or _is_given(name, value):
                continue
            if _hung.get(name) == id(value):
                self.lost[name] = "keeping it took too long the last time"
            else:
                names.append(name)
        # Modules first: restoring other values may need them.
        names.sort(key=lambda name: type(self._namespace[name]) is not types.ModuleType)
        return names

    def _write(self, names: List[str], limit: int) -> bool:
        sink = _Sink(max(limit, 4096))  # more than an empty checkpoint takes
        keeper = Keeper(sink, self._namespace)
        self.lengths = []
        complete = True
        for name in names:
            before = len(sink.data)
            # A new list: its place in the memo marks where this name's objects start.
            entry = [name, self._namespace[name]]
            try:
                problem = self._dump(keeper, entry)
            except _Full:
                complete = False
                problem = "there is no room for it: all names together take more than "
                problem += f"{self._limit:,} bytes"
            if problem:
                del sink.data[before:]
                keeper.go_back(entry)
                self.lost[name] = problem
            else:
                self.lengths.append([name, len(sink.data) - before])
                self.lost.pop(name, None)
        self.written, self.files = sink.data, keeper.files
        return complete

    def _dump(self, keeper: Any, entry: List[Any]) -> str:
        words = what_it_is(entry[1])
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
            return checkpoint.why(error)
        return ""


def _is_given(name: str, value: Any) -> bool:
    if name.startswith("__"):
        return True
    if name not in (*OWN_GLOBALS, "display") and not name.startswith("mcp_"):
        return False
    kind = type(value)
    home = str(getattr(value, "__module__", ""))
    return (
        name == "LOADED_MCP_SERVERS"
        or (isinstance(value, types.ModuleType) and value.__name__ in ("mcp", "mcp.runtime"))
        or str(kind.__module__).startswith("bridge.guest")
        or home.startswith(("bridge.guest", "mcp.runtime"))
    )


def _read_files(workspace: str, budget: int) -> Tuple[List[List[Any]], bytearray, List[List[str]]]:
    """Return [path, mode, size] of a workspace's files; their contents; [name, reason] of losses.

    The smallest files come first, and links are not followed.
    """
    lost: List[List[str]] = []
    entries: List[List[Any]] = []
    contents = bytearray()
    for size, path in sorted(_plain_files(workspace, lost)):
        try:
            mode, data = _content(os.path.join(workspace, path), size, budget - len(contents))
        except (NotKept, OSError) as error:
            text = "it cannot be read: %s" % error.strerror if isinstance(error, OSError) else error
            lost.append(["file " + path, str(text)])
            continue
        entries.append([path, mode, size])
        contents += data
    return entries, contents, lost


def _content(path: str, size: int, most: int) -> Tuple[int, bytes]:
    if size > most:
        raise NotKept("it is larger (%s bytes) than what is left for files" % f"{size:,}")
    with open(os.open(path, _READ), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        data = file.read(size + 1) if stat.S_ISREG(mode) else b""
    if len(data) != size:
        raise NotKept("it changed while it was read")
    return stat.S_IMODE(mode), data


def _plain_files(workspace: str, lost: List[List[str]]) -> Iterator[Tuple[int, str]]:
    looked = 0
    for folder, folders, names in os.walk(workspace):
        below = os.path.relpath(folder, workspace)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        # Files in `out` were sent already.
        folders[:] = [name for name in folders if name not in (*("out", "__pycache__"), *links)]
        for name in [*names, *links]:
            looked += 1
            if looked > MAX_LOOKED_AT:
                lost.append(["files", "there are more than %d in the workspace" % MAX_LOOKED_AT])
                return
            path = os.path.normpath(os.path.join(below, name))
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(status.st_mode):
                    yield status.st_size, path
                else:
                    is_link = stat.S_ISLNK(status.st_mode)
                    lost.append(["file " + path, "it is %s" % ("a link" if is_link else "no file")])


PROTOCOL = 5

_BY_TYPE: Tuple[Tuple[Any, str], ...] = (
    (types.GeneratorType, "a generator"), (types.CoroutineType, "a coroutine"),
    (types.AsyncGeneratorType, "an asynchronous generator"),
    (types.FrameType, "a frame of the interpreter"), (types.TracebackType, "a traceback"),
    (io.IOBase, "an open file"), (memoryview, "a memoryview"),
    (Unknown, "a placeholder of a plan"), (type({}.keys()), "a view of a dict"),
    (type({}.values()), "a view of a dict"), (type({}.items()), "a view of a dict"),
)  # fmt: skip


def what_it_is(value: Any) -> Optional[str]:
    """Return the kind of a value that is never saved; None for other values."""
    kind = type(value)
    for base, words in _BY_TYPE:
        if issubclass(kind, base) and kind not in (io.StringIO, io.BytesIO):
            return words
    if "__next__" in dir(kind) and kind.__module__ in ("builtins", "itertools", "_csv", "re"):
        return "an iterator (%s)" % kind.__name__
    return None


class _Globals:
    """Stands for the globals of functions: saved as a reference to their module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return (checkpoint.namespace, (self._module,))


class Keeper(Pickler):  # type: ignore[misc]
    """A pickler for a session's values, which records the source `files` of their functions."""

    memo: Any

    def __init__(self, sink: Any, names: Dict[str, Any]) -> None:
        super().__init__(sink, PROTOCOL)
        self.files: Set[str] = set()
        self._names = names
        self._main = getattr(sys.modules.get("__main__"), "__dict__", names)
        self._how: Dict[type, Optional[Callable[[Any], Any]]] = {}

    def go_back(self, first: Any) -> None:
        """Drop `first` and all later objects from the memo."""
        memo: Dict[int, Tuple[int, Any]] = self.memo.copy()
        entry = memo.get(id(first))
        if entry is not None:
            self.memo = {k: v for k, v in memo.items() if v[0] < entry[0]}

    def reducer_override(self, value: Any) -> Any:
        """Return the way to restore a value; NotImplemented for the default of `pickle`."""
        kind = type(value)
        try:
            how = self._how[kind]
        except KeyError:
            how = self._how[kind] = self._choose(kind, value)
        return NotImplemented if how is None else how(value)

    def _choose(self, kind: Any, value: Any) -> Optional[Callable[[Any], Any]]:
        for known, how in (
            (types.ModuleType, _module),
            (types.FunctionType, self._function),
            (type, self._class),
            (types.CodeType, lambda v: (checkpoint.code, (checkpoint.python(), marshal.dumps(v)))),
            (types.CellType, lambda v: (types.CellType, ())),
            (functools._lru_cache_wrapper, _reduce_lru_cache),
            (
                functools.cached_property,
                lambda v: (functools.cached_property, (v.func,), {"attrname": v.attrname}),
            ),
            (types.MethodType, _method),
        ):
            if issubclass(kind, known):
                return how
        words = what_it_is(value)
        if words is not None:
            return functools.partial(_refuse, words)
        return _ours if str(kind.__module__).startswith("bridge.") else None

    def _function(self, value: Any) -> Any:
        if str(value.__module__).startswith("mcp.servers.") and hasattr(value, "tool"):
            return (checkpoint.tool, (value.server, value.tool))
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, func: Any) -> Any:
        own = func.__globals__
        is_main = own is self._names or own is self._main
        module = "" if is_main else str(own.get("__name__"))
        known = not module or getattr(sys.modules.get(module), "__dict__", None) is own
        if known:
            # One per function: a function that cannot be restored affects no other.
            self.globals_ref[id(own)] = _Globals(module)
        made, args, state, _, _, fill = super()._dynamic_function_reduce(func)
        state[1]["__closure__"] = None
        if known:
            state[1]["__globals__"] = {}
        self.files.add(func.__code__.co_filename)
        # The cells themselves: functions that share a cell still share it afterwards.
        cells = func.__closure__
        contents = []
        for cell in cells or ():
            with contextlib.suppress(ValueError):  # It is empty.
                contents.append((cell, cell.cell_contents))
        state = (fill, state, contents)
        return (made, (*args[:4], cells), state, None, None, _set_function)

    def _class(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or len(reduced) < 6:
            return reduced
        attributes = reduced[2][0]
        if issubclass(value, Enum):
            members = dict(value.__members__)
            for name in members:
                attributes.pop(name, None)
            values = {name: each.value for name, each in members.items()}
            args = (*reduced[1][:3], values, *reduced[1][4:])
            # Attributes that the enum's own `__init__` or `__new__` gave to its members.
            given = [(name, dict(vars(each))) for name, each in members.items()]
            return (reduced[0], args, (reduced[5], reduced[2], given), None, None, _set_enum)
        if "__slots__" in attributes and not issubclass(value, tuple):
            # cloudpickle sets them after the class is created, which is too late.
            reduced[1][3]["__slots__"] = attributes.pop("__slots__")
        for name in [n for n, v in attributes.items() if type(v) is types.MemberDescriptorType]:
            del attributes[name]
        return reduced


def _set_enum(made: Any, state: Any) -> None:
    fill, own, given = state
    fill(made, own)
    for name, attributes in given:
        each = made.__members__[name]
        for key, value in attributes.items():
            each.__dict__.setdefault(key, value)


def _refuse(words: str, value: Any) -> Any:
    raise NotKept("it is or holds %s" % words)


def _module(value: Any) -> Any:
    name = getattr(value, "__name__", None)
    if sys.modules.get(str(name)) is not value and not str(name).startswith("mcp."):
        name = next((n for n, other in list(sys.modules.items()) if other is value), None)
    if name is None or name == "__main__":
        raise NotKept("it is or holds a module that cannot be imported by its name")
    return (checkpoint.found, (name, ""))


def _set_function(made: Any, state: Any) -> None:
    fill, own, cells = state
    for cell, content in cells:
        cell.cell_contents = content
    fill(made, own)


def _reduce_lru_cache(value: Any) -> Any:
    if checkpoint.is_importable(value):
        return NotImplemented
    options = value.cache_parameters()
    return (_remember, (value.__wrapped__, options["maxsize"], options["typed"]))


def _remember(function: Any, maxsize: Optional[int], typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _method(value: Any) -> Any:
    if type(value.__self__).__module__ == "bridge.guest.api.runtime":
        return (checkpoint.found, ("mcp.runtime", value.__name__))
    return NotImplemented


def _ours(value: Any) -> Any:
    proxies = sys.modules.get("bridge.guest.api.proxies")
    if proxies is not None and type(value) is proxies.Server:
        return (checkpoint.server, (value._tools.server["name"],))
    if type(value) is _Globals:
        return NotImplemented
    raise NotKept("it is or holds something of the bridge's own (%s)" % type(value).__name__)
