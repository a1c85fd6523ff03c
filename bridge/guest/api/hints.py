"""Suggests a fix for common mistakes in programs; imported when an exception is reported."""

from __future__ import annotations

import errno
import os
import re
import sys
from fnmatch import fnmatchcase
from itertools import islice

from bridge.guest.api.values import Result, list_names
from bridge.guest.protocol import distributions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, List, Sequence

_IS_LIST = "this is the list itself: loop over it, or take an item, as in x[0]."
_FUNCTION = "inside a function this needs `async def`; at top level `await` works."
_SYNTAX = {
    "'return' outside function": "make the value the last expression instead of returning it.",
    "outside async function": _FUNCTION,
    "outside of an asynchronous function": _FUNCTION,
    "'yield' outside function": "a program is no generator; collect the values in a list.",
}
"""Errors of the compiler; the host explains the others."""

_FAILURES = {
    os.strerror(errno.EROFS): "only the working directory and /tmp can be written to; what is to "
    "come back, write to 'out/'.",
    "no running event loop": "end the program with `await` of the task, or of asyncio.gather(...) "
    "for several.",
}
_MISUSES = {
    "BlobResult is not JSON": "this has a picture or other bytes: end with it, or `display` it.",
    "Passing coroutines is forbidden": "await asyncio.gather(*calls) gives the values; wait takes "
    "tasks: [asyncio.create_task(call) for call in calls].",
    "coroutine": "a call of a tool has its value only after `await`, or await asyncio.gather(...).",
    "async_generator": "loop over it with `async for`; a list is [await f(x) for x in xs].",
    "unhashable type: 'DictResult'": "a key is a field of it; gather takes calls without `await`.",
    "can't be used in 'await'": "only calls of tools and async functions are awaited; for several, "
    "asyncio.gather. asyncio.run(...) itself waits.",
    "list indices must be integers": _IS_LIST,
    "'list' object has no attribute": _IS_LIST,
    "string indices must be integers": "this is text: print it to see it; json.loads reads it if "
    "it is JSON. A loop over a dict gives its keys.",
    "'builtin_function_or_method' object": ".items, .keys, .values, .get, .pop, .copy are methods "
    'of dicts; a key is x["items"].',
    "'str' object has no attribute": "this is text: a tool that returns text has no fields; use "
    "the value itself.",
}

# Where programs look for the user's files, and where other code tools have a run's files.
_OUTSIDE = ("/home/", "/Users/", "/root/", "/mnt/", "/srv/", "/opt/", "/data/", "~", "C:", "D:")
_ELSEWHERE = ("/mnt/", "/content/", "/workspace/", "/home/sandbox/", "/data/", "/app/", "sandbox:")

_KEPT, _RUNS = "bridge://", "bridge://runs/"
_WINDOWS = frozenset(("PyQt5", "PyQt6", "PySide2", "PySide6", "gi", "tkinter", "wx"))

_NEEDED = re.compile(
    r"pip3? install (?:-\S+ )*['\"`]?([\w.-]*\w)|issing optional dependency '([\w.-]+)'"
    r"|newer of '([\w.-]+)'|\binstall (?:the )?['\"`]?(?!or\b|it\b|a\b)([\w.-]*\w)"
    r"|suitable version of ([\w.-]+)|requires (?:the )?['\"`]?(?!version\b)([\w-]+)"
    r"|([\w-]+)['\"`]? (?:is required|must be installed|is not installed|not found, please)"
)
"""Matches the package that a library's error message asks for."""

_NO_NETWORK = frozenset((errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EAFNOSUPPORT))

_SPACE = (
    "the working directory holds %d MiB, and /tmp %d. Remove files that are not needed, or work in "
    "parts. The user can set more with `memory` (MCP_BRIDGE_MEMORY), which the files are part of."
)

_NO_LIBRARY = ": cannot open shared object file"  # Follows the library's name.

_ABOUT_RESULTS = ("Result", "string indices must be", "'str' object has no", "type: 'slice'")
"""Parts of error messages that occur when a program uses a result as its content."""


def hint(error: BaseException, packages: Sequence[str] = ()) -> str:
    """Return a suggestion, or an empty text. `packages` are those that a run may request."""
    message = str(error)
    if isinstance(error, SyntaxError):
        return next((hint for part, hint in _SYNTAX.items() if part in message), "")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _module_hint(error.name.partition(".")[0], packages)
    command = getattr(error, "cmd", None)
    if isinstance(error, (ImportError, OSError)) and _NO_LIBRARY in message:
        return _library_hint(message, error)
    if isinstance(error, ImportError) or "accessor requires" in message or command:
        # A failed process has a command, such as `python -m pip install NAME`.
        parts = command if isinstance(command, (list, tuple)) else [command]
        text = " ".join(map(str, parts)) if command else message
        needed = _NEEDED.search(text) if not command or "pip" in text else None
        if needed:
            return _module_hint(next(filter(None, needed.groups())), packages)
    if isinstance(error, KeyError) and any(f.f_globals is vars(os) for f in _frames(error)[-1:]):
        return "no credentials and settings of the user's are inside; the servers have their own."
    if isinstance(error, OSError) and _is_network(error):
        return "the sandbox has no network; only tools of the servers reach outside."
    if isinstance(error, FileNotFoundError):
        return _file_hint(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG):
        sizes = [seen.f_blocks * seen.f_frsize >> 20 for seen in map(os.statvfs, (".", "/tmp"))]
        return _SPACE % (*sizes,)
    if isinstance(error, (OSError, RuntimeError)):
        return next((hint for part, hint in _FAILURES.items() if part in message), "")
    if isinstance(error, (TypeError, AttributeError)):
        advice = [hint for part, hint in _MISUSES.items() if part in message][:1]
        if any(part in message for part in _ABOUT_RESULTS):
            advice += _keys(error)
        if not advice and "bridge.guest.api.held_results" in sys.modules:
            return "in a plan a held call returns a placeholder, which can only be passed on."
        return " ".join(advice)
    return ""


def _module_hint(name: str, packages: Sequence[str]) -> str:
    if name in _WINDOWS:
        return "there is no screen; leave out matplotlib.use(...): figures display without it."
    if name == "IPython":
        return "this is not a notebook: `display(x)` needs no import."
    if name == "runtime" or name.startswith("mcp"):
        return "a program needs no client: call tools as `await mcp_<server>.<tool>(...)`."
    meant = distributions.module(name)
    if meant:
        return "the package %s is imported as %s." % (distributions.normalize_name(name), meant)
    package = distributions.distribution(name)
    if any(fnmatchcase(distributions.normalize_name(package), entry) for entry in packages):
        asked = 'run_python(packages=["%s"])' % package
        return "it is not installed; a run may ask for packages: %s." % asked
    return (
        "nothing can be installed here; use the standard library or a server's tool. The user can "
        "add it to the image: `mcp-code-bridge image build --package %s`." % package
    )


def _library_hint(text: str, error: BaseException) -> str:
    names = [str(f.f_globals.get("__name__")).partition(".")[0] for f in _frames(error)]
    for lighter in {*map(distributions.distribution, names)} & {*distributions.LIGHTER.values()}:
        return 'ask for packages=["%s"] instead: it needs no libraries of a screen.' % lighter
    before, missing, _ = text[-4000:].partition(_NO_LIBRARY)
    library = before.split()[-1] if missing and before.split() else ""
    if not library.startswith("lib"):
        return ""
    return (
        "the sandbox's image has no %s, which this package needs. Use another package, or "
        "ask the user to set MCP_BRIDGE_IMAGE to an image with it, such as python:3.13-slim, or "
        "to rebuild the bridge's image (`mcp-code-bridge image build`)." % library[:60]
    )


def _file_hint(error: FileNotFoundError) -> str:
    path = error.filename
    if not isinstance(path, str) or not path:
        return ""
    if path.startswith(_KEPT):
        whole = path.partition("?")[0]
        given = 'run_python(files=[{"name": "kept", "uri": "%s"}])' % whole
        output = 'await runtime.read_output("%s"), or ' % whole if _RUNS in path else ""
        words = "that is an address, not a path: %s%s writes it next to the program."
        return words % (output, given)
    found = _namesake(path)
    if found:
        return "%r exists in the working directory." % found
    if path.startswith("/out/"):
        return "out/ is in the working directory: %r." % path[1:]
    outside = "the sandbox has none of the user's files; a server's tool can read them."
    if path.startswith(_ELSEWHERE):
        return "the run's files are in its directory, results are written to 'out/'; " + outside
    return outside if path.startswith(_OUTSIDE) else ""


def _namesake(path: str) -> str:
    wanted = os.path.basename(path).lower()
    files = (os.path.join(top, name) for top, _, names in os.walk(".") for name in sorted(names))
    for file in islice(files if wanted else (), 1000):
        if os.path.basename(file).lower() == wanted:
            return "" if os.path.normpath(file) == os.path.normpath(path) else file[2:]
    return ""


def _frames(error: BaseException) -> List[FrameType]:
    import traceback

    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)][:200]


def _keys(error: BaseException) -> List[str]:
    for frame in reversed(_frames(error)):
        names = dict.fromkeys((*frame.f_code.co_varnames, *frame.f_code.co_names))
        own = frame.f_code.co_filename.startswith("<")
        keys = [
            "%s has the keys: %s."
            % (name if own else "The result", list_names(map(repr, value))[:200])
            for name, value in ((name, frame.f_locals.get(name)) for name in names)
            if isinstance(value, Result)
        ]
        if keys:
            return keys[:3]
    return []


def _is_network(error: Any) -> bool:
    import socket

    for _ in range(64):
        if isinstance(error, socket.gaierror) or getattr(error, "errno", None) in _NO_NETWORK:
            return True
        cause = getattr(error, "__cause__", None) or getattr(error, "__context__", None)
        error = cause or getattr(error, "reason", None)
    return False
