"""The record of what runs did, written before it is done."""

from bridge.gate.audit.log import AuditLog
from bridge.gate.audit.run import RunAudit
from bridge.gate.audit.tracing import PlanTrace, RunTrace, TracedCall

__all__ = ["AuditLog", "PlanTrace", "RunAudit", "RunTrace", "TracedCall"]
