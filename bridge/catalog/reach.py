"""What of the servers a program can get at, where its text shows all of it. Pure.

Owns the one question that decides how much goes into a sandbox beside the program: does it name
what it uses, or could it also reach the rest? Ordinary programs write `mcp_github.create_issue(…)`;
they then need that tool and not the other five thousand, and none of what `runtime` knows. Whoever
looks around, by whatever means, gets everything. A program that hides its looking from this is no
danger: the tools that it does not find can still be called by name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

Reach = Mapping[str, frozenset[str] | None]
"""By server, the attributes that are taken of it; None for one that is used as a whole."""

_PLAIN_MODULES = frozenset(
    """
    __future__ abc array asyncio base64 binascii bisect calendar cmath collections colorsys
    contextlib copy csv dataclasses datetime decimal difflib email enum fractions functools glob
    gzip hashlib heapq hmac html io itertools json locale math matplotlib mimetypes numbers numpy os
    pandas pathlib pprint random re secrets shutil statistics string struct tempfile textwrap time
    typing unicodedata urllib uuid xml zipfile zlib zoneinfo
    """.split()  # noqa: SIM905 - as words they can be read
)
"""What imports nothing of the program's own, and gives nobody its names by itself."""

_REFLECTIVE = frozenset(
    """
    _getframe attrgetter builtins breakpoint compile cr_frame delattr dir eval exec f_back
    f_builtins f_globals f_locals gc get_type_hints getattr gi_frame ag_frame globals hasattr help
    importlib inspect locals methodcaller modules query setattr sys tb_frame vars
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Names and attributes by which a program gets at what it does not name."""

_HARMLESS = frozenset({"__name__", "__init__", "__file__", "__version__"})

_EVERYTHING = frozenset({"mcp", "mcp_servers"})

_OF_RUNTIME = frozenset({"MCPError", "Blob"})
"""What `runtime` has without looking anything up."""

_TELLTALES = ("__", "mcp", "runtime", "globals")
"""In a text: it may be a name to be looked up, or a format that looks inside."""


def reach(tree: ast.Module, aliases: Mapping[str, str]) -> Reach | None:
    """Return what the program can get at; None if only running it could tell.

    Args:
        aliases: Name and alias of each server that the program names.
    """
    reader = _Reader({f"mcp_{alias}": name for name, alias in aliases.items()})
    # Parents come before children, so what a name is part of is known when the name comes.
    if all(map(reader.plain, ast.walk(tree))):
        return {
            name: None if name in reader.whole else frozenset(taken)
            for name, taken in reader.taken.items()
        }
    return None


class _Reader:
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._owned: set[int] = set()
        self.taken: dict[str, set[str]] = {}
        self.whole: set[str] = set()

    def plain(self, node: ast.AST) -> bool:
        """Take note of a node; return whether it gives access to nothing but what it names."""
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Constant):
            text = node.value
            return not isinstance(text, str) or not any(part in text for part in _TELLTALES)
        if isinstance(node, ast.Import):
            return all(_plain_module(item.name) for item in node.names)
        if isinstance(node, ast.ImportFrom):
            return (
                not node.level
                and _plain_module(node.module or "")
                and all(_plain_word(item.name) for item in node.names)
            )
        if isinstance(node, ast.MatchClass):
            return all(map(_plain_word, node.kwd_attrs))
        return True

    def _name(self, node: ast.Name) -> bool:
        name = self._names.get(node.id)
        if name is not None:
            self.taken.setdefault(name, set())
            if id(node) not in self._owned:
                self.whole.add(name)
            return True
        if node.id in _EVERYTHING:
            return False
        if node.id == "runtime":
            return id(node) in self._owned
        return _plain_word(node.id)

    def _attribute(self, node: ast.Attribute) -> bool:
        owner = node.value
        if isinstance(owner, ast.Name):
            name = self._names.get(owner.id)
            if name is not None and not node.attr.startswith("_"):
                self._owned.add(id(owner))
                self.taken.setdefault(name, set()).add(node.attr)
                # Whatever a tool is called: `query` is the name of many.
                return True
            if owner.id == "runtime" and node.attr in _OF_RUNTIME:
                self._owned.add(id(owner))
        return _plain_word(node.attr)


def _plain_module(dotted: str) -> bool:
    parts = dotted.split(".")
    return parts[0] in _PLAIN_MODULES and not _REFLECTIVE.intersection(parts)


def _plain_word(word: str) -> bool:
    return word not in _REFLECTIVE and (not word.startswith("__") or word in _HARMLESS)
