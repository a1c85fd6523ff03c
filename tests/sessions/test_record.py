"""What is known of a session beside its state, what is believed of its guest, how it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.gate.policy import FlowState
from bridge.model import Loss, RunResult, SessionReport, Variable
from bridge.render.text import session_section
from bridge.sandbox.failure import Ending
from bridge.sessions.checkpoints import MAX_NAME_CHARS, MAX_NAMES, Saved, losses
from bridge.sessions.record import Holdings, Record, holdings

REPORT = SessionReport(session_id="ab" * 16, name="work", run=3, state="kept")
RESULT = RunResult(run_id="r", status="success", summary="Success.")


@pytest.mark.parametrize(
    "entry",
    [None, 3, "x", [], ["a"], ["a", "int"], ["a", 3, 4], [4, "int", 4], {"a": 1}, [["a"], "b", 1]],
)
def test_what_is_no_variable_is_left_out(entry: Any) -> None:
    found = holdings([entry, ["b", "int", 28]], 0)
    assert found.holds == (Variable(name="b", kind="int", size=28),)


@pytest.mark.parametrize("size", [-1, 2**70, True, "1", None, 1.5])
def test_a_size_that_no_one_can_tell_is_none(size: Any) -> None:
    assert holdings([["b", "int", size]], 0).holds[0].size is None


def test_names_are_bounded_in_number_and_length_and_stay_in_their_line() -> None:
    names = [["a\n\x1b[2J" + "b" * 500, "t\ud800" * 500, 1]] * 100
    found = holdings(names, -5)
    assert len(found.holds) == MAX_NAMES
    assert found.more == 100 - MAX_NAMES
    for variable in found.holds:
        assert variable.name.startswith("a\\n\\x1b[2J")
        assert len(variable.name) <= MAX_NAME_CHARS + 3
        variable.kind.encode()
    record = Record("ada", "work")
    record.holdings = found
    assert Record("ada", "work", record.to_save(b"", ())).holdings == found
    assert holdings("no", "many") == Holdings()


def test_what_is_lost_is_told_once_each_and_bounded() -> None:
    said = [["a", "first"], ["b", "c"], ["a", "again"], "no", ["x"], [1, 2]]
    assert losses((Loss(name="a", why="first"),), said) == (
        Loss(name="a", why="first"),
        Loss(name="b", why="c"),
    )
    many = losses([[str(number), "w"] for number in range(500)])
    assert len(many) == 41
    assert many[-1].why == "and 460 more"


@pytest.mark.parametrize(
    ("runs", "saved", "gone", "note"),
    [
        (0, 0, "", ""),
        (2, 2, "", "Restored from what was saved after run 2."),
        (
            *(3, 2, "it crashed"),
            "Restored from what was saved after run 2; what run 3 did is lost: it crashed.",
        ),
        (*(5, 2, ""), "Restored from what was saved after run 2; what runs 3 to 5 did is lost."),
        (
            *(2, 0, "it crashed"),
            "What the session held is lost: it crashed. It began again, with nothing.",
        ),
    ],
)
def test_a_run_in_a_fresh_sandbox_is_told_what_it_begins_with(
    runs: int, saved: int, gone: str, note: str
) -> None:
    record = Record("ada", "work")
    record.runs = runs
    record.lose(gone)
    state = Saved(session_id="s", name="work", run=saved) if saved else None
    assert record._describe_start(Ending(), state)[1] == note


def test_the_text_says_what_a_session_holds_in_a_line() -> None:
    holds = (
        Variable(name="df", kind="DataFrame", size=12_000_000),
        Variable(name="total", kind="int", size=28),
        *(Variable(name=f"v{number}", kind="str") for number in range(10)),
    )
    report = replace(REPORT, holds=holds, more=4)
    text = session_section(replace(RESULT, session=report))
    assert text.startswith('[session "work", run 3] holds df: DataFrame (12 MB), total: int, v0')
    assert text.endswith("and 8 more.")
    assert "\n" not in text
    assert session_section(RESULT) == ""
    assert session_section(replace(RESULT, session=REPORT)).endswith("holds nothing.")
    unnamed = session_section(replace(RESULT, session=replace(REPORT, named=False)))
    assert unnamed.endswith(f'Continue with session="{REPORT.session_id}".')
    lost = replace(REPORT, state="restored", note="Restored.", lost=(Loss(name="f", why="open"),))
    assert session_section(replace(RESULT, session=lost)).splitlines()[1:] == [
        "Restored.",
        "Not restored: f (open).",
    ]


def test_what_was_there_before_is_not_told_again() -> None:
    holds = tuple(Variable(name=name, kind="int") for name in "abcd")
    before = Holdings(holds=(*holds[:3], Variable(name="d", kind="str")))
    fresh = Holdings(holds=holds).beside(before)
    report = replace(REPORT, holds=holds, fresh=fresh)
    label = '[session "work", run 3] holds'
    assert session_section(replace(RESULT, session=report)) == f"{label} 4 names, now also d: int."
    same = replace(report, fresh=())
    assert session_section(replace(RESULT, session=same)) == f"{label} 4 names, as before."
    failed = replace(RESULT, status="error", session=same)
    assert session_section(failed) == f"{label} a: int, b: int, c: int, d: int."
    few = replace(report, holds=holds[:3])
    assert session_section(replace(RESULT, session=few)) == f"{label} a: int, b: int, c: int."


def test_what_another_bridge_saved_meanwhile_counts_as_read() -> None:
    flow = FlowState()
    flow.add_call("mail", "read", frozenset({"private-data"}))
    record = Record("ada", "work")
    saved = Saved(session_id=record.session_id, name="work", run=2)
    held = record.flow
    held.add_call("mail", "list", frozenset())
    record.began_from(replace(saved, facts={"flow": flow.document()}), "")
    assert record.flow is held
    assert held.read({"private-data"})
    # What it knows is not counted again.
    before = held.document()
    record.began_from(replace(saved, facts={"flow": before}), "")
    assert held.document() == before
    record.began_from(None, "it is gone")
    assert held.document() == before
    # Of what says nothing, anything may have been read.
    assert not held.read({"other"})
    record.began_from(saved, "")
    assert held.read({"other"})
