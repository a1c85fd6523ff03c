"""A run asked for more than it was given."""

from __future__ import annotations

from bridge.errors.base import BridgeError


class RefusedError(BridgeError):
    """A run asked for more than it was given."""

    code = "refused"


class CallDeniedError(RefusedError):
    """A run may not make this call."""

    code = "call_denied"


class CallBudgetError(RefusedError):
    """A run has made all the calls it may make."""

    code = "call_budget"


class ApprovalNeededError(RefusedError):
    """A person has to allow a call, and there is nobody who could be asked."""

    code = "approval_needed"


class ApprovalRefusedError(RefusedError):
    """A person was asked whether a call is allowed, and did not allow it."""

    code = "approval_refused"


class OutcomeUnknownError(RefusedError):
    """A retry wants a call again that may have happened: its answer never came."""

    code = "outcome_unknown"


class AuditError(RefusedError):
    """A call could not be written to the audit log, and is not made therefore."""

    code = "audit_unavailable"


class AuditBudgetError(AuditError):
    """A run's calls have filled what the audit log has for one run."""

    code = "audit_budget"

    def __init__(self, budget: int) -> None:
        message = (
            f"The calls of this run have filled the {budget:,} bytes that the audit log has for "
            "one run, and no call is made unrecorded."
        )
        super().__init__(message, remedy="Make the others in another run, or with less arguments.")
