"""Claude Code's lists of accepted and rejected project servers."""

from __future__ import annotations

import pytest

from bridge.discovery.user_lists import Approvals


def added(lists: dict[str, object], *, may_approve: bool = True) -> tuple[Approvals, list[str]]:
    found = Approvals()
    said = found.add(lists, path="/s.json", prefix="projects./p", may_approve=may_approve)
    return found, [f"{each.key}: {each.reason}" for each in said]


def test_names_match_as_claude_code_folds_them() -> None:
    lists: dict[str, object] = {"enabledMcpjsonServers": ["my server"]}
    found, said = added({**lists, "disabledMcpjsonServers": ["b.c"]})
    assert [found.approves(name) for name in ("my_server", "my server", "mine")] == [1, 1, 0]
    assert found.rejected == {"b_c": "/s.json"}
    assert said == []


def test_a_file_that_may_not_approve_still_rejects_and_the_first_that_does_is_named() -> None:
    lists = {"enabledMcpjsonServers": ["a"], "disabledMcpjsonServers": ["b"]}
    found, _ = added({**lists, "enableAllProjectMcpServers": True}, may_approve=False)
    assert not [*found.add({"disabledMcpjsonServers": ["b"]}, path="/2", may_approve=True)]
    assert not found.approves("a")
    assert found.rejected == {"b": "/s.json"}


@pytest.mark.parametrize(("value", "approved"), [(True, 1), ("true", 0), (1, 0), (None, 0)])
def test_only_true_approves_everything(value: object, approved: int) -> None:
    assert added({"enableAllProjectMcpServers": value})[0].approves("any") is bool(approved)


def test_lists_of_the_wrong_type_are_ignored_with_a_warning() -> None:
    found, said = added({"enabledMcpjsonServers": "a", "disabledMcpjsonServers": ["b", 1]})
    assert found == Approvals()
    assert said == [
        "projects./p.enabledMcpjsonServers: must be a list of server names, not a string",
        (
            "projects./p.disabledMcpjsonServers: must be a list of server names; it has members "
            "that are not strings"
        ),
    ]
