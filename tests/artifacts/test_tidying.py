"""What has to go: the expired, then the oldest, and no more than has to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.artifacts.entries import Entry, owner_folder, parse_file_name
from bridge.artifacts.tidying import Bounds, Coming, Held, judge

DIGESTS = [f"{number:064x}" for number in range(6)]


def entry(created: int, digest: str) -> Entry:
    """Return an entry of a moment."""
    return Entry(created=created, id=f"{created:020x}", run_id="run", kind="file", digest=digest)


HELD = st.lists(
    st.tuples(st.sampled_from(["me", "you"]), st.sampled_from(DIGESTS)), max_size=30
).map(lambda made: [(owner, entry(place, digest)) for place, (owner, digest) in enumerate(made)])
SIZES = st.dictionaries(st.sampled_from(DIGESTS), st.integers(0, 100), max_size=6)


COMING = st.none() | st.builds(
    lambda owner, size: Coming(owner=owner, digest=f"{99:064x}", size=size),
    st.sampled_from(["me", "you", "she"]),
    st.integers(0, 100),
)


@given(HELD, SIZES, st.integers(0, 300), st.integers(-1, 30), st.integers(1, 30), COMING)
def test_what_stays_is_within_all_bounds_with_room_for_what_comes(
    held: list[Held],
    sizes: dict[str, int],
    total: int,
    oldest: int,
    most: int,
    coming: Coming | None,
) -> None:
    """Or that is refused, and nothing goes for it."""
    bounds = Bounds(total_bytes=total, oldest=oldest, entries=most, owner_entries=8)
    verdict = judge(held, sizes, bounds, coming=coming)
    stays = [one for one in held if one not in verdict.goes]
    digests = {one.digest for _, one in stays}
    assert digests <= sizes.keys()
    assert set(verdict.dead) == sizes.keys() - digests
    assert not verdict.more
    assert verdict.size == sum(sizes[digest] for digest in digests)
    assert verdict.count == len(stays)
    assert all(one.created > oldest for _, one in stays)
    valid = [one for one in held if one[1].digest in sizes and one[1].created > oldest]
    for owner in ("me", "you"):
        assert sum(name == owner for name, _ in stays) <= 8
        # Of each owner the newest stay.
        own = [one for one in valid if one[0] == owner]
        mine = [one for one in stays if one[0] == owner]
        assert mine == own[len(own) - len(mine) :]
    if verdict.refused:
        assert coming is not None
        assert len(stays) == sum(
            min(8, sum(one[0] == who for one in valid)) for who in ("me", "you")
        )
        return
    more = 0 if coming is None else coming.size
    assert verdict.size + more <= total
    assert len(stays) + (coming is not None) <= most
    if len(held) < min(most, 8) and sum(sizes.values()) + more <= total:
        assert stays == valid


@given(HELD, SIZES, st.integers(0, 300), st.integers(1, 5))
def test_a_few_go_at_a_time_until_there_is_no_more_to_go(
    held: list[Held], sizes: dict[str, int], total: int, most: int
) -> None:
    """And no content goes before the last entry that speaks of it."""
    bounds = Bounds(total_bytes=total, oldest=3)
    at_once = judge(held, sizes, bounds)
    left, there = list(held), dict(sizes)
    while True:
        verdict = judge(left, there, bounds, most=most)
        assert len(verdict.goes) <= most
        assert len(verdict.dead) <= most
        left = [one for one in left if one not in verdict.goes]
        there = {name: size for name, size in there.items() if name not in verdict.dead}
        assert {entry.digest for _, entry in left} & set(verdict.dead) == set()
        assert (verdict.size, verdict.count) == (sum(there.values()), len(left))
        if not verdict.more:
            break
    # Once there is room, the tenth more is not insisted on.
    assert {one for one in held if one not in at_once.goes} <= set(left)
    rest = judge(left, there, bounds)
    assert (rest.goes, rest.dead) == ((), ())


def coming(owner: str, size: int) -> Coming:
    """Return something that is to be kept, and is not there."""
    return Coming(owner=owner, digest=f"{99:064x}", size=size)


def test_where_there_is_too_much_a_tenth_more_goes() -> None:
    held = [("me", entry(number, DIGESTS[number])) for number in range(5)]
    sizes = dict.fromkeys(DIGESTS[:5], 20)
    bounds = Bounds(total_bytes=100, oldest=-1)
    assert judge(held, sizes, bounds).goes == ()
    assert judge(held, sizes, bounds, coming=coming("me", 1)).goes == tuple(held[:1])
    assert judge(held, sizes, bounds, coming=coming("me", 11)).goes == tuple(held[:2])
    # What comes itself is not part of the tenth.
    assert judge(held, sizes, bounds, coming=coming("me", 100)).goes == tuple(held)


def test_what_goes_is_of_the_owner_who_has_most_and_not_of_one_with_less_than_a_share() -> None:
    """Though what the other has is older; and who has more than a share makes room of its own."""
    mine = [("me", entry(1, DIGESTS[0]))]
    yours = [("you", entry(number, DIGESTS[number])) for number in range(2, 6)]
    sizes = {one[1].digest: 20 for one in [*mine, *yours]}
    bounds = Bounds(total_bytes=100, oldest=-1)
    for who in ("me", "you", "she"):
        verdict = judge([*mine, *yours], sizes, bounds, coming=coming(who, 15))
        assert verdict.goes == tuple(yours[:2])
    # By number it is the same.
    few = Bounds(total_bytes=1000, oldest=-1, entries=5)
    assert judge([*mine, *yours], sizes, few, coming=coming("me", 1)).goes == tuple(yours[:1])


def test_what_is_more_than_a_share_by_itself_is_refused_and_nothing_goes() -> None:
    held = [("me", entry(1, DIGESTS[0])), ("you", entry(2, DIGESTS[1]))]
    sizes = {DIGESTS[0]: 30, DIGESTS[1]: 30}
    bounds = Bounds(total_bytes=100, oldest=-1)
    assert judge(held, sizes, bounds, coming=coming("she", 40)).goes == ()
    verdict = judge(held, sizes, bounds, coming=coming("she", 41))
    assert (verdict.refused, verdict.goes, verdict.dead) == (True, (), ())
    # Who has something already gives that for it, and is refused only if that is not enough.
    verdict = judge(held, sizes, bounds, coming=coming("you", 60))
    assert (verdict.refused, verdict.goes) == (False, (held[1],))
    verdict = judge(held, sizes, bounds, coming=coming("you", 75))
    assert (verdict.refused, verdict.goes, verdict.dead) == (True, (), ())


def test_the_tenth_more_is_taken_of_nobody_who_has_less_than_what_comes() -> None:
    held = [(f"{number}", entry(number, f"{number:064x}")) for number in range(12)]
    sizes = {one[1].digest: 82 for one in held} | {held[7][1].digest: 100}
    bounds = Bounds(total_bytes=1000, oldest=-1)
    assert judge(held, sizes, bounds, coming=coming("she", 83)).goes == (held[7],)


def test_however_many_come_over_http_the_person_has_half() -> None:
    """Over stdio and at the terminal together, of the nine tenths that stay."""
    person = [
        (owner_folder(owner), entry(number, DIGESTS[number]))
        for number, owner in enumerate(["stdio", "terminal"])
    ]
    others = [(f"invented {number}", entry(number, f"{number:064x}")) for number in range(10, 40)]
    sizes = {DIGESTS[0]: 25, DIGESTS[1]: 20} | {one[1].digest: 2 for one in others}
    bounds = Bounds(total_bytes=100, oldest=-1)
    # Half of what is left when a tenth more has gone.
    assert judge([*person, *others], sizes, bounds).goes == tuple(others[:8])
    sizes[DIGESTS[1]] = 36
    assert judge([*person, *others], sizes, bounds).goes[0] == person[0]


def test_content_of_nobody_is_dead_and_content_of_two_counts_once() -> None:
    held = [("me", entry(1, DIGESTS[0])), ("you", entry(2, DIGESTS[0]))]
    sizes = {DIGESTS[0]: 60, DIGESTS[1]: 60}
    verdict = judge(held, sizes, Bounds(total_bytes=100, oldest=-1))
    assert (verdict.goes, verdict.size, verdict.count) == ((), 60, 2)
    assert verdict.dead == (DIGESTS[1],)


@given(st.integers(0, 16**12 - 1), st.sampled_from(DIGESTS))
def test_a_file_name_says_all_and_sorts_by_time(created: int, digest: str) -> None:
    one = Entry(
        created=created, id="0123456789abcdef0123", run_id="a" * 32, kind="shown", digest=digest
    )
    assert parse_file_name(one.file_name) == one
    # Some file systems that encrypt names take no more.
    assert len(one.file_name) <= 143
    if created:
        assert entry(created - 1, digest).file_name < one.file_name


@given(st.text(max_size=200))
def test_any_other_name_is_none_of_ours(text: str) -> None:
    assert parse_file_name(text) is None
