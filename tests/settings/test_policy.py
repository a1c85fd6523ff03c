"""The `[policy]` of `config.toml`: what it means, and where its mistakes are."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.settings.policy import LETHAL, PolicySpec, parse_policy
from tests.golden_texts import assert_golden

PLACE = "config.toml: policy"

EVERYTHING = """
pin = false
[defaults]
write = "deny"
[[rules]]
name = "no force pushes"
server = "git*"
tool = ["push", "git_push"]
effect = "write"
action = "deny"
reason = "history is shared"
[rules.when]
force = true
"branch" = { glob = "main*" }
"to.*" = { in = ["a@x", "b@x"] }
path = { under = "/srv/data/" }
[[rules]]
name = "small payments"
action = "allow"
digest = "sha256:%s"
[rules.when]
"order.total" = { gt = 0, le = 9.5 }
note = { present = false }
"a\\\\.b" = { not = { is = "x" } }
c = { not = 1 }
[servers.github]
trust = true
labels = ["private-data"]
[servers.github.tools."create_*"]
effect = "write"
labels = ["exfiltration"]
[[flow]]
name = "mail to the web"
after = ["untrusted-input"]
after_servers = "mail*"
to = ["exfiltration"]
to_servers = ["slack", "http*"]
action = "ask"
[budgets]
run_calls = 500
run_bytes = "50m"
server_calls = 200
per_minute = { "github" = 60, "*" = 600 }
[privacy]
detect = ["email", "card"]
servers = ["crm"]
reveal_to = []
""" % ("0" * 64)


def _parse(text: str) -> PolicySpec:
    return parse_policy(tomllib.loads(text), PLACE)


def test_everything_that_a_policy_may_say_is_read() -> None:
    spec = _parse(EVERYTHING)
    assert spec.present
    document = json.dumps(asdict(spec), default=sorted)
    assert_golden(Path(__file__).with_name("policy.json"), json.loads(document))


def test_no_table_and_an_empty_one_are_different_things() -> None:
    assert parse_policy(None, PLACE) == PolicySpec()
    empty = parse_policy({}, PLACE)
    assert empty.present
    assert empty.flows == (LETHAL,)
    assert empty.defaults["untrusted"] == "ask"


def test_the_rule_on_the_lethal_combination_can_be_changed_by_its_name() -> None:
    [rule] = _parse('[[flow]]\nname = "lethal-combination"\naction = "deny"').flows
    assert (rule.action, rule.after, rule.to) == ("deny", LETHAL.after, LETHAL.to)
    assert rule.reason == LETHAL.reason


def test_a_rule_is_the_same_wherever_it_stands() -> None:
    """An answer "always" inserts a rule before another and then compares it."""
    rule = '[[rules]]\nname = "b"\naction = "deny"\n'
    before = '[[rules]]\nname = "a"\ntool = "x"\naction = "allow"\n'
    assert _parse(before + rule).rules[1] == _parse(rule).rules[0]


def test_a_stricter_rule_that_never_gets_a_call_is_a_mistake() -> None:
    allow = '[[rules]]\nname = "all"\nserver = "git*"\naction = "allow"\n'
    deny = '[[rules]]\nname = "none"\nserver = "github"\ntool = "push"\naction = "deny"\n'
    with pytest.raises(SettingsError, match=r"rules\[2\] \('none'\) never applies: 'all'"):
        _parse(allow + deny)
    # Some of its calls are not that rule's, or it would not be stricter.
    _parse(deny + allow)
    _parse(allow + 'effect = "read"\n' + deny)
    _parse(allow + "when = { a = 1 }\n" + deny)
    _parse(allow + deny.replace("github", "*"))
    _parse(allow + deny.replace("deny", "allow"))


def test_questions_and_skills_alone_make_no_policy_for_calls() -> None:
    usual = parse_policy(None, "p")
    assert (usual.elicitation, usual.sampling, usual.skills) == ("allow", "allow", "ask")
    table = {"elicitation": "deny", "sampling": "ask", "skills": "deny"}
    alone = parse_policy(table, "p")
    assert (alone.elicitation, alone.sampling, alone.skills) == ("deny", "ask", "deny")
    assert not alone.present
    assert parse_policy({"skills": "deny", "pin": True}, "p").present
    own = parse_policy({"servers": {"shop": {"elicitation": "deny", "sampling": "ask"}}}, "p")
    assert own.present
    assert (own.servers[0].elicitation, own.servers[0].sampling) == ("deny", "ask")
