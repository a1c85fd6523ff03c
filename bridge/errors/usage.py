"""What was asked for cannot be: the caller has to ask for something else."""

from __future__ import annotations

from bridge.errors.base import BridgeError


class UsageError(BridgeError):
    """The caller asked for something that cannot be."""

    code = "usage"
    exit_status = 2


class SettingsError(UsageError):
    """A flag, a variable or a configuration key does not parse."""

    code = "settings"


class InvalidRequestError(UsageError):
    """The arguments of a run are unusable."""

    code = "invalid_request"


class HeldResultError(InvalidRequestError):
    """A call in a plan is made with what a held call is going to return, where that cannot be."""

    code = "held_result"


class UnknownServerError(UsageError):
    """A server was named that no configuration defines."""

    code = "unknown_server"


class UnknownPlanError(UsageError):
    """There is no such plan for this caller: it was used, has expired, or never was."""

    code = "unknown_plan"


class UnknownRunError(UsageError):
    """There is no journal of such a run for this caller."""

    code = "unknown_run"


class UnknownArtifactError(UsageError):
    """Nothing is kept by that name, or not for whoever asks."""

    code = "unknown_artifact"


class UnknownSessionError(UsageError):
    """There is no such session, or it is somebody else's."""

    code = "unknown_session"


class UnknownSkillError(UsageError):
    """No skill of that name is saved."""

    code = "unknown_skill"


class PackageRefusedError(UsageError):
    """A package may not be used here, or does not fit."""

    code = "package_refused"
