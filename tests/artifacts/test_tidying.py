"""What has to go: the expired, then the oldest, and no more than has to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.artifacts.entries import Entry, parse_file_name
from bridge.artifacts.tidying import Bounds, Held, judge

DIGESTS = [f"{number:064x}" for number in range(6)]


def entry(created: int, digest: str) -> Entry:
    """Return an entry of a moment."""
    return Entry(created=created, id=f"{created:020x}", run_id="run", kind="file", digest=digest)


HELD = st.lists(
    st.tuples(st.sampled_from(["me", "you"]), st.sampled_from(DIGESTS)), max_size=30
).map(lambda made: [(owner, entry(place, digest)) for place, (owner, digest) in enumerate(made)])
SIZES = st.dictionaries(st.sampled_from(DIGESTS), st.integers(0, 100), max_size=6)


@given(HELD, SIZES, st.integers(0, 300), st.integers(-1, 30), st.integers(1, 30), st.integers(0, 9))
def test_what_stays_is_within_all_bounds_and_newer_than_what_goes(
    held: list[Held], sizes: dict[str, int], total: int, oldest: int, most: int, room: int
) -> None:
    bounds = Bounds(total_bytes=total, oldest=oldest, entries=most, owner_entries=8)
    verdict = judge(held, sizes, bounds, room=room)
    stays = [one for one in held if one not in verdict.goes]
    digests = {one.digest for _, one in stays}
    assert digests <= sizes.keys()
    assert set(verdict.dead) == sizes.keys() - digests
    assert not verdict.more
    assert verdict.size == sum(sizes[digest] for digest in digests)
    assert verdict.size <= max(total - room, 0)
    assert verdict.count == len(stays) <= most
    assert all(one.created > oldest for _, one in stays)
    for owner in ("me", "you"):
        assert sum(name == owner for name, _ in stays) <= 8
    # Nothing goes that might have stayed: if anything is removed for its size or number, all that
    # is older is removed as well.
    if len(held) <= min(most - 1, 8) and sum(sizes.values()) <= total - room:
        expected = [one for one in held if one[1].digest in sizes and one[1].created > oldest]
        assert stays == expected


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


def test_where_there_is_too_much_a_tenth_more_goes() -> None:
    held = [("me", entry(number, DIGESTS[number])) for number in range(5)]
    sizes = dict.fromkeys(DIGESTS[:5], 20)
    bounds = Bounds(total_bytes=100, oldest=-1)
    assert judge(held, sizes, bounds).goes == ()
    assert judge(held, sizes, bounds, room=1).goes == tuple(held[:1])
    assert judge(held, sizes, bounds, room=11).goes == tuple(held[:2])


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
