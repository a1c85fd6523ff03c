"""What of a call's arguments is written out in a program. Pure.

Owns the values that reading alone tells, as the guest would convert them, and the names of those
that it does not.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.catalog.checking.places import Place
from bridge.catalog.checking.signatures import Arguments, written_out
from bridge.catalog.checking.survey import Survey
from bridge.guest.validation import convert, problem
from bridge.model import Json
from bridge.text import valid_text


@dataclass(kw_only=True)
class Given:
    """The arguments of one call.

    Attributes:
        unseen: Names of those whose values do not show.
        open: Whether there may be others of any name.
    """

    seen: dict[str, Json] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    open: bool = False


class GivenReader:
    """Reads arguments of one program's calls."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def bound(self, node: ast.Call, accepted: Arguments, place: Place) -> Given:
        """Return the arguments of a tool's call."""
        given = Given(open=any(isinstance(item, ast.Starred) for item in node.args))
        if not given.open:
            for item, argument in zip(node.args, accepted.all, strict=False):
                self.take(given, argument.name, item, accepted, place)
        self.by_keyword(given, node.keywords, accepted, place)
        return given

    def by_keyword(
        self,
        given: Given,
        keywords: Sequence[ast.keyword],
        accepted: Arguments | None,
        place: Place,
    ) -> None:
        """Take those that are given by name."""
        for keyword in keywords:
            if keyword.arg is not None:
                found = accepted.find(keyword.arg) if accepted is not None else None
                name = keyword.arg if found is None else found.name
                self.take(given, name, keyword.value, accepted, place)
            elif isinstance(keyword.value, ast.Dict):
                self.by_dict(given, keyword.value, place)
            else:
                given.open = True

    def by_dict(self, given: Given, node: ast.Dict, place: Place) -> None:
        """Take those that stand in a dict."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.take(given, key.value, value, None, place)
            else:
                given.open = True

    def take(
        self,
        given: Given,
        name: str,
        node: ast.expr,
        accepted: Arguments | None,
        place: Place,
    ) -> None:
        """Put an argument where it belongs, as the guest would convert it."""
        known, value = self.value(node, place)
        name = valid_text(name)
        if not known:
            given.unseen.append(name)
            return
        argument = None if accepted is None else accepted.find(name)
        if argument is not None and accepted is not None:
            value = convert(value, argument.schema, accepted.root)
            if (
                value is None
                and not argument.required
                and problem(value, argument.schema, accepted.root, name) is not None
            ):
                # Left out, as the guest leaves it out.
                return
        given.seen[name] = value

    def value(self, node: ast.expr, place: Place) -> tuple[bool, Json]:
        """Return whether an expression's value can be seen, and the value."""
        if isinstance(node, ast.Name):
            found = self._constant(node.id, place)
            return (False, None) if found is None else (True, found.value)
        return written_out(node)

    def _constant(self, name: str, place: Place) -> ast.Constant | None:
        """Return what a name stands for everywhere, if that is one constant."""
        if self._survey.tricky or name in self._survey.shared:
            return None
        owner = self._survey.owner(name, place)
        if owner is None or len(owner.bound[name]) != 1:
            return None
        value, _ = owner.bound[name][0]
        if isinstance(value, ast.Constant) and isinstance(value.value, str | int | float):
            return value
        return None
