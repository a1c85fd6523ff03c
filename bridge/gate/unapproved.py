"""What a model is told of a call that nobody approved of. Pure.

Owns the wording of these errors: what happened, and what the model's user can do about it. Neither
a call's arguments nor anything a client said stand in them: a person was shown personal data that
the program has only tokens of.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.errors import ApprovalNeededError, ApprovalRefusedError
from bridge.gate.decision import CHANGED, CallFacts, Decision
from bridge.gate.question import because, led_by, named, one_line, safe_name
from bridge.model import HeldCall
from bridge.settings.globs import literal
from bridge.settings.policy_edit import toml_value

MAX_KINDS = 5
"""Of a plan's calls that are named in an error, each with what would allow it."""

_IN_TERMINAL = (
    "run the program with `mcp-code-bridge run --plan FILE` in a terminal, which asks them"
)

MAX_RULE_CHARS = 200
"""Of a rule that is named in an error or a comment."""

FLOW = "flow rule "
"""How the rules begin that ask because of earlier calls, which no rule on a tool can answer."""


def plan_needed(asking: Sequence[HeldCall], why: str) -> ApprovalNeededError:
    """Return the error on a plan, some of whose calls need a person who cannot be asked.

    Args:
        asking: Those calls, at least one.
        why: Nobody can be asked.
    """
    kinds = list(dict.fromkeys((held.server, held.tool, held.rule) for held in asking))
    shown = [(CallFacts(server=one, tool=two), rule) for one, two, rule in kinds[:MAX_KINDS]]
    parts = [f"{named(call)} ({one_line(rule, MAX_RULE_CHARS)})" for call, rule in shown]
    if len(kinds) > MAX_KINDS:
        parts.append(f"{len(kinds) - MAX_KINDS:,} more")
    message = (
        f"The plan needs a person's approval, for {', '.join(parts)}. {why} Nothing of it was done."
    )
    ways = _IN_TERMINAL
    # No rule takes a definition for what it was before.
    if all(rule != CHANGED for _, rule in shown):
        ways = f"{' and '.join(_way(call, rule) for call, rule in shown)}. Or they {_IN_TERMINAL}"
    return ApprovalNeededError(message, remedy=f"Only the user can allow it: they {ways}.")


def plan_refused(said: str) -> ApprovalRefusedError:
    """Return the error on a plan that a person did not approve of."""
    message = f"The client was asked whether the plan may be carried out, and {said}."
    remedy = "Nothing of it was done. Ask the user what to do instead."
    return ApprovalRefusedError(message, remedy=remedy)


def refused(call: CallFacts, asks: Sequence[Decision], said: str) -> ApprovalRefusedError:
    """Return the error on a call that a person was asked about."""
    rules = ", ".join(one_line(ask.rule, MAX_RULE_CHARS) for ask in asks)
    message = f"The client was asked whether {named(call)} may be called ({rules}), and {said}."
    message += led_by(asks)
    remedy = (
        "It was not called. Further calls of it are refused in this run without asking. Ask the "
        "user what to do instead, and do not try to reach the same in another way."
    )
    return ApprovalRefusedError(message, remedy=remedy)


def refused_earlier(call: CallFacts, ask: Decision) -> ApprovalRefusedError:
    """Return the error on a call like one that a person did not approve of in this run."""
    message = (
        f"{named(call)} was not called: an earlier call of it was not allowed in this run "
        f"({one_line(ask.rule, MAX_RULE_CHARS)}), and is not asked again."
    )
    return ApprovalRefusedError(message, remedy="Ask the user what to do instead.")


def needed(call: CallFacts, asks: Sequence[Decision], why: str) -> ApprovalNeededError:
    """Return the error on a call that somebody would have to be asked about."""
    reasons = "; ".join(because(ask) for ask in asks)
    message = f"{named(call)} needs a person's approval ({reasons}).{led_by(asks)} {why}"
    message += " It was not called."
    return ApprovalNeededError(message, remedy=_remedy(call, [ask.rule for ask in asks]))


def _remedy(call: CallFacts, rules: Sequence[str]) -> str:
    """Say how a user can allow a call that nobody can be asked about."""
    terminal = "make such a call with `mcp-code-bridge run` in a terminal, which asks them"
    if CHANGED in rules:
        # No rule takes a definition for what it was before.
        return (
            f'Only the user can allow it: they {terminal}, and answer "always" if the change is '
            "all right."
        )
    ways = " and ".join(_way(call, rule) for rule in dict.fromkeys(rules))
    return f"Only the user can allow it: they {ways}. Or they {terminal}."


def _way(call: CallFacts, asking: str) -> str:
    if asking.startswith(FLOW):
        return f"change the {one_line(asking, MAX_RULE_CHARS)} in the policy (config.toml)"
    if any(safe_name(name) != name for name in (call.server, call.tool)):
        return "write a rule into the policy (config.toml)"
    where = " in front of the rule that asks" if asking.startswith("rule ") else ""
    lines = [
        "[[policy.rules]]",
        f"name = {toml_value(f'allow {call}')}",
        f"server = {toml_value(literal(call.server))}",
        f"tool = {toml_value(literal(call.tool))}",
        'action = "allow"',
    ]
    rule = "\n".join(lines)
    return (
        f"put this into the policy (config.toml){where}:\n\n{rule}\n\n"
        f"(`mcp-code-bridge policy explain {call.server} {call.tool}` tells more)"
    )
