"""Flow rules, and requests that the bridge answers itself, once for a run and its retries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ApprovalNeededError, AuditError, CallDeniedError, LibraryError
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.bridge_calls import BridgeCalls, ProvenanceTracker
from bridge.gate.journal import Journals, Replay, RunJournal
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.policy import CallFacts, Decision, Flow, FlowState, Policy
from bridge.gate.question import question
from bridge.gate.services import GateContext
from bridge.model import CallCount, Json, Provenance, RetriedReads
from bridge.settings.policy import (
    EXFILTRATION,
    LETHAL,
    PRIVATE_DATA,
    UNTRUSTED_INPUT,
    FlowRule,
    PolicySpec,
    ServerPolicy,
    matcher,
)
from tests.audit_rig import records
from tests.raised import raises_code


class Notes:
    def __init__(self) -> None:
        self.journals = Journals()
        self.made: list[str] = []
        self.runs = 0
        self.gates: list[Gate] = []

    def run(self, retry_of: str = "", reads: RetriedReads = "replay") -> BridgeCalls:
        self.runs += 1
        name = str(self.runs)
        replay = None
        if retry_of:
            replay = Replay(self.journals.find(retry_of, "me"), reads, run_id=name)
        oversight = GateContext(journal=self.journals.begin(name, "me", replay), replay=replay)
        self.gates.append(Gate(Grant(servers=None, calls=5), _do_nothing, oversight))
        return BridgeCalls(oversight, self.gates[-1])

    async def answer(self, params: Mapping[str, Json]) -> Json:
        self.made.append(params["key"])
        return len(self.made)


async def _do_nothing(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    return {}


async def test_a_retry_gets_the_answers_of_its_first_run_and_does_the_rest() -> None:
    notes = Notes()
    own = notes.run()
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 3
    own = notes.run("1")
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 3
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 4
    assert notes.gates[-1].tally.counts("replayed") == (
        CallCount(server="runtime", tool="save", count=2),
        CallCount(server="runtime", tool="load", count=1),
    )
    # What is changed after it was read would not be the same change.
    own = notes.run("2", reads="refresh")
    assert await own.make("load", {"key": "a"}, "read", notes.answer) == 2
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    assert notes.made == ["a"] * 4


async def test_what_failed_is_done_again_and_what_was_cut_off_is_not() -> None:
    notes = Notes()
    own = notes.run()

    async def fail(params: Mapping[str, Json]) -> Json:
        raise LibraryError("the disk is full")

    with pytest.raises(LibraryError):
        await own.make("save", {"key": "a"}, "write", fail)
    with anyio.CancelScope() as scope:

        async def hang(params: Mapping[str, Json]) -> Json:
            scope.cancel()
            await anyio.sleep_forever()

        await own.make("save", {"key": "b"}, "write", hang)
    own = notes.run("1")
    assert await own.make("save", {"key": "a"}, "write", notes.answer) == 1
    with raises_code("outcome_unknown", match="runtime.save"):
        await own.make("save", {"key": "b"}, "write", notes.answer)
    assert [count.tool for count in notes.gates[-1].tally.counts("unknown")] == ["save"]
    assert notes.made == ["a"]


def _own(calls: int = 5, **parts: Any) -> tuple[BridgeCalls, Gate]:
    oversight = GateContext(**parts)
    gate = Gate(Grant(servers=None, calls=calls), _do_nothing, oversight)
    return BridgeCalls(oversight, gate), gate


@pytest.mark.guarantee("kept-through-the-gate")
async def test_changes_are_counted_and_recorded(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("in the way")
    own, _ = _own(audit=RunAudit(AuditLog(tmp_path / "audit"), "r"))
    with pytest.raises(AuditError):
        async with own.permitted("save_memory", {"key": "a"}, "write"):
            pytest.fail("it was done")
    own, _ = _own(calls=1)
    async with own.permitted("save_memory", {"key": "a"}, "write"):
        pass
    with raises_code("call_budget"):
        async with own.permitted("save_memory", {"key": "a"}, "write"):
            pytest.fail("it was done")


async def test_a_flow_rule_may_be_about_what_is_kept() -> None:
    rule = FlowRule(
        name="mail is not kept",
        action="deny",
        after=frozenset({"private-data"}),
        to_servers=("runtime",),
    )
    state = FlowState()
    policy = Policy(PolicySpec(present=True, flows=(rule,)))
    own, gate = _own(policy=policy, flow=Flow((rule,)), flow_state=state)
    async with own.permitted("save_memory", {"key": "a"}, "write"):
        pass
    state.add_call("mail", "read", frozenset({"private-data"}))
    with pytest.raises(CallDeniedError, match=r"runtime.save_memory is not allowed.*mail.read"):
        async with own.permitted("save_memory", {"key": "a"}, "write"):
            pytest.fail("it was done")
    assert [refused.tool for refused in gate.tally.counts("refused")] == ["save_memory"]


async def test_what_has_to_be_asked_is_asked_whatever_the_policy_allows() -> None:
    own, _ = _own()
    ask = Decision(action="ask", rule="skill 'a' is there", reason="it is a person's")
    with pytest.raises(ApprovalNeededError, match="it is a person's") as caught:
        async with own.permitted("delete_skill", {"name": "a"}, "destructive", ask, "Leave it."):
            pytest.fail("it was done")
    assert "Leave it." in str(caught.value)


@pytest.mark.guarantee("kept-through-the-gate")
async def test_no_server_can_be_called_as_the_bridge_itself() -> None:
    _, gate = _own()
    with pytest.raises(CallDeniedError, match="'runtime' is the bridge itself"):
        await gate.call("runtime", "save_memory", {})


LABELS = (UNTRUSTED_INPUT, PRIVATE_DATA)
OPEN = {"read": "allow", "write": "allow", "destructive": "allow", "untrusted": "allow"}
DENIED = FlowRule(
    name="stays here",
    action="deny",
    after=frozenset({PRIVATE_DATA}),
    to=frozenset({EXFILTRATION}),
    reason="it is private",
)
SENDS = ServerPolicy(servers="chat", labels=frozenset({EXFILTRATION}))


def _spec(*flows: FlowRule) -> PolicySpec:
    return PolicySpec(present=True, defaults=OPEN, servers=(SENDS,), flows=flows)  # type: ignore[arg-type]


def _context(run_id: str = "r1", *flows: FlowRule, policy: bool = True, **more: Any) -> GateContext:
    spec = _spec(*flows) if policy else PolicySpec()
    journal = RunJournal(run_id)
    return GateContext(
        policy=Policy(spec), flow=Flow(flows), journal=journal, flow_state=journal.flow, **more
    )


def test_nothing_is_written_where_there_is_nothing_to_say() -> None:
    for seen in (_context(), _context(policy=False)):
        assert ProvenanceTracker(seen).provenance() is None
    plain = _context(policy=False)
    plain.flow_state.add_call("web", "fetch", frozenset())
    assert ProvenanceTracker(plain).provenance() is None
    seen = _context()
    seen.flow_state.add_call("web", "fetch", frozenset())
    assert ProvenanceTracker(seen).provenance() == Provenance(
        run_id="r1", servers=frozenset({"web"})
    )


async def test_labels_outlive_a_run_for_which_there_was_no_policy() -> None:
    """Who takes the policy out for one program has not cleaned what it passes on."""
    seen = _context("r2", policy=False)
    tracker = ProvenanceTracker(seen)
    await tracker.add("memory 'a'", Provenance(run_id="r1", labels=frozenset(LABELS)))
    passed = tracker.provenance()
    assert passed is not None
    assert (passed.run_id, passed.labels) == ("r2", frozenset(LABELS))


RULES = st.builds(
    FlowRule,
    name=st.just("f"),
    action=st.sampled_from(["ask", "deny"]),
    after=st.frozensets(st.sampled_from(LABELS)),
    after_servers=st.lists(st.sampled_from(["w*", "mail"]), max_size=2).map(tuple),
    to=st.just(frozenset({EXFILTRATION})),
)


CALLS = st.lists(
    st.tuples(st.sampled_from(["web", "mail", "crm"]), st.frozensets(st.sampled_from(LABELS))),
    max_size=4,
)


@given(calls=CALLS, rule=RULES, hops=st.integers(1, 3))
async def test_a_run_that_finds_something_is_judged_as_if_it_had_made_the_calls(
    calls: list[tuple[str, frozenset[str]]], rule: FlowRule, hops: int
) -> None:
    seen = _context("r0", rule)
    for server, labels in calls:
        seen.flow_state.add_call(server, "read", labels)
    out = frozenset({EXFILTRATION})
    own = Flow((rule,)).decide(seen.flow_state, "chat", out)
    for hop in range(hops):
        kept = ProvenanceTracker(seen).provenance()
        # As a store has it.
        kept = None if kept is None else Provenance.of(json.loads(json.dumps(kept.document())))
        seen = _context(f"r{hop + 1}", rule)
        await ProvenanceTracker(seen).add("memory 'a'", kept)
    later = Flow((rule,)).decide(seen.flow_state, "chat", out)
    assert (later is None) == (own is None)
    if later is not None and (rule.after or rule.after_servers):
        assert later.led == (f"memory 'a' (saved by run r{hops - 1})",)


@pytest.mark.parametrize("rule", [DENIED, LETHAL])
async def test_a_refusal_says_what_brought_the_label_and_whose_it_was(rule: FlowRule) -> None:
    seen = _context("r2", rule)
    gate = Gate(Grant(servers=None, calls=10), _do_nothing, seen)
    await gate.call("chat", "send", {})
    await ProvenanceTracker(seen).add(
        "memory 'notes'", Provenance(run_id="abc123", labels=frozenset(LABELS))
    )
    with pytest.raises((CallDeniedError, ApprovalNeededError)) as caught:
        await gate.call("chat", "send", {})
    assert rule.name in caught.value.message
    assert "Earlier: \"memory 'notes' (saved by run abc123)\"." in caught.value.message


async def test_of_what_no_one_knows_every_rule_begins_and_names_it() -> None:
    state = FlowState()
    assert state.add_provenance("file x (saved by an unknown run)", Provenance(anything=True))
    for rule in (DENIED, FlowRule(name="s", action="ask", after_servers=("m*",), to=DENIED.to)):
        decision = Flow((rule,)).decide(state, "chat", DENIED.to)
        assert decision is not None
        assert decision.led == ("file x (saved by an unknown run)",)
    back = FlowState.of(json.loads(json.dumps(state.document())))
    assert back.document() == state.document()
    assert back.list_causes((), None) == ("file x (saved by an unknown run)",)
    passed = back.provenance("r")
    assert passed is not None
    assert passed.anything


def test_a_thing_found_often_is_one_thing() -> None:
    state, made = FlowState(), Provenance(labels=frozenset(LABELS), servers=frozenset({"crm"}))
    assert state.add_provenance("memory 'a'", made)
    assert not state.add_provenance("memory 'a'", made)
    assert not state.add_provenance("memory 'b'", made)
    assert state.list_causes(LABELS, matcher("crm")) == ("memory 'a'", "memory 'b'")


async def test_it_is_on_record_once_that_something_came(tmp_path: Path) -> None:
    seen = _context("r2", DENIED, audit=RunAudit(AuditLog(tmp_path), "r2"))
    tracker = ProvenanceTracker(seen)
    servers, labels = frozenset({"crm", "a"}), frozenset({PRIVATE_DATA})
    for _ in range(3):
        await tracker.add("memory 'a'", Provenance(run_id="r1", labels=labels, servers=servers))
    await tracker.add("memory 'plain'", None)
    await tracker.add_labels("directory 'mail'", frozenset(LABELS))
    await tracker.add_labels("directory 'plain'", frozenset())
    frame = ("seq", "time", "prev", "hash")
    told = [{key: one[key] for key in one if key not in frame} for one in records(tmp_path)]
    both, crm = {"kind": "found", "run": "r2"}, {"savedBy": "r1", "from": ["a", "crm"]}
    assert told == [
        {**both, "what": "memory 'a'", "labels": [PRIVATE_DATA], **crm},
        {**both, "what": "directory 'mail'", "labels": sorted(LABELS)},
    ]


async def test_a_name_that_a_program_chose_does_nothing_in_a_question() -> None:
    seen = _context("r2", LETHAL)
    name = "a\n\x1b[2J\u202e\udc80', crm.read, " + "x" * 500
    await ProvenanceTracker(seen).add(
        f"memory {name}", Provenance(run_id="f" * 40, labels=frozenset(LABELS))
    )
    decision = Flow((LETHAL,)).decide(seen.flow_state, "chat", LETHAL.to)
    assert decision is not None
    [led] = decision.led
    assert led.isprintable()
    assert len(led) < 60 + 60
    asked = question(CallFacts(server="chat", tool="send"), [decision], ["call"], {})
    [line] = [line for line in str(asked["message"]).split("\n") if "Reason: " in line]
    assert line.endswith(f'(saved by run {"f" * 40})". Effect: write')


async def test_a_second_try_does_not_get_what_is_not_recorded(tmp_path: Path) -> None:
    place = tmp_path / "audit"
    place.write_text("no directory")
    audit = RunAudit(AuditLog(place), "r2")
    tracker = ProvenanceTracker(_context("r2", DENIED, audit=audit))
    made = Provenance(run_id="r1", labels=frozenset({PRIVATE_DATA}))
    for _ in range(2):
        with pytest.raises(AuditError):
            await tracker.add("memory 'a'", made)
    place.unlink()
    await tracker.add("memory 'a'", made)
    assert [one["what"] for one in records(place) if one["kind"] == "found"] == ["memory 'a'"]


INPUT, PRIVATE, OUT = (
    frozenset({label}) for label in ("untrusted-input", "private-data", "exfiltration")
)
NONE: frozenset[str] = frozenset()


def _rule(name: str = "f", **fields: object) -> FlowRule:
    return FlowRule(**{"name": name, "action": "ask", **fields})  # type: ignore[arg-type]


def _after(*calls: tuple[str, frozenset[str]]) -> FlowState:
    """Return the state after these tools of servers, with their labels."""
    state = FlowState()
    for name, labels in calls:
        server, _, tool = name.partition(".")
        state.add_call(server, tool, labels)
    return state


WEB, MAIL, ALL = ("web.fetch", INPUT), ("mail.read", PRIVATE), ("mail.read", INPUT | PRIVATE)
SERVERS = _rule(after_servers=("mail*", "web"), to_servers=("http*",))
BOTH = _rule(after=INPUT, after_servers=("mail*",), to=OUT, to_servers=("slack",))


@pytest.mark.parametrize(
    ("rule", "calls", "server", "labels", "causes"),
    [
        (LETHAL, [], "slack", OUT, None),
        (LETHAL, [WEB], "slack", OUT, None),
        (LETHAL, [WEB, MAIL], "mail", PRIVATE | INPUT, None),
        (LETHAL, [WEB, MAIL], "slack", OUT | {"other"}, ("mail.read", "web.fetch")),
        (LETHAL, [ALL, ALL], "slack", OUT, ("mail.read (2 times)",)),
        (LETHAL, [], "all", INPUT | PRIVATE | OUT, None),
        (SERVERS, [("maps.find", NONE)], "http-2", NONE, None),
        (SERVERS, [("mailbox.read", NONE)], "slack", OUT, None),
        (SERVERS, [("mailbox.read", NONE)], "http-2", NONE, ("mailbox.read",)),
        (BOTH, [WEB], "slack", OUT, None),
        (BOTH, [WEB, ("mail.read", NONE)], "slack", NONE, ("web.fetch", "mail.read")),
        (BOTH, [WEB, ("mail.read", NONE)], "other", OUT, ("web.fetch", "mail.read")),
        (BOTH, [WEB, ("mail.read", NONE)], "other", NONE, None),
    ],
)
def test_a_rule_decides_on_a_call_after_all_that_it_names(
    rule: FlowRule,
    calls: list[tuple[str, frozenset[str]]],
    server: str,
    labels: frozenset[str],
    causes: tuple[str, ...] | None,
) -> None:
    decision = Flow((rule,)).decide(_after(*calls), server, labels)
    assert decision == (
        causes
        and Decision(
            action="ask",
            rule=f"flow rule '{rule.name}'",
            reason=rule.reason,
            labels=labels,
            led=causes,
        )
    )


def test_the_first_flow_rule_that_matches_decides() -> None:
    exception = _rule("ours", action="allow", after=INPUT, to_servers=("slack",))
    flow = Flow((exception, _rule("all", action="deny", after=INPUT, to=OUT)))
    decisions = [flow.decide(_after(WEB), server, OUT) for server in ("slack", "http")]
    assert [each and (each.action, each.rule) for each in decisions] == [
        ("allow", "flow rule 'ours'"),
        ("deny", "flow rule 'all'"),
    ]


def test_what_led_to_a_call_is_listed_to_a_bound() -> None:
    state = _after(*((f"web.fetch{number}", INPUT) for number in range(5 + 3)))
    listed = [f"web.fetch{number}" for number in range(5)]
    assert state.list_causes(INPUT, None) == (*listed, "3 more (untrusted-input)")


def test_the_calls_of_another_state_are_added() -> None:
    applied = _after(WEB, MAIL)
    applied.absorb(_after(WEB))
    assert "web.fetch (2 times)" in applied.list_causes(INPUT, None)


def test_what_a_session_has_read_is_the_same_once_it_comes_back() -> None:
    state = _after(ALL, *((f"mail.tool-{number}", PRIVATE) for number in range(5 + 2)))
    back = FlowState.of(json.loads(json.dumps(state.document())))
    assert back.document() == state.document()
    decision, again = (Flow((LETHAL,)).decide(each, "slack", OUT) for each in (state, back))
    assert decision == again is not None
    assert Flow((_rule(after_servers=("web",), to_servers=("x",)),)).decide(back, "x", NONE) is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"labels": {}, "servers": {}},
        {"labels": {"a": 1}, "servers": {}, "unknown": {}},
        {"labels": {"a": [{}]}, "servers": {}, "unknown": {}},
        {"labels": {}, "servers": {}, "unknown": []},
        {"labels": {}, "servers": {}, "unknown": [{}, 0]},
    ],
)
def test_an_unreadable_state_has_read_everything(document: object) -> None:
    """Else it would take no more than a damaged file to forget where text came from."""
    state = FlowState.of(document)
    assert Flow((LETHAL,)).decide(state, "slack", OUT) is not None
    assert Flow((_rule(after_servers=("w",), to_servers=("x",)),)).decide(state, "x", NONE)
