"""Which skills does a program name? Pure.

Reads `from skills import name`, `import skills` and what is taken of that. A program that picks
skills by other means asks for each when it runs.
"""

from __future__ import annotations

import ast

PACKAGE = "skills"  # What programs import skills from.


def named_skills(tree: ast.Module) -> tuple[str, ...]:
    """Return the names of the skills that a program names, in no particular order."""
    nodes = list(ast.walk(tree))
    found: dict[str, None] = {}
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for item in node.names:
                top, _, rest = item.name.partition(".")
                if top != PACKAGE:
                    continue
                if rest:
                    found[rest.partition(".")[0]] = None
                if not rest or not item.asname:
                    modules.add(item.asname or PACKAGE)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            top, _, rest = node.module.partition(".")
            if top != PACKAGE:
                continue
            if rest:
                found[rest.partition(".")[0]] = None
            else:
                found.update((item.name, None) for item in node.names if item.name != "*")
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
            and not node.attr.startswith("_")
        ):
            found[node.attr] = None
    return tuple(found)[:50]  # More are asked for when it runs.
