"""One call's arguments, held against what the tool or the helper takes."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.catalog.checking.report import SIGNATURE, Report, nearest, quoted
from bridge.catalog.checking.signatures import Arguments, literal_problem
from bridge.catalog.checking.tables import Helper
from bridge.model import Severity

BY_NAME = frozenset({"call_tool", "call_tool_raw"})
"""Helpers that take a tool's own arguments as a dict."""

SECONDS_FOR_VALUES = 0.2
"""For checking what one program writes out. Only hostile schemas take so long; the guest checks
all values again, in its own time."""


@dataclass
class Patience:
    """How many seconds are left."""

    left: float = SECONDS_FOR_VALUES


class Binding:
    """Binds one call's arguments and reports what does not fit."""

    def __init__(
        self,
        report: Report,
        severity: Callable[[], Severity],
        label: str,
        signature: Callable[[], str],
        values: Patience,
    ) -> None:
        self._report = report
        self._severity = severity
        self._label = label
        self._signature = signature
        self._values = values

    def tool(self, node: ast.Call, accepted: Arguments) -> None:
        """Bind a tool's arguments."""
        if self._report.exhausted:
            return
        starred = any(isinstance(item, ast.Starred) for item in node.args)
        unpacked = any(keyword.arg is None for keyword in node.keywords)
        if self._dict_for_all(node, accepted):
            return
        if not starred and len(node.args) > len(accepted.all):
            if not accepted.all:
                problem = "takes no positional arguments; give its arguments by name"
            else:
                count = len(accepted.all)
                problem = f"takes at most {count} positional arguments; {len(node.args)} are given"
            self._say(node, "too-many-arguments", problem)
            return
        given: set[str] = set()
        unknown: list[ast.keyword] = []
        if not starred:
            for item, argument in zip(node.args, accepted.all, strict=False):
                given.add(argument.name)
                self._literal(item, accepted, argument.name)
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            found = accepted.find(keyword.arg)
            if found is None:
                if not accepted.open:
                    unknown.append(keyword)
            elif found.name in given:
                self._say(keyword, "repeated-argument", f"is given {quoted(found.alias)} twice")
            else:
                given.add(found.name)
                self._literal(keyword.value, accepted, found.name)
        missing = [a.alias for a in accepted.all if a.required and a.name not in given]
        if starred or unpacked:
            missing = []
        free = [a.alias for a in accepted.all if a.name not in given]
        for keyword in unknown:
            missing = self._unknown(keyword, free, missing)
        self._missing(node, missing)

    def helper(self, node: ast.Call, helper: Helper) -> None:
        """Bind a helper's arguments."""
        starred = any(isinstance(item, ast.Starred) for item in node.args)
        unpacked = any(keyword.arg is None for keyword in node.keywords)
        names = [*helper.positional, *helper.keywords]
        if not starred and len(node.args) > len(helper.positional):
            count = len(helper.positional)
            problem = f"takes at most {count} positional arguments; {len(node.args)} are given"
            self._say(node, "too-many-arguments", problem)
            return
        given = set(helper.positional[: len(node.args)])
        for keyword in node.keywords:
            if keyword.arg is None:
                continue
            if keyword.arg not in names and not helper.open:
                if helper.name == "get_prompt":
                    problem = (
                        f"has no parameter {quoted(keyword.arg)}: the prompt's own arguments go "
                        f"into a dict, `get_prompt(..., {{{keyword.arg[:64]!r}: ...}})`"
                    )
                    self._say(keyword, "unknown-argument", problem)
                    return
                if helper.name in BY_NAME:
                    problem = (
                        f"has no parameter {quoted(keyword.arg)}: the tool's own arguments go into "
                        f"a dict, `runtime.{helper.name}(server, tool, "
                        f"{{{keyword.arg[:64]!r}: ...}})`"
                    )
                    self._say(keyword, "unknown-argument", problem)
                    return
                self._unknown(keyword, names, [])
            given.add(keyword.arg)
        if not starred and not unpacked:
            self._missing(node, [n for n in helper.positional[: helper.required] if n not in given])

    def _dict_for_all(self, node: ast.Call, accepted: Arguments) -> bool:
        """`tool({"a": 1})`: report all arguments given as one dict; return whether they were."""
        if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.Dict):
            return False
        keys = [k.value for k in node.args[0].keys if isinstance(k, ast.Constant)]
        if not keys or len(keys) != len(node.args[0].keys) or not accepted.all:
            return False
        if not all(isinstance(key, str) and accepted.find(key) is not None for key in keys):
            return False
        if literal_problem(node.args[0], accepted.all[0], accepted.root) is None:
            return False
        problem = "takes its arguments by name, not as one dict: put `**` before the dict"
        self._say(node, "arguments-in-dict", problem)
        return True

    def _literal(self, node: ast.expr, accepted: Arguments, name: str) -> None:
        argument = accepted.find(name)
        if isinstance(node, ast.Starred) or argument is None or self._values.left <= 0:
            return
        started = time.perf_counter()
        found = literal_problem(node, argument, accepted.root)
        self._values.left -= time.perf_counter() - started
        if found is not None:
            self._say(found[0], "wrong-value", f"is given a value that does not fit: {found[1]}")

    def _unknown(self, keyword: ast.keyword, names: Sequence[str], missing: list[str]) -> list[str]:
        """Report a name that is not taken; return what is missing beside the one it stands for."""
        if self._report.exhausted:
            return missing
        name = str(keyword.arg)
        near = nearest(name, names) or (missing[0] if len(missing) == 1 else "")
        hint = f"; did you mean {quoted(near)}?" if near else ""
        self._say(keyword, "unknown-argument", f"has no parameter {quoted(name)}{hint}")
        return [other for other in missing if other != near]

    def _missing(self, node: ast.AST, names: Sequence[str]) -> None:
        if names:
            what = "argument" if len(names) == 1 else "arguments"
            shown = ", ".join(quoted(name) for name in names[:12])
            self._say(node, "missing-argument", f"is missing the required {what} {shown}")

    def _say(self, node: ast.AST, rule: str, problem: str) -> None:
        if self._report.exhausted:
            return
        end = "" if problem.endswith("?") else "."
        message = f"{quoted(self._label)} {problem}{end}{SIGNATURE}`{self._signature()}`"
        self._report.add(node, rule, self._severity(), message)
