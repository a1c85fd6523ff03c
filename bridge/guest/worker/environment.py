"""Prepares a program's environment (input files, skills, display) and concludes its run.

Each part imports its modules only when a run needs it, which saves the other runs a millisecond.
"""

from __future__ import annotations

import binascii
import builtins
import os
import sys
from contextlib import suppress

from bridge.guest.api import library, tracebacks
from bridge.guest.api.proxies import Server, ServerModule, signature_text
from bridge.guest.imports import OnImport
from bridge.guest.processes import PLACED_NOTICE, file_version
from bridge.guest.protocol.json_text import encoder
from bridge.guest.protocol.wire import Done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

    from bridge.guest.api.client import ChannelClient
    from bridge.guest.api.display import Display
    from bridge.guest.protocol.wire import Run

compact = encoder()

_display: Any = None  # The client and the run's limits; the `Display` once something was shown.


def arrange(run: Run, client: ChannelClient, namespace: Dict[str, Any]) -> Optional[Done]:
    global _display, _workspace
    _display = (client, run.limits)
    # As builtins, so that the program's modules have them and a session does not save them.
    builtins.display = display  # type: ignore[attr-defined]
    builtins.help = show_help  # type: ignore[assignment]
    for kind, servers in (("AVAILABLE", run.servers), ("DISCOVERED", run.discovered)):
        # Names of servers hold any character: as JSON text.
        names = compact([server["name"] for server in servers or run.servers])
        os.environ["MCP_%s_SERVERS" % kind] = names
    if run.skills or "skill" in run.code or "bridge.guest.api.skill_modules" in sys.modules:
        from bridge.guest.api.skill_modules import finder

        finder.register(run, client, namespace)
    if "show" in run.code:
        redirect_windows()
    if "IPython" in run.code:
        from bridge.guest.api.ipython import install

        install(sys.modules)
    tracebacks.packages_offered = run.packages
    # For Python processes that the program starts: joblib's pools, `python -m pytest`.
    paths = [path for path in sys.path if path in run.paths or path.endswith("-packages")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    _workspace = _workspace or os.getcwd()
    with suppress(OSError):  # It exists, as in a session, or the directory is read-only.
        os.mkdir(os.path.join(_workspace, "out"))
    return write_files(run.files, _workspace)


def conclude(client: ChannelClient) -> None:
    library.conclude(client)
    if "matplotlib.pyplot" in sys.modules:
        current_display().show_figures(at_end=True)


_workspace = ""  # The working directory when the first program started.


def note_files(client: ChannelClient) -> None:
    """Report the working directory's files to the supervisor: later files are the program's."""
    paths = {name: os.path.join(_workspace, name) for name in os.listdir(_workspace)}
    files = {name: file_version(os.lstat(path)) for name, path in paths.items() if name != "out"}
    if files:
        line = compact(files).encode("utf-8", "surrogateescape")
        client.write(PLACED_NOTICE + b'"files":' + line + b"}\n")


def display(*values: Any) -> None:
    """Show pictures, figures, data frames and the like to the caller of this run."""
    current_display().show(*values)


def current_display() -> Display:
    global _display
    if isinstance(_display, tuple):
        from bridge.guest.api.display import Display

        _display = Display(*_display)
    shown: Display = _display
    return shown


def write_files(files: List[Dict[str, str]], root: str = ".") -> Optional[Done]:
    """Write input files, and empty `files`; return the run's outcome if one cannot be written."""
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
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if os.path.islink(path):
        # Replace a link, not its target.
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(binascii.a2b_base64(data))


_redirected = False


def redirect_windows() -> None:
    """Redirect libraries' `show` to `display`, in modules imported now or later."""
    global _redirected
    if _redirected:
        return
    _redirected = True

    def patch(module: str, kind: str) -> None:
        if hasattr(sys.modules[module], kind):
            getattr(sys.modules[module], kind).show = lambda self, *args, **options: display(self)

    OnImport("PIL.Image", lambda: patch("PIL.Image", "Image"))
    OnImport("plotly.basedatatypes", lambda: patch("plotly.basedatatypes", "BaseFigure"))
    register = ("run_python", None, Browser())
    OnImport("webbrowser", lambda: sys.modules["webbrowser"].register(*register, preferred=True))


class Browser:
    """Replaces the browser: displays local files, opens nothing else."""

    name = "run_python"

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(url)
        if parts.scheme not in ("file", "") or parts.netloc not in ("localhost", ""):
            return False
        try:
            with open(unquote(parts.path), encoding="utf-8", errors="replace") as file:
                page = file.read(2 * 1024 * 1024)
        except OSError:
            return False
        display(type("Page", (), {"_repr_html_": lambda self: page})())
        return True

    open_new = open_new_tab = open


def show_help(*things: Any) -> None:
    """Print help on a server, on `runtime` or on any other object."""
    if len(things) == 1 and isinstance(things[0], (Server, ServerModule)):
        _print_server_help(things[0]._tools.server)
    elif len(things) == 1 and things[0] is sys.modules.get("mcp.runtime"):
        _print_runtime_help(things[0])
    else:
        import pydoc

        pydoc.help(*things)


def _print_server_help(server: Mapping[str, Any]) -> None:
    about = str(server.get("description") or "")
    head = "mcp_%s" % server["alias"]
    print(head + (": " + about if about else ""))
    for tool in server.get("tools") or ():
        text = " ".join(str(tool.get("description") or "").split()).split(". ")[0][:120]
        comment = "  # " + text if text else ""
        print("  %s%s" % (signature_text(server, tool)[len(head) :], comment))
    print("Each call needs `await`. All of one tool: help(%s.name)" % head)


def _print_runtime_help(module: Any) -> None:
    import inspect  # slow, and few programs print help

    print("runtime; for more: help(runtime.call_tool)")
    for name in module.__all__:
        helper = getattr(module, name)
        if isinstance(helper, type):
            print("%s: server, tool, message, data" % name)
            continue
        signature = inspect.signature(helper)
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        before = "await " if inspect.iscoroutinefunction(helper) else ""
        print("%s%s%s" % (before, name, inspect.Signature(plain)))
