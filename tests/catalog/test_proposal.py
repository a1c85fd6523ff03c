"""A proposed policy says what each tool is taken to do, and parses whatever servers are called."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.proposal import propose
from bridge.gate.decision import CallFacts
from bridge.gate.policy import Policy
from bridge.model import Tool
from bridge.settings.policy import PolicySpec, parse_policy

READS = {"readOnlyHint": True}
WRITES = {"readOnlyHint": False, "destructiveHint": False}
DESTROYS = {"destructiveHint": True}


def _tools(server: str, **named: Mapping[str, bool]) -> tuple[Tool, ...]:
    return tuple(Tool(server=server, name=n, annotations=a) for n, a in named.items())


def _spec(text: str) -> PolicySpec:
    return parse_policy(tomllib.loads(text)["policy"], "config.toml: policy")


def _proposed(server: str, tool: str, annotations: Mapping[str, bool]) -> tuple[str, list[str]]:
    """Return a tool's effect and labels as the policy has them, through the policy itself."""
    [described] = _tools(server, **{tool: annotations})
    policy = Policy(_spec(propose({server: [described]}, {})))
    decision = policy.decide(CallFacts(server=server, tool=tool, definition=described))
    assert decision.action == ("allow" if decision.effect == "read" else "ask")
    return decision.effect, sorted(decision.labels)


@pytest.mark.parametrize(
    ("server", "tool", "annotations", "effect", "labels"),
    [
        ("git", "git_status", {}, "read", []),
        ("git", "git_push", {}, "write", ["exfiltration"]),
        ("fetch", "fetch", READS, "read", ["exfiltration", "untrusted-input"]),
        ("gmail", "search_messages", {}, "read", ["private-data", "untrusted-input"]),
        ("gmail", "send_message", {}, "write", ["exfiltration"]),
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
    assert _proposed(server, tool, annotations) == (effect, labels)


def test_tools_of_one_kind_and_beginning_share_a_line_unless_another_kind_begins_so_too() -> None:
    tools = _tools(
        "s",
        **{f"get_{n}": READS for n in "abcd"},
        **{f"set_{n}": WRITES for n in "abc"},
        set_delete=DESTROYS,
    )
    text = propose({"s": tools}, {})
    assert '[policy.servers.s.tools."get_*"]  # get_a, get_b, get_c and 1 more' in text
    assert '[policy.servers.s.tools."set_a"]' in text
    policy = Policy(_spec(text))
    for tool in tools:
        decision = policy.decide(CallFacts(server="s", tool=tool.name, definition=tool))
        expected = "read" if tool.name.startswith("get") else "write"
        assert decision.effect == ("destructive" if tool.name == "set_delete" else expected)


def test_each_line_says_why_and_that_it_is_to_be_checked() -> None:
    text = propose({"mail": _tools("mail", send=READS)}, {"dead": "it did not\nstart"})
    assert "proposed because of 'send' in its name, though its server says 'read'; check" in text
    assert "exfiltration: because what 'send' is given may be seen by others; check" in text
    assert "# dead is left out, as it did not say which tools it has: it did not start\n" in text
    assert "trust = false" in text


NAMES = st.text(min_size=1, max_size=30) | st.sampled_from(
    ["a*", "a?", "a\\", '"', "a\n[policy]\npin = 3", "\x7f", "\ud800", "]", "#", "get_", "é", "a.b"]
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
    assert len(spec.servers) == sum("\ud800" not in server for server in servers)
