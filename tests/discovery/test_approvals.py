"""Claude Code's lists of accepted and rejected project servers."""

from __future__ import annotations

from bridge.discovery.user_lists import Approvals, join_approvals, read_approvals


def test_names_match_as_claude_code_folds_them() -> None:
    found, said = read_approvals(
        {"enabledMcpjsonServers": ["my server"], "disabledMcpjsonServers": ["b.c"]},
        path="/s.json",
        prefix="",
        may_approve=True,
    )
    assert found.approves("my_server")
    assert found.approves("my server")
    assert not found.approves("mine")
    assert found.rejected_in("b_c") == "/s.json"
    assert found.rejected_in("my server") == ""
    assert said == ()


def test_a_file_that_may_not_approve_still_rejects() -> None:
    found, _ = read_approvals(
        {
            "enabledMcpjsonServers": ["a"],
            "enableAllProjectMcpServers": True,
            "disabledMcpjsonServers": ["b"],
        },
        path="/s.json",
        prefix="",
        may_approve=False,
    )
    assert not found.approves("a")
    assert found.rejected_in("b") == "/s.json"


def test_only_true_approves_everything() -> None:
    for value, approved in ((True, True), ("true", False), (1, False), (None, False)):
        found, _ = read_approvals(
            {"enableAllProjectMcpServers": value}, path="/s", prefix="", may_approve=True
        )
        assert found.approves("any") is approved


def test_lists_of_the_wrong_type_are_ignored_with_a_warning() -> None:
    found, said = read_approvals(
        {"enabledMcpjsonServers": "a", "disabledMcpjsonServers": ["b", 1]},
        path="/s.json",
        prefix="projects./p",
        may_approve=True,
    )
    assert found == Approvals()
    assert [(warning.key, warning.reason) for warning in said] == [
        ("projects./p.enabledMcpjsonServers", "must be a list of server names, not a string"),
        (
            "projects./p.disabledMcpjsonServers",
            "must be a list of server names; it has members that are not strings",
        ),
    ]


def test_joined_answers_keep_every_rejection_and_the_first_file_that_made_it() -> None:
    joined = join_approvals(
        [
            Approvals(approved=frozenset({"a"}), rejected={"x": "/1"}),
            Approvals(rejected={"x": "/2", "y": "/2"}, all_approved=True),
        ]
    )
    assert joined == Approvals(
        approved=frozenset({"a"}), rejected={"x": "/1", "y": "/2"}, all_approved=True
    )
    assert join_approvals([]) == Approvals()
