"""The `[policy]` of `config.toml`: what it may say, and the way from TOML to that. Pure.

Owns the shapes and their parsing. What a policy means for a call is `bridge.gate.policy`'s.
"""

from bridge.settings.policy.parsing import parse_policy
from bridge.settings.policy.shapes import (
    DETECTORS,
    EXFILTRATION,
    LABELS,
    LETHAL,
    PRIVATE_DATA,
    UNTRUSTED_INPUT,
    Asking,
    Budgets,
    Condition,
    DefaultFor,
    FlowRule,
    PolicySpec,
    Privacy,
    Rule,
    ServerPolicy,
    Test,
    ToolPolicy,
)

__all__ = [
    "DETECTORS",
    "EXFILTRATION",
    "LABELS",
    "LETHAL",
    "PRIVATE_DATA",
    "UNTRUSTED_INPUT",
    "Asking",
    "Budgets",
    "Condition",
    "DefaultFor",
    "FlowRule",
    "PolicySpec",
    "Privacy",
    "Rule",
    "ServerPolicy",
    "Test",
    "ToolPolicy",
    "parse_policy",
]
