"""Calls held back, the placeholders that stand for their results, and plans made of them.

Owns a plan from the first call that a run holds back to its being taken to be applied: what may
stand in its calls (`references`), what a run may hold (`holding`), how it is shown (`showing`),
how long it can be applied and by whom (`keeping`), what a person's approval of it covers
(`covered`), and what its calls are made with (`resolving`). Makes no call.
"""

from bridge.gate.plans.covered import Covered
from bridge.gate.plans.holding import Held, HeldRequest, Holding
from bridge.gate.plans.keeping import KeptPlan, Plans
from bridge.gate.plans.resolving import Shape, resolve

__all__ = [
    "Covered",
    "Held",
    "HeldRequest",
    "Holding",
    "KeptPlan",
    "Plans",
    "Shape",
    "resolve",
]
