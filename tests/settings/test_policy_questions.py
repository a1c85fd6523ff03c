"""What a policy says of servers' questions."""

from __future__ import annotations

import pytest

from bridge.errors import SettingsError
from bridge.settings.policy import parse_policy


def test_servers_questions_are_passed_on_and_alone_make_no_policy_for_calls() -> None:
    """As with skills."""
    assert (parse_policy(None, "p").elicitation, parse_policy(None, "p").sampling) == (
        "allow",
        "allow",
    )
    alone = parse_policy({"elicitation": "deny", "sampling": "ask", "skills": "deny"}, "p")
    assert (alone.elicitation, alone.sampling, alone.present) == ("deny", "ask", False)
    assert parse_policy({}, "p").present
    own = parse_policy({"servers": {"shop": {"elicitation": "deny", "sampling": "ask"}}}, "p")
    assert own.present
    assert (own.servers[0].elicitation, own.servers[0].sampling) == ("deny", "ask")


@pytest.mark.parametrize(
    "table",
    [
        {"elicitation": "ask"},
        {"sampling": "maybe"},
        {"servers": {"shop": {"elicitation": "ask"}}},
        {"servers": {"shop": {"sampling": True}}},
    ],
)
def test_what_is_no_action_on_a_question_is_refused(table: object) -> None:
    """An elicitation is a question already, so nobody is asked about it."""
    with pytest.raises(SettingsError, match="elicitation|sampling"):
        parse_policy(table, "p")
