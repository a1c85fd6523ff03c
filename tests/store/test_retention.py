"""What has to go: the expired, then the oldest, and no more than has to."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import owner_digest
from bridge.store.retention import RetentionLimits, StoredItem, items_to_remove

DIGESTS = [f"{number:064x}" for number in range(6)]


def held_by(owner: str, created: int, digest: str, size: int) -> StoredItem:
    return StoredItem(owner, f"{created:020x}", created, digest, size)


HELD = st.lists(st.tuples(st.sampled_from(["me", "you"]), st.sampled_from(DIGESTS)), max_size=30)
SIZES = st.tuples(*(st.integers(0, 100) for _ in DIGESTS))


def next_item(owner: str, size: int) -> StoredItem:
    return StoredItem(owner, "", float("inf"), f"{99:064x}", size)


bounds = partial(RetentionLimits, oldest=-1, entries=50, owner_entries=20)


INCOMING = st.none() | st.builds(
    next_item, st.sampled_from(["me", "you", "she"]), st.integers(0, 100)
)


@given(HELD, SIZES, st.integers(0, 300), st.integers(-1, 30), st.integers(1, 30), INCOMING)
def test_what_stays_is_within_all_bounds_with_room_for_what_comes(
    made: list[tuple[str, str]],
    of_digest: tuple[int, ...],
    total: int,
    oldest: int,
    most: int,
    more: StoredItem | None,
) -> None:
    sizes = dict(zip(DIGESTS, of_digest, strict=True))
    held = [
        held_by(owner, place, digest, sizes[digest]) for place, (owner, digest) in enumerate(made)
    ]
    goes = items_to_remove(held, bounds(total, oldest=oldest, entries=most, owner_entries=8), more)
    if goes is None:
        assert more is not None
        return
    stays = [one for one in held if one not in goes]
    size = sum({one.digest: one.size for one in stays}.values())
    assert all(one.created > oldest for one in stays)
    valid = [one for one in held if one.created > oldest]
    for owner in ("me", "you"):
        assert sum(one.owner == owner for one in stays) <= 8
        # Of each owner the newest stay.
        own = [one for one in valid if one.owner == owner]
        mine = [one for one in stays if one.owner == owner]
        assert mine == own[len(own) - len(mine) :]
    comes = 0 if more is None else more.size
    assert size + comes <= total
    assert len(stays) + (more is not None) <= most
    if len(held) < min(most, 8) and sum(sizes.values()) + comes <= total:
        assert stays == valid


def test_where_there_is_too_much_a_tenth_more_goes() -> None:
    held = [held_by("me", number, DIGESTS[number], 20) for number in range(5)]
    most = bounds(100)
    assert items_to_remove(held, most) == []
    assert items_to_remove(held, most, next_item("me", 1)) == held[:1]
    assert items_to_remove(held, most, next_item("me", 11)) == held[:2]
    # What comes itself is not part of the tenth.
    assert items_to_remove(held, most, next_item("me", 100)) == held


def test_what_goes_is_of_the_owner_who_has_most_and_not_of_one_with_less_than_a_share() -> None:
    mine = [held_by("me", 1, DIGESTS[0], 20)]
    yours = [held_by("you", number, DIGESTS[number], 20) for number in range(2, 6)]
    most = bounds(100)
    for who in ("me", "you", "she"):
        assert items_to_remove([*mine, *yours], most, next_item(who, 15)) == yours[:2]
    # By number it is the same.
    few = bounds(1000, entries=5)
    assert items_to_remove([*mine, *yours], few, next_item("me", 1)) == yours[:1]


def test_what_is_more_than_a_share_by_itself_is_refused_and_nothing_goes() -> None:
    held = [held_by("me", 1, DIGESTS[0], 30), held_by("you", 2, DIGESTS[1], 30)]
    most = bounds(100)
    assert items_to_remove(held, most, next_item("she", 40)) == []
    assert items_to_remove(held, most, next_item("she", 41)) is None
    # Who has something already gives that for it, and is refused only if that is not enough.
    assert items_to_remove(held, most, next_item("you", 60)) == [held[1]]
    assert items_to_remove(held, most, next_item("you", 75)) is None


def test_the_tenth_more_is_taken_of_no_one_who_has_less_than_what_comes() -> None:
    held = [
        held_by(f"{number}", number, f"{number:064x}", 100 if number == 7 else 82)
        for number in range(12)
    ]
    most = bounds(1000)
    assert items_to_remove(held, most, next_item("she", 83)) == [held[7]]


@pytest.mark.guarantee("shares")
def test_however_many_come_over_http_the_person_has_half() -> None:
    def person(second: int) -> list[StoredItem]:
        return [
            held_by(owner_digest("stdio"), 0, DIGESTS[0], 25),
            held_by(owner_digest("terminal"), 1, DIGESTS[1], second),
        ]

    others = [held_by(f"invented {n}", n, f"{n:064x}", 2) for n in range(10, 40)]
    most = bounds(100)
    # Half of what is left when a tenth more has gone.
    assert items_to_remove([*person(20), *others], most) == others[:8]
    assert (items_to_remove([*person(36), *others], most) or [])[:1] == person(36)[:1]


def test_content_of_two_counts_once() -> None:
    held = [held_by("me", 1, DIGESTS[0], 60), held_by("you", 2, DIGESTS[0], 60)]
    assert items_to_remove(held, bounds(100)) == []
