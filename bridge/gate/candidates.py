"""Which of many rules a call's arguments could match at all. Pure.

Owns an index over rules' conditions, so that a call is not held against two hundred rules that are
each about another repository. It only ever leaves out rules that have a condition which certainly
does not hold; whatever it is not sure of it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bridge.gate.conditions import is_short_text
from bridge.model import Json
from bridge.settings import globs
from bridge.settings.policy import Condition

MAX_ITEMS = 16
"""Of a list that is looked up item by item; with a longer one, all rules about it are kept."""

ANYTHING = "*"


class _Place:
    """The rules that are about one argument, by texts of which one has to be there."""

    __slots__ = ("exact", "heads", "others", "tails", "texts")

    def __init__(self) -> None:
        self.exact: dict[str, list[int]] = {}
        self.heads: dict[int, dict[str, list[int]]] = {}
        self.tails: dict[int, dict[str, list[int]]] = {}
        self.texts: list[int] = []
        self.others: list[int] = []

    def add(self, number: int, condition: Condition) -> None:
        """Add a rule by its condition about this argument."""
        if condition.path[1:] not in ((), (ANYTHING,)):
            self.others.append(number)
        elif condition.test in ("is", "in"):
            self._add_exact(number, condition)
        elif condition.test == "glob":
            self._add_globs(number, [globs.parse(glob) for glob in condition.value])
        else:
            self.others.append(number)

    def _add_exact(self, number: int, condition: Condition) -> None:
        options = condition.value if condition.test == "in" else (condition.value,)
        if not all(type(option) is str for option in options):
            self.others.append(number)
            return
        self.texts.append(number)
        for option in options:
            self.exact.setdefault(option, []).append(number)

    def _add_globs(self, number: int, parsed: Sequence[Sequence[globs.Part]]) -> None:
        if not all(isinstance(parts[0], str) or isinstance(parts[-1], str) for parts in parsed):
            self.others.append(number)
            return
        self.texts.append(number)
        for parts in parsed:
            first, last = parts[0], parts[-1]
            if isinstance(first, str):
                self.heads.setdefault(len(first), {}).setdefault(first, []).append(number)
            elif isinstance(last, str):
                self.tails.setdefault(len(last), {}).setdefault(last, []).append(number)

    def find(self, items: Iterable[Json], found: list[int]) -> None:
        """Add the rules whose condition one of some values may meet."""
        found += self.others
        if not self.texts:
            return
        for item in items:
            if not is_short_text(item):
                found += self.texts
                return
            if item in self.exact:
                found += self.exact[item]
            for length, table in self.heads.items():
                found += table.get(item[:length], ())
            for length, table in self.tails.items():
                found += table.get(item[-length:], ())


class Candidates:
    """An index over the conditions of rules, which are known by their numbers here."""

    def __init__(self, rules: Sequence[Sequence[Condition]]) -> None:
        self._always: list[int] = []
        self._places: dict[tuple[str, bool], _Place] = {}
        for number, conditions in enumerate(rules):
            usable = [condition for condition in conditions if _excludes(condition)]
            if not usable:
                self._always.append(number)
                continue
            best = min(usable, key=_worth)
            key = best.path[0], best.path[1:] == (ANYTHING,)
            self._places.setdefault(key, _Place()).add(number, best)

    def among(self, arguments: Mapping[str, Json]) -> Sequence[int]:
        """Return the rules that may match, in their order; one may be there more than once."""
        if not self._places:
            return self._always
        found = list(self._always)
        for (key, items_only), place in self._places.items():
            value = arguments.get(key)
            if value is None:
                # Missing or null: not one condition about it holds.
                continue
            if type(value) is list and len(value) <= MAX_ITEMS:
                place.find(value, found)
            elif items_only or type(value) is not str:
                found += place.others
                found += place.texts
            else:
                place.find((value,), found)
        found.sort()
        return found


def _excludes(condition: Condition) -> bool:
    """Tell whether a condition does not hold where its argument is missing or null."""
    return not condition.negated and condition.test != "present" and condition.path[0] != ANYTHING


def _worth(condition: Condition) -> int:
    """Return the better a condition tells rules apart the less."""
    if condition.path[1:] not in ((), (ANYTHING,)):
        return 3
    return {"is": 0, "in": 1, "glob": 2}.get(condition.test, 3)
