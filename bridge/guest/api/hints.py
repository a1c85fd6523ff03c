"""What to do instead, for the mistakes that programs make again and again.

Owns the wording, and what is looked at to choose it: an exception, and the working directory's
names. Imported with the first exception that is reported.
"""

from __future__ import annotations

import errno
import os
import sys

from bridge.guest.api.values import Result, listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, List

_IS_LIST = "this is a list: take an item first, as in x[0], or loop over it."
_FUNCTION = "inside a function this needs `async def`; at top level `await` works."
_SYNTAX = {
    "'return' outside function": "make the value the last expression instead of returning it.",
    "outside async function": _FUNCTION,
    "outside of an asynchronous function": _FUNCTION,
    "'yield' outside function": "a program is no generator; collect the values in a list.",
}
"""Errors that only compiling finds; the host explains the others."""

_MISUSES = {
    "BlobResult is not JSON": "this has a picture or other bytes: end with it, or `display` it.",
    "coroutine": "a call of a tool or an async function has its value only after `await`.",
    "async_generator": "give it a list: [await f(x) for x in xs].",
    "can't be used in 'await'": "only calls of tools and async functions are awaited; for several, "
    "asyncio.gather.",
    "list indices must be integers": _IS_LIST,
    "'list' object has no attribute": _IS_LIST,
    "string indices must be integers": "this is text: print it to see it; json.loads reads it if "
    "it is JSON. A loop over a dict gives its keys.",
    "'builtin_function_or_method' object": ".items, .keys, .values, .get, .pop, .copy are methods "
    'of dicts; a key is x["items"].',
    "'str' object has no attribute": "this is text: a tool that returns text has no fields; use "
    "the value itself.",
}
"""What is in the message of an error, and what helps."""

_OUTSIDE = ("/home/", "/Users/", "/root/", "/mnt/", "/srv/", "/opt/", "/data/", "~", "C:", "D:")
"""Where programs look for the user's files."""

_ELSEWHERE = ("/mnt/", "/content/", "/workspace/", "/home/sandbox/", "/data/", "/app/", "sandbox:")
"""Where other code tools have a run's files."""

_KEPT = "bridge://"
"""How addresses of what the bridge keeps begin."""

MAX_LOOKED_AT = 1000
"""Files of the working directory among which one that was looked for elsewhere may be."""

_WINDOWS = frozenset(("PyQt5", "PyQt6", "PySide2", "PySide6", "gi", "tkinter", "wx"))
"""What draws windows."""

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "fitz": "pymupdf",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules that are not called as the package that has them."""

_NO_NETWORK = frozenset((errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EAFNOSUPPORT))

_NO_LIBRARY = ": cannot open shared object file"
"""What the dynamic linker says of a library that is not there, behind its name."""

_ABOUT_RESULTS = ("Result", "string indices must be", "'str' object has no", "type: 'slice'")
"""In messages of errors that come of taking a result for what is in it."""

MAX_RESULTS = 3
MAX_KEYS_CHARS = 200
"""Results whose keys are listed, and characters for the keys of one."""

MAX_FRAMES = 200
MAX_CAUSES = 64
"""Of a traceback, and exceptions of a chain, that are looked at."""


def hint(error: BaseException, packages: bool = False) -> str:
    """Return a line to stand below a traceback; empty for nothing.

    Args:
        packages: Whether a run may ask for packages here.
    """
    told = _told(error, packages)
    return "\nHint: " + told if told else ""


def _told(error: BaseException, packages: bool) -> str:
    message = str(error)
    if isinstance(error, SyntaxError):
        return next((hint for part, hint in _SYNTAX.items() if part in message), "")
    if isinstance(error, ModuleNotFoundError):
        return _module_hint(str(error.name or "").partition(".")[0], packages)
    if isinstance(error, ImportError):
        return _library_hint(message)
    if isinstance(error, KeyError) and any(f.f_globals is vars(os) for f in _frames(error)[-1:]):
        return "no credentials and settings of the user's are inside; the servers have their own."
    if isinstance(error, OSError) and _is_network(error):
        return "the sandbox has no network; only tools of the servers reach outside."
    if isinstance(error, FileNotFoundError):
        return _file_hint(error)
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return (
            "only the working directory and /tmp can be written to; what is to come back, "
            "write to 'out/'."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG):
        return _space_hint()
    if isinstance(error, RuntimeError) and message == "no running event loop":
        return (
            "an event loop runs in programs that use `await` at top level: end this one "
            "with `await` of the task, or of asyncio.gather(...) for several."
        )
    if isinstance(error, (TypeError, AttributeError)):
        told = [hint for part, hint in _MISUSES.items() if part in message][:1]
        if any(part in message for part in _ABOUT_RESULTS):
            told += _keys(error)
        if not told and "bridge.guest.api.held_results" in sys.modules:
            return "in a plan a held call returns a placeholder, which can only be passed on."
        return " ".join(told)
    return ""


def _module_hint(name: str, packages: bool) -> str:
    """Return how to do without a module that there is not, or how to get it."""
    if name in _WINDOWS:
        return "there is no screen; leave out matplotlib.use(...): figures are shown without it."
    if name == "IPython":
        return "this is no notebook: `display(x)` is there without an import."
    package = _DISTRIBUTIONS.get(name, name)
    if packages:
        asked = 'run_python(packages=["%s"])' % package
        return "it is not installed; a run may ask for packages: %s." % asked
    return (
        "nothing can be installed here; use the standard library or a server's tool. The user can "
        "add it to the image: `mcp-code-bridge image build --package %s`." % package
    )


def _library_hint(text: str) -> str:
    """Return what to do about a compiled package that wants a library of the system's."""
    before, missing, _ = text[-4000:].partition(_NO_LIBRARY)
    library = before.split()[-1] if missing and before.split() else ""
    if not library.startswith("lib"):
        return ""
    return (
        "the sandbox's image has no %s, which this package needs. Do without it, or let "
        "the user set MCP_BRIDGE_IMAGE to one that has it, such as python:3.13-slim, or make the "
        "bridge's anew (`mcp-code-bridge image build`)." % library[:60]
    )


def _space_hint() -> str:
    """Return how much fits where programs write, and what sets that."""
    told = []
    for place in (".", "/tmp"):
        seen = os.statvfs(place)
        told.append("%s holds %d MiB" % (place, seen.f_blocks * seen.f_frsize >> 20))
    return (
        "%s. Remove files that are not needed, or work in parts. The user can set more with "
        "`memory` (MCP_BRIDGE_MEMORY), which the files are part of." % " and ".join(told)
    )


def _file_hint(error: FileNotFoundError) -> str:
    """Return where files are: under another path, or with the machine outside only."""
    path = error.filename
    if not isinstance(path, str) or not path:
        return ""
    if path.startswith(_KEPT):
        return "that is an address and no path: " + _kept_hint(path)
    found = _namesake(path)
    if found:
        return "there is %r, in the working directory." % found
    if path.startswith("/out/"):
        return "out/ is in the working directory: %r." % path[1:]
    if path.startswith(_ELSEWHERE):
        return (
            "files of the run are in the working directory, such as 'data.csv', and what "
            "is to come back is written to 'out/'. The sandbox has none of the user's files; a "
            "server's tool can read them."
        )
    if path.startswith(_OUTSIDE):
        return "the sandbox has none of the user's files; a server's tool can read them."
    return ""


def _kept_hint(address: str) -> str:
    """Return how a program gets what the bridge keeps."""
    whole = address.partition("?")[0]
    given = 'run_python(files=[{"name": "kept", "uri": "%s"}]) puts it beside the program' % whole
    if not address.startswith(_KEPT + "runs/"):
        return given + "."
    return 'await runtime.read_output("%s"), or %s.' % (whole, given)


def _namesake(path: str) -> str:
    """Return the path in the working directory of a file of the same name; empty for none."""
    wanted, looked = os.path.basename(path).lower(), 0
    if not wanted:
        return ""
    for folder, folders, names in os.walk("."):
        folders.sort()
        for name in sorted(names):
            looked += 1
            if name.lower() == wanted:
                found = os.path.relpath(os.path.join(folder, name))
                return "" if found == os.path.normpath(path) else found
        if looked > MAX_LOOKED_AT:
            break
    return ""


def _frames(error: BaseException) -> List[FrameType]:
    """Return the frames that an error passed through, the failing one last."""
    import traceback

    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)][:MAX_FRAMES]


def _keys(error: BaseException) -> List[str]:
    """Return which keys the results have that the failing code names."""
    for frame in reversed(_frames(error)):
        names = dict.fromkeys((*frame.f_code.co_varnames, *frame.f_code.co_names))
        own = frame.f_code.co_filename.startswith("<")
        told = [
            "%s has the keys: %s."
            % (name if own else "The result", listed(map(repr, value))[:MAX_KEYS_CHARS])
            for name, value in ((name, frame.f_locals.get(name)) for name in names)
            if isinstance(value, Result)
        ]
        if told:
            return told[:MAX_RESULTS]
    return []


def _is_network(error: Any) -> bool:
    """Whether an error, or what it wraps as `urllib` does, comes from there being no network."""
    import socket

    for _ in range(MAX_CAUSES):
        if isinstance(error, socket.gaierror) or getattr(error, "errno", None) in _NO_NETWORK:
            return True
        cause = getattr(error, "__cause__", None) or getattr(error, "__context__", None)
        error = cause or getattr(error, "reason", None)
    return False
