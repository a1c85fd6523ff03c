"""Calls held back, the placeholders that stand for their results, and plans made of them."""

from bridge.gate.plans.arguments import Known, resolve
from bridge.gate.plans.holding import Covered, Held, HeldRequest, Holding, KeptPlan, Plans

__all__ = [
    "Covered",
    "Held",
    "HeldRequest",
    "Holding",
    "Known",
    "KeptPlan",
    "Plans",
    "resolve",
]
