"""What a policy says of saved skills."""

from __future__ import annotations

import pytest

from bridge.errors import SettingsError
from bridge.settings.policy import parse_policy


def test_skills_are_asked_about_and_alone_make_no_policy_for_calls() -> None:
    assert parse_policy(None, "p").skills == "ask"
    alone = parse_policy({"skills": "allow"}, "p")
    assert (alone.skills, alone.present) == ("allow", False)
    assert parse_policy({"skills": "deny", "pin": True}, "p").present
    assert parse_policy({}, "p").present
    with pytest.raises(SettingsError, match="skills"):
        parse_policy({"skills": "maybe"}, "p")
