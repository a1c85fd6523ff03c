"""Calls held back, the placeholders that stand for their results, and plans made of them.

Owns a plan from the first call that a run holds back to its being taken to be applied: what may
stand in its calls and what they are made with (`arguments`), what a run may hold and a person's
approval covers (`holding`), how long a plan can be applied and by whom (`keeping`). Makes no call.
"""

from bridge.gate.plans.arguments import Known, resolve
from bridge.gate.plans.holding import Covered, Held, HeldRequest, Holding
from bridge.gate.plans.keeping import KeptPlan, Plans

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
