"""What `help()` prints of the bridge's objects in a program: a line for each member."""

from __future__ import annotations

import inspect
import sys

from bridge.guest.api.proxies import Server, ServerModule, signature_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping


def sentence(tool: Mapping[str, Any]) -> str:
    """Return the first sentence of a tool's description, as one line."""
    text = " ".join(str(tool.get("description") or "").split())
    return text.split(". ")[0][:120]


def show_help(*things: Any) -> None:
    """Print help on a server or `runtime`; on anything else, do what `help` does."""
    if len(things) == 1 and isinstance(things[0], (Server, ServerModule)):
        print("\n".join(_server(things[0]._tools.server)))
    elif len(things) == 1 and things[0] is sys.modules.get("mcp.runtime"):
        print("\n".join(_runtime(things[0])))
    else:
        import pydoc

        pydoc.help(*things)


def _server(server: Mapping[str, Any]) -> Iterator[str]:
    about = str(server.get("description") or "")
    yield "mcp_%s%s" % (server["alias"], ": " + about if about else "")
    head = "mcp_%s" % server["alias"]
    for tool in server.get("tools") or ():
        comment = "  # " + sentence(tool) if sentence(tool) else ""
        yield "  %s%s" % (signature_text(server, tool)[len(head) :], comment)
    yield "Each call needs `await`. All of one tool: help(%s.name)" % head


def _runtime(module: Any) -> Iterator[str]:
    yield "runtime; for more: help(runtime.call_tool)"
    for name in module.__all__:
        helper = getattr(module, name)
        if isinstance(helper, type):
            yield "%s: server, tool, message, data" % name
            continue
        signature = inspect.signature(helper)
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        shown = str(inspect.Signature(plain))
        yield "%s%s%s" % ("await " if inspect.iscoroutinefunction(helper) else "", name, shown)
