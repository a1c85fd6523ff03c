"""Who gives way: never one with less than a share while another has more, and never a busy one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import PERSON_OWNERS, owner_digest
from bridge.sessions.admission import gives_up_place, place_for
from bridge.store.retention import StoredItem, surplus


class Taken(NamedTuple):
    owner: str
    in_use: bool


CONTENTS = {"a": 0, "b": 1, "c": 10, "d": 25, "e": 40}
OWNERS = [*map(owner_digest, PERSON_OWNERS), "one", "two", "three"]
ITEMS = st.lists(
    st.tuples(st.sampled_from(OWNERS), st.sampled_from(list(CONTENTS))), max_size=25
).map(
    lambda made: [
        StoredItem(owner, str(number), number, content, CONTENTS[content])
        for number, (owner, content) in enumerate(made)
    ]
)
CALLERS = st.sampled_from(["ada", "bob", "eve", "joe"])
TAKEN = st.lists(st.builds(Taken, CALLERS, st.booleans()), max_size=8)


def holds(items: Sequence[StoredItem], whose: tuple[str, ...] = ()) -> int:
    """Return how much is held in all, by a party or by a caller: each content once."""
    mine = [one for one in items if one.caller[: len(whose)] == whose]
    return sum({one.digest: one.size for one in mine}.values())


def without(items: Sequence[StoredItem], gone: Sequence[StoredItem]) -> list[StoredItem]:
    return [one for one in items if one not in gone]


@given(ITEMS, st.integers(0, 120))
def test_what_stays_is_within_the_budget_and_no_more_goes_than_has_to(
    items: list[StoredItem], budget: int
) -> None:
    gone = surplus(items, budget)
    assert len(set(gone)) == len(gone)
    assert holds(without(items, gone)) <= budget
    assert not gone or holds(without(items, gone[:-1])) > budget
    assert surplus(without(items, gone), budget) == []


@pytest.mark.guarantee("shares")
@given(ITEMS, st.integers(0, 120))
def test_nothing_of_one_with_less_than_a_share_goes_while_another_has_more(
    items: list[StoredItem], budget: int
) -> None:
    gone = surplus(items, budget)
    for number, loser in enumerate(gone):
        left = without(items, gone[:number])
        parties = {one.caller[:1] for one in left}
        part = holds(left, loser.caller[:1])
        assert part == max(holds(left, party) for party in parties)
        assert part * len(parties) > budget
        callers = {one.caller for one in left if one.caller[0] == loser.caller[0]}
        own = holds(left, loser.caller)
        assert own == max(holds(left, caller) for caller in callers)
        assert own * len(callers) >= part
        assert [one for one in left if one.caller == loser.caller][0] is loser


@given(ITEMS, st.integers(0, 120), st.integers(0, 120), st.integers(0, 25))
def test_what_goes_is_the_same_in_one_go_and_in_several(
    items: list[StoredItem], budget: int, lower: int, some: int
) -> None:
    gone = surplus(items, max(budget, lower))
    assert surplus(items, min(budget, lower))[: len(gone)] == gone
    first = gone[:some]
    assert [*first, *surplus(without(items, first), max(budget, lower))] == gone


@pytest.mark.guarantee("shares")
@given(CALLERS, TAKEN, st.integers(1, 8), st.lists(CALLERS, max_size=3))
def test_a_place_is_given_up_by_an_idle_one_of_a_fair_choice(
    caller: str, taken: list[Taken], places: int, ahead: list[str]
) -> None:
    taken = taken[:places]
    held = Counter(one.owner for one in taken)
    share = places / len(held.keys() | {caller})
    answer = place_for(caller, taken, places, ahead)
    idle = [one.owner for one in taken if not one.in_use]
    if answer == "free":
        assert len(taken) < places
    elif isinstance(answer, int):
        assert not taken[answer].in_use
        whose = taken[answer].owner
        if whose != caller:
            # A caller below its share takes it from the one with most above its share.
            assert held[caller] < share < held[whose]
            assert held[whose] == max(held[one] for one in idle)
        assert not any(one == Taken(whose, False) for one in taken[:answer]), "longest idle"
    else:
        assert caller not in idle
        if answer == "wait":
            assert held[caller] < share
            assert all(held[one] <= share for one in idle)
        else:
            assert held[caller] >= share
    assert answer == "free" or ahead or len(taken) == places


@given(CALLERS, TAKEN, st.integers(1, 8))
def test_who_waits_is_not_waited_for_by_callers_with_less_and_gets_what_is_given_up(
    caller: str, taken: list[Taken], places: int
) -> None:
    taken = taken[:places]
    if place_for(caller, taken, places) != "wait":
        return
    givers = {one.owner for one in taken if gives_up_place(one.owner, taken, places, [caller])}
    assert (len(taken) == places) is bool(givers)
    held = Counter(one.owner for one in taken)
    for giver in givers:
        assert held[giver] * len(held.keys() | {caller}) > places
        place = next(place for place, one in enumerate(taken) if one.owner == giver)
        left = [one for number, one in enumerate(taken) if number != place]
        # A giver, or a caller with as much, does not get it back at once.
        assert place_for(giver, left, places, [caller]) != "free"
        assert place_for(caller, left, places) == "free"


def test_a_place_that_is_free_is_for_who_waits_for_it() -> None:
    taken = [Taken("eve", True), Taken("eve", False)]
    assert place_for("eve", taken, 3, ["ada"]) == 1
    assert place_for("bob", taken, 3, ["ada"]) != "free"
    assert place_for("bob", taken, 3, ["eve"]) == "free"
