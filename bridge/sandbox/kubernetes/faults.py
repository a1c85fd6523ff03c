"""What an API server's refusals and a pod's state mean, as the bridge's errors. Pure.

A pod's state is the word of the cluster, which outranks that of its stream: an attach reports
success for any exit code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from signal import valid_signals
from typing import Any

import httpx2
from lightkube.core.exceptions import ConfigError

from bridge.errors import (
    CapacityError,
    ClusterDownError,
    ClusterRefusedError,
    ImageMissingError,
    ImagePullError,
    LaunchError,
    NodeLostError,
    PodDeadlineError,
    PodEvictedError,
    QuotaError,
    SandboxError,
    SandboxLostError,
)
from bridge.sandbox.backend import ExitReport

MAX_MESSAGE_CHARS = 500

REMOVED = "The pod was removed from outside."

_SIGNAL_BASE = 128

_IMAGE_REMEDY = "Correct `image`, `pull_policy` or `pull_secrets` in [kubernetes]."

_CANNOT_START: Mapping[str, tuple[type[SandboxError], str | None]] = {
    "ErrImageNeverPull": (ImageMissingError, _IMAGE_REMEDY),
    "ImagePullBackOff": (ImagePullError, _IMAGE_REMEDY),
    "InvalidImageName": (ImagePullError, _IMAGE_REMEDY),
    "ImageInspectError": (ImagePullError, _IMAGE_REMEDY),
    "CreateContainerConfigError": (LaunchError, None),
    "CreateContainerError": (LaunchError, None),
    "RunContainerError": (LaunchError, None),
}
"""Why a container waits, where waiting longer does not help."""

_ENDED_BY: Mapping[str, type[SandboxError]] = {
    "DeadlineExceeded": PodDeadlineError,
    "Evicted": PodEvictedError,
    "Preempting": PodEvictedError,
    "NodeLost": NodeLostError,
    "NodeShutdown": NodeLostError,
    "Shutdown": NodeLostError,
    "Terminated": NodeLostError,
    "UnexpectedAdmissionError": CapacityError,
    "OutOfmemory": CapacityError,
    "OutOfcpu": CapacityError,
    "OutOfpods": CapacityError,
}
"""The reason in a failed pod's status, and what it means."""


class NotFoundError(SandboxError):
    """The API server has no such object."""


class ConflictError(SandboxError):
    """An object was changed by somebody else."""


class GoneError(SandboxError):
    """A watch's resource version is too old."""


class BusyError(SandboxError):
    """The API server or a node could not answer this time."""


@contextmanager
def translated(server: str) -> Iterator[None]:
    """Raise the HTTP client's errors, and those of reading an answer, as the bridge's."""
    try:
        yield
    except (httpx2.HTTPError, OSError, ValueError, LookupError, TypeError) as error:
        raise down(server, error) from error
    except ConfigError as error:
        raise no_credentials(error) from error


def down(server: str, error: BaseException) -> ClusterDownError:
    """Return the error of an API server that does not answer."""
    return ClusterDownError(f"The API server at {server} does not answer: {cut(error)}.")


def no_credentials(error: BaseException) -> ClusterRefusedError:
    """Return the error of a kubeconfig whose plugin or token file gives none."""
    message = "The kubeconfig gives no credentials for the cluster."
    return ClusterRefusedError(message, host_detail=cut(error))


def refusal(code: int, body: bytes | bytearray | str | None) -> SandboxError:
    """Return the error of an API server's answer."""
    try:
        said = cut(json.loads(body or b"{}")["message"])
    except (ValueError, KeyError, TypeError):
        said = cut(body if isinstance(body, str) else bytes(body or b"").decode("utf-8", "replace"))
    match code:
        case 404:
            return NotFoundError(f"The cluster has no such object: {said}.")
        case 409:
            return ConflictError(f"It was changed meanwhile: {said}.")
        case 410:
            return GoneError(f"The watch is too old: {said}.")
        case 403 if "exceeded quota" in said:
            return QuotaError(f"The namespace's quota is used up: {said}.")
        case 403 if "must specify" in said:
            return LaunchError(f"A quota forbids it: {said}.", remedy="Set [kubernetes] requests.")
        case 401 | 403:
            return ClusterRefusedError(f"The cluster refuses the bridge's account: {said}.")
        case _ if code == 429 or code >= 500:
            return BusyError(f"The cluster could not do it ({code}): {said}.")
    message = f"The cluster does not take it ({code}): {said}."
    return LaunchError(message, remedy="Correct [kubernetes] in config.toml.")


def start_problem(pod: Mapping[str, Any], *, patient: bool = True) -> SandboxError | None:
    """Return why a pod cannot start; None if it may yet.

    Args:
        patient: Whether it may still wait for room.
    """
    status, state = _status(pod), _state(pod)
    if has_ended(pod):
        message = f"The pod ended before it was used: {_last_words(pod)}."
        return ended_by_cluster(pod) or SandboxLostError(message)
    waiting = state.get("waiting") or {}
    reason, said = str(waiting.get("reason") or ""), cut(waiting.get("message"))
    if reason in _CANNOT_START:
        kind, remedy = _CANNOT_START[reason]
        return kind(f"The node cannot start the pod ({reason}): {said}.", remedy=remedy)
    if patient:
        return None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return CapacityError(f"The cluster has no room: {cut(condition.get('message'))}.")
    return CapacityError(f"The pod did not start in time: {_last_words(pod)}.")


def is_running(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's process runs, so that it can be attached to."""
    return _status(pod).get("phase") == "Running" and "running" in _state(pod)


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's process has ended for good."""
    return _status(pod).get("phase") in ("Failed", "Succeeded") or "terminated" in _state(pod)


def restarts(pod: Mapping[str, Any]) -> int:
    """Return how often a pod's process was started again."""
    return int(_container(pod).get("restartCount") or 0)


def ended_by_cluster(pod: Mapping[str, Any]) -> SandboxError | None:
    """Return the error of a pod that the cluster ended; None if its process ended by itself."""
    reason = str(_status(pod).get("reason") or "")
    kind = _ENDED_BY.get(reason)
    if kind is None:
        return None
    said = cut(_status(pod).get("message"))
    return kind(f"The cluster ended the pod ({reason}): {said}.")


def exit_report(pod: Mapping[str, Any]) -> ExitReport | None:
    """Return how a pod's process ended; None while it is not known to have.

    Exit status 128 + n is indistinguishable from death by signal n.
    """
    ended = _state(pod).get("terminated")
    if ended is None:
        return ExitReport(detail=_last_words(pod)) if has_ended(pod) else None
    code = int(ended.get("exitCode", 0))
    number = code - _SIGNAL_BASE if code - _SIGNAL_BASE in valid_signals() else None
    return ExitReport(
        exit_code=code if number is None else None,
        signal=number,
        # Kubelets say so only where the first process was the victim.
        oom_killed=True if ended.get("reason") == "OOMKilled" else None,
        detail=cut(ended["message"]) if ended.get("message") else "",
    )


def lost(pod: Mapping[str, Any] | None, why: str) -> SandboxError:
    """Return the error of a stream that broke, by what the cluster says of the pod."""
    if pod is None:
        return SandboxLostError(REMOVED)
    if _status(pod).get("phase") == "Unknown":
        return NodeLostError(f"The pod's node does not answer: {why}.")
    return ended_by_cluster(pod) or SandboxLostError(f"The stream to the pod broke: {why}.")


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(_status(pod).get("containerStatuses") or ()), {})


def _state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return _container(pod).get("state") or {}


def _last_words(pod: Mapping[str, Any]) -> str:
    ended = _state(pod).get("terminated") or _state(pod).get("waiting") or {}
    words = (_status(pod).get("message"), ended.get("message"), ended.get("reason"))
    return cut(next((text for text in words if text), _status(pod).get("phase")))


def cut(text: object) -> str:
    """Return what a cluster or a pod says, on one line, bounded."""
    line = " ".join(str(text or "no reason given").split()).rstrip(".")
    return line[:MAX_MESSAGE_CHARS]
