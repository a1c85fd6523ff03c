"""What has to go: the expired, then the oldest, and no more than has to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.artifacts.tidying import Bounds, Coming, Held, judge
from bridge.store import owner_digest

DIGESTS = [f"{number:064x}" for number in range(6)]


def held_by(owner: str, created: int, digest: str, size: int) -> Held:
    """Return an entry of a moment."""
    return Held(owner, f"{created:020x}", created, digest, size)


HELD = st.lists(st.tuples(st.sampled_from(["me", "you"]), st.sampled_from(DIGESTS)), max_size=30)
SIZES = st.tuples(*(st.integers(0, 100) for _ in DIGESTS))


COMING = st.none() | st.builds(
    lambda owner, size: Coming(owner=owner, digest=f"{99:064x}", size=size),
    st.sampled_from(["me", "you", "she"]),
    st.integers(0, 100),
)


@given(HELD, SIZES, st.integers(0, 300), st.integers(-1, 30), st.integers(1, 30), COMING)
def test_what_stays_is_within_all_bounds_with_room_for_what_comes(
    made: list[tuple[str, str]],
    of_digest: tuple[int, ...],
    total: int,
    oldest: int,
    most: int,
    coming: Coming | None,
) -> None:
    """Or that is refused, and nothing goes for it."""
    sizes = dict(zip(DIGESTS, of_digest, strict=True))
    held = [
        held_by(owner, place, digest, sizes[digest]) for place, (owner, digest) in enumerate(made)
    ]
    bounds = Bounds(total_bytes=total, oldest=oldest, entries=most, owner_entries=8)
    verdict = judge(held, bounds, coming)
    stays = [one for one in held if one not in verdict.goes]
    size = sum({one.digest: one.size for one in stays}.values())
    assert all(one.created > oldest for one in stays)
    valid = [one for one in held if one.created > oldest]
    for owner in ("me", "you"):
        assert sum(one.owner == owner for one in stays) <= 8
        # Of each owner the newest stay.
        own = [one for one in valid if one.owner == owner]
        mine = [one for one in stays if one.owner == owner]
        assert mine == own[len(own) - len(mine) :]
    if verdict.refused:
        assert coming is not None
        assert len(stays) == sum(
            min(8, sum(one.owner == who for one in valid)) for who in ("me", "you")
        )
        return
    more = 0 if coming is None else coming.size
    assert size + more <= total
    assert len(stays) + (coming is not None) <= most
    if len(held) < min(most, 8) and sum(sizes.values()) + more <= total:
        assert stays == valid


def coming(owner: str, size: int) -> Coming:
    """Return something that is to be kept, and is not there."""
    return Coming(owner=owner, digest=f"{99:064x}", size=size)


def test_where_there_is_too_much_a_tenth_more_goes() -> None:
    held = [held_by("me", number, DIGESTS[number], 20) for number in range(5)]
    bounds = Bounds(total_bytes=100, oldest=-1)
    assert judge(held, bounds).goes == ()
    assert judge(held, bounds, coming("me", 1)).goes == tuple(held[:1])
    assert judge(held, bounds, coming("me", 11)).goes == tuple(held[:2])
    # What comes itself is not part of the tenth.
    assert judge(held, bounds, coming("me", 100)).goes == tuple(held)


def test_what_goes_is_of_the_owner_who_has_most_and_not_of_one_with_less_than_a_share() -> None:
    """Though what the other has is older; and who has more than a share makes room of its own."""
    mine = [held_by("me", 1, DIGESTS[0], 20)]
    yours = [held_by("you", number, DIGESTS[number], 20) for number in range(2, 6)]
    bounds = Bounds(total_bytes=100, oldest=-1)
    for who in ("me", "you", "she"):
        verdict = judge([*mine, *yours], bounds, coming(who, 15))
        assert verdict.goes == tuple(yours[:2])
    # By number it is the same.
    few = Bounds(total_bytes=1000, oldest=-1, entries=5)
    assert judge([*mine, *yours], few, coming("me", 1)).goes == tuple(yours[:1])


def test_what_is_more_than_a_share_by_itself_is_refused_and_nothing_goes() -> None:
    held = [held_by("me", 1, DIGESTS[0], 30), held_by("you", 2, DIGESTS[1], 30)]
    bounds = Bounds(total_bytes=100, oldest=-1)
    assert judge(held, bounds, coming("she", 40)).goes == ()
    verdict = judge(held, bounds, coming("she", 41))
    assert (verdict.refused, verdict.goes) == (True, ())
    # Who has something already gives that for it, and is refused only if that is not enough.
    verdict = judge(held, bounds, coming("you", 60))
    assert (verdict.refused, verdict.goes) == (False, (held[1],))
    verdict = judge(held, bounds, coming("you", 75))
    assert (verdict.refused, verdict.goes) == (True, ())


def test_the_tenth_more_is_taken_of_nobody_who_has_less_than_what_comes() -> None:
    held = [
        held_by(f"{number}", number, f"{number:064x}", 100 if number == 7 else 82)
        for number in range(12)
    ]
    bounds = Bounds(total_bytes=1000, oldest=-1)
    assert judge(held, bounds, coming("she", 83)).goes == (held[7],)


def test_however_many_come_over_http_the_person_has_half() -> None:
    """Over stdio and at the terminal together, of the nine tenths that stay."""

    def person(second: int) -> list[Held]:
        return [
            held_by(owner_digest("stdio"), 0, DIGESTS[0], 25),
            held_by(owner_digest("terminal"), 1, DIGESTS[1], second),
        ]

    others = [held_by(f"invented {n}", n, f"{n:064x}", 2) for n in range(10, 40)]
    bounds = Bounds(total_bytes=100, oldest=-1)
    # Half of what is left when a tenth more has gone.
    assert judge([*person(20), *others], bounds).goes == tuple(others[:8])
    assert judge([*person(36), *others], bounds).goes[0] == person(36)[0]


def test_content_of_two_counts_once() -> None:
    held = [held_by("me", 1, DIGESTS[0], 60), held_by("you", 2, DIGESTS[0], 60)]
    assert judge(held, Bounds(total_bytes=100, oldest=-1)).goes == ()
