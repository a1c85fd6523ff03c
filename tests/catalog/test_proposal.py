"""A proposed policy says what each tool is taken to do, and parses whatever servers are called."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.policy_proposal import propose
from bridge.gate.policy import CallFacts, Policy
from bridge.model import Tool
from bridge.settings.policy import Budgets, PolicySpec, parse_policy

READS = {"readOnlyHint": True}
WRITES = {"readOnlyHint": False, "destructiveHint": False}
DESTROYS = {"destructiveHint": True}


def _tools(server: str, **named: Mapping[str, bool]) -> tuple[Tool, ...]:
    return tuple(Tool(server=server, name=n, annotations=a) for n, a in named.items())


def _spec(text: str) -> PolicySpec:
    return parse_policy(tomllib.loads(text)["policy"], "config.toml: policy")


def _propose_for(server: str, tool: str, annotations: Mapping[str, bool]) -> tuple[str, list[str]]:
    [described] = _tools(server, **{tool: annotations})
    policy = Policy(_spec(propose({server: [described]}, {})))
    decision = policy.decide(CallFacts(server=server, tool=tool, definition=described))
    assert decision.action == ("allow" if decision.effect == "read" else "ask")
    return decision.effect, sorted(decision.labels)


def test_budgets_are_proposed_but_not_in_force() -> None:
    text = propose({"git": _tools("git", git_status=READS)}, {})
    assert _spec(text).budgets == Budgets()
    commented = text.partition("# [policy.budgets]\n")[2].partition("\n\n")[0]
    lines = [line.removeprefix("# ") for line in commented.splitlines()]
    spec = _spec("\n".join([text, "[policy.budgets]", *lines]))
    assert spec.budgets == Budgets(
        run_calls=500, run_bytes=50 << 20, server_calls=200, per_minute=(("*", 600),)
    )
    assert spec.servers == _spec(text).servers


@pytest.mark.parametrize(
    ("server", "tool", "annotations", "effect", "labels"),
    [
        ("git", "git_status", {}, "read", ["private-data"]),
        ("git", "git_create_branch", WRITES, "write", []),
        ("everything", "get-env", READS, "read", ["private-data"]),
        ("git", "git_push", {}, "write", ["exfiltration"]),
        ("fetch", "fetch", READS, "read", ["exfiltration", "untrusted-input"]),
        ("gmail", "search_messages", {}, "read", ["private-data", "untrusted-input"]),
        ("gmail", "send_message", {}, "write", ["exfiltration"]),
        ("gmail", "send_message", READS, "write", ["exfiltration"]),
        ("time", "convert_time", READS, "read", []),
        ("time", "convert_time", {}, "write", []),
        ("github", "get_issue", READS, "read", ["untrusted-input"]),
        ("github", "create_issue", {}, "write", ["exfiltration"]),
        ("filesystem", "read_file", {}, "read", ["private-data"]),
        ("filesystem", "create_directory", {}, "write", []),
        ("postgres", "query", {}, "read", ["private-data"]),
        ("calendar", "listEvents", {}, "read", ["private-data"]),
        ("db", "drop_table", READS, "destructive", []),
        ("db", "vacuum", {}, "write", []),
        ("db", "vacuum", DESTROYS, "destructive", []),
        ("db", "vacuum", READS, "read", ["private-data"]),
        ("x", "get_and_delete", WRITES, "destructive", []),
        ("x", "get_it", {"readOnlyHint": True, "openWorldHint": True}, "read", ["untrusted-input"]),
        ("x", "run", {"openWorldHint": True}, "write", ["exfiltration"]),
    ],
)
def test_a_tool_is_judged_by_its_name_and_its_annotations_whichever_is_stricter(
    server: str, tool: str, annotations: Mapping[str, bool], effect: str, labels: list[str]
) -> None:
    assert _propose_for(server, tool, annotations) == (effect, labels)


def test_a_tool_that_comes_later_is_vouched_for_by_no_line_of_others() -> None:
    tools = _tools("s", **{f"get_{n}": READS for n in "abcd"})
    policy = Policy(_spec(propose({"s": tools}, {})))
    [later] = _tools("s", get_e=READS)
    decision = policy.decide(CallFacts(server="s", tool="get_e", definition=later))
    assert (decision.action, decision.rule) == ("ask", "default for untrusted tools")


def test_a_tool_is_a_line_that_says_why() -> None:
    text = propose({"mail": _tools("mail", send=READS, list=READS)}, {"dead": "it did not\nstart"})
    assert (
        """
[policy.servers.mail]  # 2 tools
trust = false  # true believes all that it says of its own tools, now and later

[policy.servers.mail.tools]
send = { effect = "write", labels = ["exfiltration"] }  # 'send' is in its name, though its server \
says 'read'
#   exfiltration: what 'send' is given may be seen by others
list = { effect = "read", labels = ["untrusted-input", "private-data"] }  # its server says so \
(readOnlyHint true)
#   untrusted-input: what 'mail' returns may be written by anybody
#   private-data: 'mail'
"resources/read" = { labels = ["untrusted-input", "private-data"] }  # as its tools have them
"""
        in text
    )
    assert "# dead is left out, as it did not say which tools it has: it did not start\n" in text


NAMES = st.text(min_size=1, max_size=30) | st.sampled_from(
    [
        "a*",
        "a?",
        "a\\",
        '"',
        "a\n[policy]\npin = 3",
        "\x7f",
        "\0",
        "\ud800",
        "]",
        "#",
        "get_",
        "é",
        "a.b",
    ]
    + ["resources/read", "prompts/get", "mail"]
)


@given(st.dictionaries(NAMES, st.lists(NAMES, max_size=5, unique=True), max_size=3))
def test_it_parses_whatever_servers_and_tools_are_called(
    servers: Mapping[str, Sequence[str]],
) -> None:
    described = {
        server: [Tool(server=server, name=name, annotations=READS) for name in names]
        for server, names in servers.items()
    }
    spec = _spec(propose(described, dict.fromkeys(servers, "it is\r\nodd \u202e")))
    assert all(not server.trust for server in spec.servers)
    assert len(spec.servers) == sum({"\0", "\ud800"}.isdisjoint(server) for server in servers)
