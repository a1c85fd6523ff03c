"""What is known of a session beside its state."""

from __future__ import annotations

from dataclasses import replace

from bridge.engine.sessions.checkpoints import Saved
from bridge.engine.sessions.record import Record, new_identity
from bridge.gate.flow import FlowState


def test_what_another_bridge_saved_meanwhile_counts_as_read() -> None:
    """The state is restored as it is then, and may hold what that bridge's runs have read."""
    flow = FlowState()
    flow.note("mail", "read", frozenset({"private-data"}))
    identity = new_identity("ada", "work")
    saved = Saved(session_id=identity.session_id, name="work", run=2)
    record = Record(identity)
    held = record.flow
    held.note("mail", "list", frozenset())
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
