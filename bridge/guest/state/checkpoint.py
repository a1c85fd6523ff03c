"""Restores a session from a checkpoint, in another sandbox.

A checkpoint is a line that names the format, the length of a header, the header as JSON, the
pickles and the workspace's files. Each pickle is a list of name and value. One pickler writes all
pickles, so that shared objects stay shared. Reading a checkpoint may run the session's code: only a
guest reads it, in a sandbox of the same owner.
"""

from __future__ import annotations

import _pickle
import contextlib
import gc
import io
import json
import os
import sys

from bridge.guest.api.tracebacks import register_source
from bridge.guest.api.values import error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Tuple

MAGIC = b"mcp-code-bridge checkpoint "
VERSION = 3

LENGTH_BYTES = 8

EVERYTHING = "*"  # Stands for all names if the whole checkpoint cannot be read.

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # `O_EXCL` follows no link.

_session: Dict[str, Dict[str, Any]] = {}
"""Under "names", the globals of the session that is being restored."""


class NotKept(Exception):
    """A value cannot be saved or restored; the message says why."""


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection: the objects made here are kept, and collecting is slow."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def why(error: BaseException, doing: str = "keeping") -> str:
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "there is not enough memory to write it down"
    text = error_text(error)
    if isinstance(error, NotKept):
        return text
    for before in ("cannot pickle '", "can't pickle "):
        if isinstance(error, TypeError) and text.startswith(before):
            kind = text[len(before) :].replace("object", "").strip(" '")
            return "it is or holds a %s, which Python cannot write down" % kind
    return "%s it raised %s" % (doing, type(error).__name__) + (text and ": " + text)


def told(lost: List[List[str]]) -> List[List[str]]:
    """Return the first names and reasons, cut to a length, for the host's message."""
    return [[str(part)[:300] for part in pair] for pair in lost[:200]]


def found(module: str, name: str) -> Any:
    """Return a module, or its attribute with a dotted name; raise NotKept if it has none."""
    if module not in sys.modules:
        __import__(module)
    value: Any = sys.modules[module]
    try:
        for part in name.split(".") if name else ():
            value = getattr(value, part)
    except AttributeError:
        raise NotKept("%s has no %s here" % (module, name)) from None
    return value


def is_importable(value: Any) -> bool:
    try:
        home = value.__module__
        # Loaded modules only: this must not run an import.
        known = home != "__main__" and home in sys.modules
        return known and found(home, value.__qualname__) is value
    except Exception:
        return False


def namespace(module: str) -> Any:
    """Return the globals of a module; for an empty name, those of the session."""
    return found(module, "").__dict__ if module else _session["names"]


def server(name: str) -> Any:
    servers = _session["names"].get("mcp_servers")
    if servers is None or name not in servers:
        raise NotKept("the server %r is not loaded" % name)
    return servers[name]


def tool(server_name: str, name: str) -> Any:
    return server(server_name)[name]


def python() -> str:
    """Return this Python's version, such as "3.12": code objects are specific to it."""
    return "%s.%s" % (sys.version_info[:2])


def code(version: str, data: bytes) -> Any:
    """Return a function's code object; raise NotKept if it is for another Python."""
    if version != python():
        words = "functions come back in the same version of Python only: Python %s, and this is %s"
        raise NotKept(words % (version, python()))
    import marshal

    return marshal.loads(data)


def restore(names: Dict[str, Any], workspace: str, data: bytes) -> List[List[str]]:
    """Restore a checkpoint into a session's globals; return [name, reason] of each loss.

    Runs `__new__`, `__setstate__` and the like of the classes, and imports modules, including
    those in the workspace.
    """
    given = names.get("__builtins__")
    try:
        with uncollected():
            _session["names"] = names
            header, values, contents = _read(data)
            for file, text in header["sources"].items():
                register_source(text, str(file))
            if header.get("packed"):
                import zlib  # few states are large

                values = memoryview(zlib.decompress(values))
            # Files first: values may need modules among them.
            lost = _put_files(workspace, header, contents)
            if not _read_all(names, header["names"], values):
                lost += _read_each(names, header["names"], values)
    except NotKept as error:
        lost = [[EVERYTHING, why(error)]]
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        lost = [[EVERYTHING, "the checkpoint is damaged (%s)" % type(error).__name__]]
    finally:
        _session.clear()
        if given is not None:
            # Restored functions set it to their own module's.
            names["__builtins__"] = given
    return told(lost)


def _read(data: bytes) -> Tuple[Dict[str, Any], memoryview, memoryview]:
    """Return a checkpoint's header, its pickles and the contents of its files."""
    line = data[: len(MAGIC) + 20].partition(b"\n")[0]
    version = line[len(MAGIC) :].decode("ascii", "replace")
    if not line.startswith(MAGIC):
        raise NotKept("it is no checkpoint")
    if version != str(VERSION):
        words = "the checkpoint is of version %s; this bridge reads version %d"
        raise NotKept(words % (version, VERSION))
    start = len(line) + 1 + LENGTH_BYTES
    size = int.from_bytes(data[start - LENGTH_BYTES : start], "big")
    header: Dict[str, Any] = json.loads(data[start : start + size].decode("utf-8", "surrogatepass"))
    body = memoryview(data)[start + size :]
    values = header.get("packed") or sum(length for _, length in header["names"])
    if values + sum(size for _, _, size in header["files"]) != len(body):
        raise NotKept("the checkpoint is damaged: a part is missing, or there is too much")
    return header, body[:values], body[values:]


def _put_files(workspace: str, header: Dict[str, Any], body: memoryview) -> List[List[str]]:
    lost: List[List[str]] = []
    start = 0
    for path, mode, size in header["files"]:
        try:
            _put_back(workspace, path, mode, bytes(body[start : start + size]))
        except (OSError, ValueError) as error:
            lost.append(["file " + str(path), str(error)])
        start += size
    below = header["directory"]
    if below:
        place = os.path.realpath(os.path.join(workspace, below))
        try:
            if not place.startswith(os.path.join(os.path.realpath(workspace), "")):
                raise NotKept("it is outside of the workspace")
            os.makedirs(place, exist_ok=True)
            os.chdir(place)
        except (OSError, NotKept) as error:
            lost.append(["working directory", str(error)])
    return lost


def _put_back(workspace: str, path: str, mode: int, data: bytes) -> None:
    """Write a file unless it exists: an existing one is newer."""
    root = os.path.realpath(workspace)
    place = os.path.join(root, path)
    # No way up, no links, nothing that reads as another path.
    if os.path.realpath(place) != place or not place.startswith(root + os.sep):
        raise ValueError("it has no place below the workspace")
    os.makedirs(os.path.dirname(place), exist_ok=True)
    try:
        descriptor = os.open(place, _WRITE, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, mode & 0o777)


def _read_all(names: Dict[str, Any], written: List[Any], body: memoryview) -> bool:
    load = _pickle.Unpickler(io.BytesIO(body)).load
    try:
        for name, _ in written:
            names[name] = _value(name, load())
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False
    return True


def _value(name: str, entry: Any) -> Any:
    if type(entry) is not list or len(entry) != 2 or entry[0] != name:
        raise NotKept("the checkpoint is damaged")
    return entry[1]


class _Memo(dict):  # type: ignore[type-arg]
    """The unpickler's memo; objects of failed pickles are counted, but missing."""

    gone = 0

    def __len__(self) -> int:
        return super().__len__() + self.gone

    def __missing__(self, number: int) -> Any:
        raise NotKept("it shares something with a name that could not be read")


def _read_each(names: Dict[str, Any], written: List[Any], body: memoryview) -> List[List[str]]:
    """Read the names one by one; return [name, reason] of those that fail.

    Uses the unpickler written in Python: its memo can be reset after a failed name.
    """
    import pickle

    stream = io.BytesIO(body)
    unpickler: Any = pickle._Unpickler(stream)
    memo = unpickler.memo = _Memo()
    lost: List[List[str]] = []
    end = 0
    for name, length in written:
        start, end = end, end + length
        before = len(memo)
        stream.seek(start)
        try:
            names[name] = _value(name, unpickler.load())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            lost.append([name, why(error, "restoring")])
            names.pop(name, None)
            for number in [n for n in memo if n >= before]:
                del memo[number]
            _remember(memo, body[start:end], unpickler.find_class)
    return lost


def _remember(memo: _Memo, written: memoryview, find: Callable[[str, str], Any]) -> None:
    """Record a failed pickle's objects in the memo: texts and imports unchanged, others missing."""
    import pickletools

    texts: List[Any] = []
    last: Any = None
    try:
        for op, arg, _ in pickletools.genops(bytes(written)):
            if op.name == "MEMOIZE":
                if last is None:
                    memo.gone += 1
                else:
                    memo[len(memo)] = last
                continue
            last = arg if type(arg) in (str, bytes) else None
            if op.name == "STACK_GLOBAL":
                with contextlib.suppress(Exception):
                    last = find(*texts[-2:])
            elif op.name.endswith("BINGET"):
                texts.append(memo.get(arg))
            elif last is not None:
                texts.append(last)
    except Exception:
        raise NotKept("the checkpoint is damaged") from None
