"""The `[policy]` of `config.toml`: what it means, and where its mistakes are."""

from __future__ import annotations

import tomllib

import pytest

from bridge.errors import SettingsError
from bridge.settings.policy import (
    LETHAL,
    Budgets,
    Condition,
    FlowRule,
    PolicySpec,
    Privacy,
    Rule,
    ServerPolicy,
    ToolPolicy,
    parse_policy,
)

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
    """One value for each key of the format."""
    spec = _parse(EVERYTHING)
    assert spec.present
    assert not spec.pin
    assert spec.defaults == {
        "read": "allow",
        "write": "deny",
        "destructive": "ask",
        "untrusted": "ask",
    }
    assert spec.servers == (
        ServerPolicy(
            servers="github",
            trust=True,
            labels=frozenset({"private-data"}),
            tools=(
                ToolPolicy(tools="create_*", effect="write", labels=frozenset({"exfiltration"})),
            ),
        ),
    )
    assert spec.flows == (
        FlowRule(
            name="mail to the web",
            action="ask",
            after=frozenset({"untrusted-input"}),
            to=frozenset({"exfiltration"}),
            after_servers=("mail*",),
            to_servers=("slack", "http*"),
        ),
        LETHAL,
    )
    assert spec.budgets == Budgets(
        run_calls=500,
        run_bytes=50 * 1024**2,
        server_calls=200,
        per_minute=(("github", 60), ("*", 600)),
    )
    assert spec.privacy == Privacy(detect=("email", "card"), servers=("crm",), reveal_to=())


def test_rules_are_read_with_their_conditions() -> None:
    """Every test there is, in every way of writing it."""
    spec = _parse(EVERYTHING)
    assert spec.rules == (
        Rule(
            name="no force pushes",
            action="deny",
            servers=("git*",),
            tools=("push", "git_push"),
            effects=frozenset({"write"}),
            when=(
                Condition(path=("force",), test="is", value=True),
                Condition(path=("branch",), test="glob", value=("main*",)),
                Condition(path=("to", "*"), test="in", value=("a@x", "b@x")),
                Condition(path=("path",), test="under", value=("/srv/data",)),
            ),
            reason="history is shared",
        ),
        Rule(
            name="small payments",
            action="allow",
            when=(
                Condition(path=("order", "total"), test="gt", value=0),
                Condition(path=("order", "total"), test="le", value=9.5),
                Condition(path=("note",), test="present", value=False),
                Condition(path=("a.b",), test="is", value="x", negated=True),
                Condition(path=("c",), test="is", value=1, negated=True),
            ),
            digest="sha256:" + "0" * 64,
        ),
    )
    assert [rule.place for rule in spec.rules] == [f"{PLACE}.rules[1]", f"{PLACE}.rules[2]"]


def test_no_table_and_an_empty_one_are_different_things() -> None:
    """Whoever writes `[policy]` wants one; without, nothing is asked."""
    assert parse_policy(None, PLACE) == PolicySpec()
    empty = parse_policy({}, PLACE)
    assert empty.present
    assert empty.flows == (LETHAL,)
    assert empty.defaults["untrusted"] == "ask"


def test_the_rule_on_the_lethal_combination_can_be_changed_by_its_name() -> None:
    """With its own labels unless others are given."""
    [rule] = _parse('[[flow]]\nname = "lethal-combination"\naction = "deny"').flows
    assert (rule.action, rule.after, rule.to) == ("deny", LETHAL.after, LETHAL.to)
    assert rule.reason == LETHAL.reason


def test_a_rule_is_the_same_wherever_it_stands() -> None:
    """An answer "always" writes one in front of another, and compares what is there then."""
    rule = '[[rules]]\nname = "b"\naction = "deny"\n'
    before = '[[rules]]\nname = "a"\ntool = "x"\naction = "allow"\n'
    assert _parse(before + rule).rules[1] == _parse(rule).rules[0]


RULE = '[[rules]]\nname = "r"\naction = "deny"\n'


def _when(condition: str) -> str:
    return f"{RULE}when = {{ {condition} }}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rule = 1", "policy.rule is an unknown key of a policy. Did you mean rules?"),
        ("pin = 1", "policy.pin must be true or false, not a number"),
        ("defaults = []", "policy.defaults must be a table, not a list"),
        (
            'defaults.wirte = "ask"',
            "policy.defaults.wirte is an unknown key of the defaults. Did you mean",
        ),
        ('defaults.write = "alow"', "policy.defaults.write is 'alow'. Did you mean allow?"),
        ("rules = 1", "policy.rules must be an array of tables, each begun with [[policy.rules]]"),
        ('rules = ["x"]', "policy.rules[1] must be a table, not a text"),
        ('[[rules]]\nname = "r"', "policy.rules[1] needs `action`"),
        ('[[rules]]\naction = "deny"', "policy.rules[1] needs `name`"),
        (RULE + RULE, "policy.rules[2].name is 'r', as is that of policy.rules[1]"),
        (RULE + 'tol = "x"', "policy.rules[1].tol is an unknown key of a rule. Did you mean tool?"),
        (RULE + "tool = [1]", "policy.rules[1].tool must be a text or a list of texts, not a num"),
        (RULE + "tool = []", "policy.rules[1].tool is an empty list"),
        (RULE + 'tool = ""', "policy.rules[1].tool is '', which is empty"),
        (RULE + 'tool = "a\\\\b"', "policy.rules[1].tool is 'a\\\\b', which has a backslash"),
        (RULE + 'effect = "rite"', "policy.rules[1].effect is 'rite'. Did you mean write?"),
        (RULE + 'reason = "a\\nb"', "policy.rules[1].reason holds a line break"),
        (RULE + 'reason = "\\u001b[2J"', "policy.rules[1].reason holds a line break or another"),
        (RULE + "reason = 1", "policy.rules[1].reason must be a text, not a number"),
        (RULE + 'digest = "sha256:0"', 'policy.rules[1].digest must be "sha256:" and 64'),
        ('[[rules]]\nname = " "\naction = "ask"', "policy.rules[1].name is empty"),
        ('[[rules]]\naction = true\nname = "r"', "policy.rules[1].action must be one of allow, as"),
        (RULE + "when = 1", "policy.rules[1].when must be a table"),
        (_when("branch = { globb = 1 }"), "when.branch.globb is no test of an argument. Did you"),
        (_when("to.address = 1"), "when.to.address is no test of an argument. Known: "),
        (_when("branch = [1]"), "when.branch is a list; for one of several values write { in ="),
        (_when("branch = {}"), "when.branch has no test"),
        (_when("branch = 2020-01-01"), "when.branch must be a text, a number or a boolean, not a"),
        (_when("branch = { is = { a = 1 } }"), "when.branch.is must be a text, a number or a bool"),
        (_when("branch = { in = 1 }"), "when.branch.in must be a list, not a number"),
        (_when("branch = { in = [] }"), "when.branch.in is an empty list"),
        (_when("branch = { in = [[]] }"), "when.branch.in[1] is a list"),
        (_when("branch = { glob = 1 }"), "when.branch.glob must be a text or a list of texts"),
        (
            _when('branch = { glob = "\\\\x" }'),
            "when.branch.glob is '\\\\x', which has a backslash",
        ),
        (_when('path = { under = "../x" }'), "when.path.under is '../x', which is no path"),
        (_when('n = { lt = "1" }'), "when.n.lt must be a number, not a text"),
        (_when("n = { lt = true }"), "when.n.lt must be a number, not a boolean"),
        (_when("n = { gt = nan }"), "when.n.gt must be a finite number"),
        (_when("n = inf"), "when.n must be a finite number"),
        (_when("n = { present = 1 }"), "when.n.present must be true or false"),
        (_when("n = { not = { lt = 1, gt = 2 } }"), "when.n.not must hold exactly one test, not 2"),
        (_when("n = { not = { not = 1 } }"), "when.n.not.not is no test of an argument"),
        (_when('"a..b" = 1'), 'when."a..b" has an empty step'),
        (_when('"" = 1'), 'when."" has an empty step'),
        (_when("'a\\b' = 1"), 'when."a\\\\b" has a backslash before something else'),
        ("servers = 1", "policy.servers must be a table"),
        ("servers.github = 1", "policy.servers.github must be a table"),
        (
            "servers.github.trusted = true",
            "servers.github.trusted is an unknown key of a server's policy",
        ),
        ('servers.github.trust = "yes"', "policy.servers.github.trust must be true or false"),
        ("servers.github.labels = [1]", "servers.github.labels must be a text or a list of texts"),
        ('servers.github.labels = ["A"]', "policy.servers.github.labels has 'A'; a label has smal"),
        (
            'servers.github.labels = ["untrusted_input"]',
            "of which no flow rule speaks (did you mean untrusted-input?)",
        ),
        ('servers.github.tools.x.effect = "no"', "servers.github.tools.x.effect is 'no'"),
        (
            "servers.github.tools.x.trust = true",
            "servers.github.tools.x.trust is an unknown key of a tool",
        ),
        (
            '[servers."git*"]\n[servers.github]',
            "policy.servers.github is never looked at: 'git*' before it matches the same",
        ),
        (
            '[servers.a.tools."*"]\n[servers.a.tools.x]',
            "policy.servers.a.tools.x is never looked at: '*' before it",
        ),
        ('[[flow]]\nname = "f"\naction = "ask"\nto = ["exfiltration"]', "flow[1] needs `after` or"),
        ('[[flow]]\nname = "f"\naction = "ask"\nafter_servers = "a"', "flow[1] needs `to` or `to_"),
        (
            '[[flow]]\nname = "f"\naction = "ask"\nafter = "privat-data"\nto = "exfiltration"',
            "'privat-data', which no server has (did you mean private-data?)",
        ),
        (
            "budgets.run_call = 1",
            "policy.budgets.run_call is an unknown key of the budgets. Did you mean",
        ),
        ("budgets.run_calls = 0", "policy.budgets.run_calls must be from 1 to 1,000,000,000"),
        ("budgets.run_calls = true", "policy.budgets.run_calls must be a whole number, not a bool"),
        ('budgets.run_bytes = "50q"', "policy.budgets.run_bytes is '50q', which is not a size"),
        ("budgets.run_bytes = 1.5", 'policy.budgets.run_bytes must be a size such as "50m"'),
        ("budgets.run_bytes = 0", "policy.budgets.run_bytes must be from 1 to"),
        ("budgets.per_minute = 60", "policy.budgets.per_minute must be a table"),
        ("budgets.per_minute.x = 0", "policy.budgets.per_minute.x must be from 1 to 1,000,000"),
        (
            'budgets.per_minute = { "*" = 1, a = 2 }',
            "policy.budgets.per_minute.a is never looked at: '*' before it",
        ),
        ('privacy.detect = ["emial"]', "policy.privacy.detect is 'emial'. Did you mean email?"),
        ("privacy.reveal = []", "policy.privacy.reveal is an unknown key of the privacy settings"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, problem: str) -> None:
    """A policy that does not parse lets nothing run, so it has to say how to mend it."""
    with pytest.raises(SettingsError) as caught:
        _parse(text)
    assert str(caught.value).startswith(f"{PLACE}")
    assert problem in str(caught.value)


def test_the_table_itself_may_be_wrong() -> None:
    """`policy = true` is none."""
    with pytest.raises(SettingsError, match="config.toml: policy must be a table, not a boolean"):
        parse_policy(True, PLACE)


def test_a_stricter_rule_that_never_gets_a_call_is_a_mistake() -> None:
    """A deny after an allow of everything protects nobody, and looks as if it did."""
    allow = '[[rules]]\nname = "all"\nserver = "git*"\naction = "allow"\n'
    deny = '[[rules]]\nname = "none"\nserver = "github"\ntool = "push"\naction = "deny"\n'
    with pytest.raises(SettingsError, match=r"rules\[2\] \('none'\) is never looked at: 'all'"):
        _parse(allow + deny)
    # Some of its calls are not that rule's, or it would not be stricter.
    _parse(deny + allow)
    _parse(allow + 'effect = "read"\n' + deny)
    _parse(allow + "when = { a = 1 }\n" + deny)
    _parse(allow + deny.replace("github", "*"))
    _parse(allow + deny.replace("deny", "allow"))


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


def test_skills_are_asked_about_and_alone_make_no_policy_for_calls() -> None:
    assert parse_policy(None, "p").skills == "ask"
    alone = parse_policy({"skills": "allow"}, "p")
    assert (alone.skills, alone.present) == ("allow", False)
    assert parse_policy({"skills": "deny", "pin": True}, "p").present
    assert parse_policy({}, "p").present
    with pytest.raises(SettingsError, match="skills"):
        parse_policy({"skills": "maybe"}, "p")
