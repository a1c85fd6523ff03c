"""A checkpoint opened: its names back in a namespace, its files back in the workspace.

Owns the reading of the format, which `checkpoint` describes, and what becomes of names that cannot
be read: each is lost by itself, with those that share something with it.
"""

from __future__ import annotations

import _pickle
import gc
import io
import json
import os

from bridge.guest import checkpoint_steps as steps
from bridge.guest.checkpoint_code import NotKept, Sources, refuse
from bridge.guest.checkpoint_files import put_back
from bridge.guest.checkpoint_reasons import MAX_LOST, pair, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

MAGIC = b"mcp-code-bridge checkpoint "
VERSION = 1

_LENGTH_BYTES = 8

EVERYTHING = "*"
"""Stands for all names where the whole of a checkpoint cannot be had."""

_ARRAYS = ("numpy", "pandas")
"""Packages whose values say a name of their own where they are always the same."""


def restore(namespace: Dict[str, Any], workspace: str, data: bytes) -> List[List[str]]:
    """Put what a checkpoint holds into a namespace; return what could not be, and why.

    Runs the definitions of some classes and what classes define as `__setstate__`; and modules
    that are imported run, among them those in the workspace.
    """
    # Nothing of what is made becomes garbage, and to look for it takes longer than to make it.
    collecting = gc.isenabled()
    gc.disable()
    try:
        header, offset = _opened(data)
        return _restored(namespace, workspace, header, memoryview(data)[offset:])
    except NotKept as error:
        return [list(pair(EVERYTHING, why(error)))]
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        return [list(pair(EVERYTHING, "the checkpoint is damaged (%s)" % type(error).__name__))]
    finally:
        if collecting:
            gc.enable()


def _opened(data: bytes) -> Tuple[Dict[str, Any], int]:
    line, newline, _ = data[: len(MAGIC) + 20].partition(b"\n")
    if not newline or not line.startswith(MAGIC) or not line[len(MAGIC) :].isdigit():
        refuse("it is no checkpoint")
    version = int(line[len(MAGIC) :])
    if version != VERSION:
        words = "the checkpoint is of version %d; this bridge reads version %d"
        raise NotKept(words % (version, VERSION))
    start = len(line) + 1 + _LENGTH_BYTES
    size = int.from_bytes(data[start - _LENGTH_BYTES : start], "big")
    if size > len(data) - start:
        refuse("the checkpoint ends in the middle")
    header: Dict[str, Any] = json.loads(data[start : start + size].decode("utf-8", "surrogatepass"))
    expected = sum(n[1] for n in header["names"]) + sum(f[2] for f in header["files"])
    if expected != len(data) - start - size:
        refuse("the checkpoint ends in the middle, or has too much")
    return header, start + size


def _restored(
    namespace: Dict[str, Any], workspace: str, header: Dict[str, Any], body: memoryview
) -> List[List[str]]:
    sources = Sources()
    for file, text in header["sources"].items():
        sources.put(str(file), str(text))
    steps.begin(namespace, sources)
    size = sum(length for _, length in header["names"])
    # Files first: modules may be among them.
    lost = _put_files(workspace, header, body[size:])
    for name, module, what in header["imports"]:
        try:
            namespace[str(name)] = steps.found(str(module), str(what))
        except BaseException as error:
            _unless_interrupted(error)
            lost.append([str(name), "importing it failed: %s" % why(error)])
    lost += _Reader(namespace, header["names"], body[:size]).run()
    return [list(pair(name, reason)) for name, reason in lost[:MAX_LOST]]


def _put_files(workspace: str, header: Dict[str, Any], body: memoryview) -> List[List[str]]:
    lost: List[List[str]] = []
    start = 0
    for path, mode, size in header["files"]:
        try:
            put_back(workspace, path, mode, bytes(body[start : start + size]))
        except (OSError, ValueError) as error:
            lost.append(["file " + str(path), str(error)])
        start += size
    below = header["directory"]
    if below:
        place = os.path.realpath(os.path.join(workspace, below))
        try:
            if not place.startswith(os.path.join(os.path.realpath(workspace), "")):
                refuse("it is outside of the workspace")
            os.makedirs(place, exist_ok=True)
            os.chdir(place)
        except (OSError, NotKept) as error:
            lost.append(["working directory", str(error)])
    return lost


class _Gone:
    """Stands for what could not be made again, in values that share it."""


class _Unpickler(_pickle.Unpickler):
    """Finds the steps, and nothing else.

    Attributes:
        remembered: What an earlier one had read, for `_again`.
    """

    remembered: Dict[int, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a step; or what arrays are written with that write themselves by name."""
        if module == steps.__name__ and name in steps.STEPS:
            return steps.STEPS[name]
        if module.partition(".")[0] in _ARRAYS:
            return steps.imported(module, name)
        raise NotKept("%s.%s is not made again from a checkpoint" % (module, name))

    def persistent_load(self, number: Any) -> Any:
        """Return what an earlier one had read."""
        return self.remembered.get(number, _Gone())


class _Reader:
    """Reads the pickles of a checkpoint."""

    def __init__(self, namespace: Dict[str, Any], names: List[Any], body: memoryview) -> None:
        self._namespace = namespace
        self._names = names
        self._body = body
        self._stream = io.BytesIO(body)
        self._unpickler = _Unpickler(self._stream)

    def run(self) -> List[List[str]]:
        """Put the names into the namespace; return those that could not be, and why."""
        values: Dict[str, Any] = {}
        lost: List[List[str]] = []
        end = 0
        for name, length in self._names:
            start, end = end, end + length
            try:
                entry = self._unpickler.load()
                if type(entry) is not list or len(entry) != 2 or entry[0] != name:
                    refuse("the checkpoint is damaged")
                if name is not None:
                    values[name] = entry[1]
            except BaseException as error:
                _unless_interrupted(error)
                lost.append([EVERYTHING if name is None else name, why(error)])
                self._go_on(start, end)
        if lost:
            lost += _shared_with_lost(values)
        self._namespace.update(values)
        return lost

    def _go_on(self, start: int, end: int) -> None:
        """Read what comes after a pickle that could not be read.

        What is referred to is counted by both sides: another unpickler is given all that the first
        had read before, and something in place of what the failed one would have added.
        """
        before = _remembered(self._body[:start])
        added = _remembered(self._body[start:end])
        known: Any = self._unpickler.memo.copy()
        again = bytearray(b"\x80\x05")
        for number in range(before + added):
            # BININT, BINPERSID, MEMOIZE, POP
            again += b"J" + number.to_bytes(4, "little") + b"Q\x940"
        again += b"N."
        self._stream = io.BytesIO(bytes(again) + bytes(self._body[end:]))
        self._unpickler = _Unpickler(self._stream)
        self._unpickler.remembered = {
            # Of what the failed one had made only that is whole which has no parts.
            n: value
            for n, value in known.items()
            if n < before or type(value) in (str, bytes)
        }
        self._unpickler.load()


def _remembered(pickles: memoryview) -> int:
    """Return how many values are remembered by who reads these."""
    import pickletools  # only a checkpoint of elsewhere, or one that was changed, needs it

    stream = io.BytesIO(pickles)
    count = 0
    try:
        while stream.tell() < len(pickles):
            count += sum(code.name == "MEMOIZE" for code, _, _ in pickletools.genops(stream))
    except Exception:
        refuse("the checkpoint is damaged")
    return count


def _shared_with_lost(values: Dict[str, Any]) -> List[List[str]]:
    """Leave out the names that share something with one that could not be read."""
    from bridge.guest.checkpoint_values import Finder

    lost = []
    finder = Finder(_Gone)
    for name in list(values):
        if finder.finds(values[name]):
            del values[name]
            lost.append([name, "it shares something with a name that could not be read"])
    return lost


def _unless_interrupted(error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt):
        raise error
