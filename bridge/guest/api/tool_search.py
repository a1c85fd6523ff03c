"""Tools of the loaded servers, found and documented without asking the host.

Owns the simple search that needs nothing but the run's own data; the host's is better, and knows
all servers. Few programs use this, so it is imported when they do.
"""

from __future__ import annotations

import inspect
import re
import sys

from bridge.guest.api.proxies import Server, ServerModule, signature_text
from bridge.guest.api.values import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple


def search(
    servers: Iterable[Mapping[str, Any]], query: str
) -> List[Tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return servers and tools that fit, best match first; all of them for a query of no words."""
    words = re.findall(r"\w+", query.lower().replace("_", " "))
    scored: List[Tuple[int, int, Mapping[str, Any], Mapping[str, Any]]] = []
    for server in servers:
        for tool in server.get("tools") or ():
            score = _score(words, server, tool)
            if score or not words:
                scored.append((-score, len(scored), server, tool))
    scored.sort(key=lambda entry: entry[:2])
    return [(server, tool) for _, _, server, tool in scored]


def sentence(tool: Mapping[str, Any]) -> str:
    """Return the beginning of what a tool's server says of it, as one line."""
    return " ".join(str(tool.get("description") or "").split()).split(". ")[0][:120]


def line(server: Mapping[str, Any], tool: Mapping[str, Any]) -> Dict[str, Any]:
    """Return how one tool of several is called, and what it does in a sentence."""
    return Result(signature=signature_text(server, tool), description=sentence(tool))


def docs(server: Mapping[str, Any], tool: Mapping[str, Any], detail: str) -> Dict[str, Any]:
    """Return the documentation of one tool: "summary" or "full"."""
    entry = Result(
        server=server["name"],
        serverAlias=server["alias"],
        tool=tool["name"],
        toolAlias=tool["alias"],
        description=tool.get("description") or "",
        signature=signature_text(server, tool),
    )
    if detail == "full":
        entry["inputSchema"] = tool.get("inputSchema") or {}
        if tool.get("outputSchema") is not None:
            entry["outputSchema"] = tool["outputSchema"]
    return entry


def _score(words: Sequence[str], server: Mapping[str, Any], tool: Mapping[str, Any]) -> int:
    """Return how well a tool fits: most for words in its name, and for whole ones."""
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    places = (
        (8, "%s %s" % (tool["name"], tool["alias"])),
        (4, "%s %s" % (server["name"], server.get("description") or "")),
        (2, str(tool.get("description") or "")),
        (1, " ".join(properties) if isinstance(properties, dict) else ""),
    )
    score = 0
    for worth, text in places:
        text = text.lower().replace("_", " ").replace("-", " ")
        whole = re.findall(r"\w+", text)
        score += worth * sum((word in text) + (word in whole) for word in words)
    return score


# --- `help()` of what the bridge puts into a program: a line for each thing it has ----------------


def show_help(*things: Any) -> None:
    """Print what there is to know of a server, of `runtime` or, as `help` does, of anything."""
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
        told = "  # " + sentence(tool) if sentence(tool) else ""
        yield "  %s%s" % (signature_text(server, tool)[len(head) :], told)
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
        told = str(inspect.Signature(plain))
        yield "%s%s%s" % ("await " if inspect.iscoroutinefunction(helper) else "", name, told)
