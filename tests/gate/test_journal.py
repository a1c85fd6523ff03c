"""Journals: what a retry is answered, what is made again, what is refused, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import InvalidRequestError, RefusedError, UnknownError
from bridge.gate.journal import JournalEntry, Journals, Outcome, Replay, RunJournal, key_of
from bridge.gate.policy import CallFacts
from bridge.model import Effect, Json, RetriedReads
from tests.raised import raises_code

MIB = 1024 * 1024


def answer(text: str = "done") -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def call(tool: str, arguments: dict[str, Json], server: str = "s") -> CallFacts:
    return CallFacts(server=server, tool=tool, arguments=arguments)


def put(
    journal: RunJournal,
    tool: str,
    arguments: dict[str, Json],
    result: dict[str, Json],
    effect: Effect = "write",
) -> JournalEntry:
    entry = journal.sent(call(tool, arguments), effect, 1)
    journal.settle(entry, "ok", result)
    return entry


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 0}, {"a": False}, False),
        ({"a": None}, {}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": "é"}, {"a": "e\u0301"}, False),
        ({"a": "\ud800"}, {"a": "\ud800"}, True),
        ({"a": 10**30}, {"a": 1e30}, False),
        ({"a": float("nan")}, {"a": float("nan")}, True),
    ],
)
def test_equal_arguments_share_a_key(
    one: dict[str, Json], other: dict[str, Json], alike: bool
) -> None:
    assert (key_of("s", "t", one) == key_of("s", "t", other)) is alike


def test_a_tools_name_does_not_run_into_its_servers() -> None:
    keys = {key_of("a", "bc", {}), key_of("ab", "c", {}), key_of("a", 'b","c', {})}
    assert len(keys) == 3


def test_arguments_in_a_refusal_are_cut() -> None:
    journal, long = RunJournal(), call("t", {"text": "x" * 100_000})
    journal.sent(long, "write")
    with raises_code("outcome_unknown") as caught:
        Replay(journal).answer(long, "write")
    assert len(str(caught.value)) < 1100


Wish = tuple[str, int, Effect]
"""Tool, arguments, and what it does."""


@dataclass
class Sent:
    wish: Wish
    outcome: Outcome
    result: dict[str, Json] | None


class Reference:
    """What a journal answers, looked up in the list of what was sent, again for each call."""

    def __init__(self, sent: Sequence[Sent], reads: RetriedReads) -> None:
        self.sent = sent
        self.reads = reads
        self.asked: Counter[tuple[str, int]] = Counter()

    def answer(self, wish: Wish) -> dict[str, Json] | Literal["make", "refuse"]:
        tool, value, effect = wish
        like = [one for one in self.sent if one.wish[:2] == (tool, value)]
        answered = [one for one in like if one.outcome == "ok"]
        number = self.asked[tool, value]
        if number < len(answered):
            self.asked[tool, value] += 1
            if effect == "read" and self.reads == "refresh":
                return "make"
            result = answered[number].result
            assert result is not None
            return result
        if effect != "read" and any(one.outcome == "unknown" for one in like):
            return "refuse"
        return "make"

    def list_unused(self) -> list[Sent]:
        left = Counter(self.asked)
        found: list[Sent] = []
        for one in self.sent:
            if one.outcome == "ok" and left[one.wish[:2]] > 0:
                left[one.wish[:2]] -= 1
            else:
                found.append(one)
        return found


TOOLS: dict[str, Effect] = {"get": "read", "put": "write", "drop": "destructive"}
WISHES = st.tuples(st.sampled_from(sorted(TOOLS)), st.integers(0, 2)).map(
    lambda pair: (pair[0], pair[1], TOOLS[pair[0]])
)
OUTCOMES = st.sampled_from(["ok", "ok", "ok", "tool-error", "refused", "not-sent", "unknown"])
PROGRAM = st.lists(st.tuples(WISHES, OUTCOMES), max_size=12)


def answer_or_verdict(replay: Replay, wish: Wish) -> dict[str, Json] | Literal["make", "refuse"]:
    tool, value, effect = wish
    try:
        found = replay.answer(call(tool, {"n": value}), effect)
    except RefusedError:
        return "refuse"
    return "make" if found is None else found


@given(
    programs=st.lists(PROGRAM, min_size=2, max_size=4),
    reads=st.sampled_from(["replay", "refresh"]),
    late=st.booleans(),
)
def test_retries_of_retries_answer_what_was_answered_and_make_the_rest(
    programs: list[list[tuple[Wish, Outcome]]], reads: RetriedReads, late: bool
) -> None:
    journals = Journals()
    numbers = iter(range(10_000))
    sent: list[Sent] = []
    for turn, program in enumerate(programs):
        run_id = f"r{turn}"
        replay = reference = None
        # A second retry of the first run continues from the last one as well.
        origin = "r0" if late else f"r{turn - 1}"
        if turn:
            replay = Replay(journals.find(origin, "me"), reads, run_id=run_id)
            reference = Reference(sent, reads)
        journal = journals.begin(run_id, "me", replay)
        own: list[Sent] = []
        waiting: list[tuple[JournalEntry, Sent]] = []
        with journal.recording():
            for wish, outcome in program:
                tool, value, effect = wish
                if replay is not None and reference is not None:
                    found = answer_or_verdict(replay, wish)
                    assert found == reference.answer(wish)
                    if found == "refuse":
                        continue
                    if not isinstance(found, str):
                        entry = journal.sent(call(tool, {"n": value}), effect)
                        journal.settle(entry, "ok", found)
                        own.append(Sent(wish, "ok", found))
                        continue
                entry = journal.sent(call(tool, {"n": value}), effect)
                made = Sent(wish, outcome, answer(str(next(numbers))))
                own.append(made)
                waiting.append((entry, made))
            # Answers come in another order than calls went out.
            for entry, made in reversed(waiting):
                if made.outcome != "unknown":
                    journal.settle(entry, made.outcome, made.result)
        if reference is None:
            sent = own
        elif not late or journals.find(origin, "me") is journal:
            # Else it made no write of its own, and the next retry begins where this one did.
            sent = own + reference.list_unused()


def test_an_unknown_write_is_refused_however_often_it_is_asked_for() -> None:
    journal = RunJournal("run7")
    entry = journal.sent(call("create", {"name": "n", "token": "hunter2"}, "crm"), "write", 7)
    assert entry.outcome == "unknown"
    replay = Replay(journal, mask=lambda value: {**value, "token": "***"})
    text = ""
    for _ in range(3):
        with raises_code("outcome_unknown") as caught:
            replay.answer(call("create", {"token": "hunter2", "name": "n"}, "crm"), "write")
        text = str(caught.value)
    assert text.startswith('crm.create({"token": "***", "name": "n"}), call 7 of run run7, was ')
    for part in ("may or may not have happened", "not made again", "reads", "without `retry_of`"):
        assert part in text
    assert "hunter2" not in text
    assert replay.answer(call("create", {"name": "other"}, "crm"), "write") is None


def test_what_the_retry_takes_for_a_write_is_one() -> None:
    journal = RunJournal()
    journal.sent(call("t", {}), "read")
    with raises_code("outcome_unknown"):
        Replay(journal).answer(call("t", {}), "write")


def test_a_result_too_large_to_keep_is_read_again_and_not_written_again() -> None:
    journal = RunJournal("r")
    for effect in ("read", "write"):
        entry = put(journal, effect, {}, answer("x" * 5 * MIB), effect=effect)
        assert entry.result is None
    replay = Replay(journal)
    assert replay.answer(call("read", {}), "read") is None
    for _ in range(2):
        with raises_code("outcome_unknown", match="did happen, and its result was too large"):
            replay.answer(call("write", {}), "write")


def test_what_cannot_be_compared_is_refused_rather_than_repeated() -> None:
    deep: Json = []
    for _ in range(100_000):
        deep = [deep]
    journal = RunJournal()
    put(journal, "t", {"deep": deep}, answer())
    with raises_code("outcome_unknown"):
        Replay(journal).answer(call("t", {"deep": deep}), "write")


def test_two_retries_at_once_do_not_both_continue() -> None:
    journals = Journals()
    first = journals.begin("a", "me")
    put(first, "put", {"n": 1}, answer("1"))
    one, other = (Replay(first, run_id=run_id) for run_id in ("b", "c"))
    assert one.answer(call("put", {"n": 2}), "write") is None
    assert one.answer(call("put", {"n": 3}), "write") is None
    with raises_code("outcome_unknown", match=r"another retry of the same run, b.*retry_of='b'"):
        other.answer(call("put", {"n": 2}), "write")
    assert other.answer(call("get", {}), "read") is None
    assert other.answer(call("put", {"n": 1}), "write") == answer("1")


def test_a_run_that_continues_cannot_be_retried_yet() -> None:
    journals = Journals()
    journal = journals.begin("a", "me")
    with (
        journal.recording(),
        pytest.raises(InvalidRequestError, match="Run a cannot be retried here yet"),
    ):
        journals.find("a", "me")
    assert journals.find("a", "me") is journal


@pytest.mark.parametrize(("run_id", "owner"), [("b", "me"), ("a", "you"), ("a", ""), ("", "me")])
def test_a_journal_is_found_by_its_owner_only(run_id: str, owner: str) -> None:
    journals = Journals()
    journals.begin("a", "me")
    with raises_code("unknown_run") as caught:
        journals.find(run_id, owner)
    assert f"There is no journal of a run {run_id!r}" in caught.value.message
    assert "audit show" in caught.value.remedy
    assert "nothing repeated" in caught.value.remedy


def test_the_run_that_was_used_longest_ago_makes_room() -> None:
    journals = Journals(max_runs=3)
    for run_id in "abc":
        journals.begin(run_id, "me")
    journals.find("a", "me")
    journals.begin("d", "me")
    assert [run_id for run_id in "abcd" if _has(journals, run_id)] == ["a", "c", "d"]


def test_a_run_under_way_makes_no_room() -> None:
    journals = Journals(max_runs=1)
    journal = journals.begin("a", "me")
    with journal.recording():
        put(journal, "put", {}, answer())
        journals.begin("b", "me")
        journals.begin("c", "me")
        put(journal, "put", {}, answer())
    assert _has(journals, "a")
    assert not _has(journals, "b")


def test_results_are_kept_within_the_memory_for_all() -> None:
    journals = Journals(max_bytes=3 * MIB)
    put(journals.begin("a", "me"), "put", {}, answer("x" * MIB))
    journal = journals.begin("b", "me")
    with journal.recording():
        kept = [put(journal, "put", {"n": n}, answer("x" * MIB)).result for n in range(4)]
        assert [result is not None for result in kept] == [True, True, False, False]
        assert not _has(journals, "a")
    assert journals.used <= 3 * MIB
    with raises_code("outcome_unknown", match="too large to keep"):
        Replay(journals.find("b", "me")).answer(call("put", {"n": 2}), "write")


def test_a_chain_of_retries_takes_no_more_memory_than_its_runs_do() -> None:
    journals = Journals(max_runs=2)
    journal = journals.begin("0", "me")
    for number in range(4):
        put(journal, "put", {"n": number}, answer("x" * MIB))
    for turn in range(1, 10):
        replay = Replay(journals.find(str(turn - 1), "me"), run_id=str(turn))
        journal = journals.begin(str(turn), "me", replay)
        with journal.recording():
            for number in range(turn % 5):
                found = replay.answer(call("put", {"n": number}), "write")
                assert found is not None
                put(journal, "put", {"n": number}, found)
        assert 4 * MIB <= journals.used < 9.1 * MIB
    assert Replay(journal).answer(call("put", {"n": 3}), "write") == answer("x" * MIB)


def _has(journals: Journals, run_id: str) -> bool:
    try:
        return journals.find(run_id, "me").run_id == run_id
    except (UnknownError, InvalidRequestError):
        return False


def test_a_journal_answers_many_calls_that_are_alike_as_quickly_as_others() -> None:
    """Ten thousand of one kind; looked up in the whole list each time it would take minutes."""
    journal = RunJournal()
    for _ in range(10_000):
        put(journal, "put", {}, answer())
    replay = Replay(journal)
    found = [replay.answer(call("put", {}), "write") for _ in range(10_000)]
    assert None not in found
    assert replay.answer(call("put", {}), "write") is None
    assert list(replay.left()) == []
