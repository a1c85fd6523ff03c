"""Calls held back for a plan, and the placeholders that stand for their results.

Plans that are kept, and their execution, are `bridge.plans`'.
"""

from bridge.gate.held_calls.calls import HeldCalls, HeldPlaceholder, HeldRequest
from bridge.gate.held_calls.placeholders import CallResult, resolve

__all__ = ["CallResult", "HeldCalls", "HeldRequest", "HeldPlaceholder", "resolve"]
