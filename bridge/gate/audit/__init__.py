"""The record of what runs did, written before it is done."""

from bridge.gate.audit.log import AuditLog, RunAudit

__all__ = ["AuditLog", "RunAudit"]
