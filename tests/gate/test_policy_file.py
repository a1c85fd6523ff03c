"""What the audit log knows a policy by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.gate.policy import policy_digest
from bridge.settings.policy import Condition, PolicySpec, Rule


def test_a_policys_digest_changes_with_its_meaning_alone() -> None:
    def spec(**fields: Any) -> PolicySpec:
        when = (Condition(path=("a", "*"), test="in", value=["x"]),)
        rule = Rule(name="r", action="deny", effects=frozenset({"read", "write"}), when=when)
        return PolicySpec(present=True, rules=(rule,), **fields)

    first = spec()
    assert policy_digest(first) == policy_digest(spec(path=Path("/elsewhere")))
    assert policy_digest(first) != policy_digest(spec(pin=False))
    other = Condition(path=("b", "*"), test="in", value=["x"])
    changed = PolicySpec(present=True, rules=(Rule(name="r", action="deny", when=(other,)),))
    assert policy_digest(first) != policy_digest(changed)
    assert policy_digest(PolicySpec()) == ""
