"""Why a value cannot be kept, in words for the program's author."""

from __future__ import annotations

import sys
import types

from bridge.guest.checkpoint_code import NotKept
from bridge.guest.placeholders import Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

MAX_REASON_CHARS = 300

MAX_LOST = 200
"""Losses told of; the rest is counted."""

_BY_TYPE: Tuple[Tuple[Any, str], ...] = (
    (types.GeneratorType, "a generator"),
    (types.CoroutineType, "a coroutine"),
    (types.AsyncGeneratorType, "an asynchronous generator"),
    (types.FrameType, "a frame of the interpreter"),
    (types.TracebackType, "a traceback"),
    (types.CodeType, "compiled code"),
    (memoryview, "a memoryview"),
    (Unknown, "a placeholder of a plan"),
    (type({}.keys()), "a view of a dict"),
    (type({}.values()), "a view of a dict"),
    (type({}.items()), "a view of a dict"),
)

_BY_NAME = (
    ("io", "IOBase", "an open file"),
    ("socket", "socket", "a socket"),
    ("_socket", "socket", "a socket"),
    ("ssl", "SSLContext", "an SSL context"),
    ("sqlite3", "Connection", "a database connection"),
    ("sqlite3", "Cursor", "a database cursor"),
    ("threading", "Thread", "a thread"),
    ("threading", "Event", "an event that threads wait for"),
    ("threading", "Condition", "a lock"),
    ("threading", "Semaphore", "a lock"),
    ("threading", "local", "data of a thread"),
    ("_thread", "LockType", "a lock"),
    ("_thread", "RLock", "a lock"),
    ("asyncio", "Future", "a task"),
    ("asyncio", "Task", "a task"),
    ("asyncio", "Lock", "a lock"),
    ("asyncio", "Event", "an event that tasks wait for"),
    ("asyncio", "Queue", "a queue that tasks wait for"),
    ("asyncio", "AbstractEventLoop", "an event loop"),
    ("concurrent.futures", "Future", "a task"),
    ("concurrent.futures", "Executor", "a pool of workers"),
    ("queue", "Queue", "a queue that threads wait for"),
    ("queue", "SimpleQueue", "a queue that threads wait for"),
    ("subprocess", "Popen", "a process"),
    ("tempfile", "TemporaryDirectory", "a temporary directory"),
    ("contextvars", "Context", "a context"),
    ("contextvars", "ContextVar", "a context variable"),
    ("weakref", "ref", "a weak reference"),
    ("re", "Match", "a match of a regular expression"),
)
"""Looked up only among modules that are loaded: nobody has one of these otherwise."""


def what_it_is(value: Any) -> Optional[str]:
    """Return what a value is that is never kept; None for all others."""
    kind = type(value)
    for base, words in _BY_TYPE:
        if issubclass(kind, base):
            return words
    for module, name, words in _BY_NAME:
        known: Any = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type) and issubclass(kind, known):
            return None if _in_memory(kind) else words
    if "__next__" in dir(kind) and kind.__module__ in ("builtins", "itertools", "_csv", "re"):
        return "an iterator (%s)" % kind.__name__
    return None


def _in_memory(kind: Any) -> bool:
    io = sys.modules["io"]
    return kind in (io.StringIO, io.BytesIO)


def why(error: BaseException) -> str:
    """Return why keeping a value, or having it back, did not work."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "there is not enough memory to write it down"
    try:
        text = " ".join(str(error).split())
    except BaseException:
        text = ""
    if isinstance(error, NotKept):
        return text[:MAX_REASON_CHARS]
    kind = _quoted_type(text) if isinstance(error, TypeError) else None
    if kind is not None:
        return "it is or holds %s, which Python cannot write down" % kind
    if not text:
        return "keeping it raised %s" % type(error).__name__
    return ("keeping it raised %s: %s" % (type(error).__name__, text))[:MAX_REASON_CHARS]


def _quoted_type(text: str) -> Optional[str]:
    for before in ("cannot pickle '", "can't pickle "):
        if text.startswith(before):
            return "a " + text[len(before) :].replace("object", "").strip(" '")
    return None


def pair(name: str, reason: str) -> "Tuple[str, str]":
    """Return a name and a reason, both of a length that can be shown."""
    return name[:MAX_REASON_CHARS], reason[:MAX_REASON_CHARS]
