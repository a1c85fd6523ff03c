"""What an API server's refusals and a pod's state mean, as the bridge's errors. Pure.

A pod's state is the word of the cluster, which outranks that of its stream: an attach reports
success for any exit code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from signal import Signals
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

_SIGNAL_BASE = 128

_NO_IMAGE = ("ErrImageNeverPull",)
_NO_PULL = ("ImagePullBackOff", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
_BROKEN = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)

_ENDED_BY = {
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
    """Raise the HTTP client's errors as the bridge's."""
    try:
        yield
    except httpx2.HTTPError as error:
        raise down(server, error) from error
    except ConfigError as error:
        raise no_credentials(error) from error
    except ValueError as error:
        raise down(server, error) from error


def down(server: str, error: BaseException) -> ClusterDownError:
    """Return the error of an API server that does not answer."""
    return ClusterDownError(f"The API server at {server} does not answer: {_cut(error)}.")


def no_credentials(error: BaseException) -> ClusterRefusedError:
    """Return the error of a kubeconfig whose plugin or token file gives none."""
    return ClusterRefusedError(
        "The kubeconfig gives no credentials for the cluster.", host_detail=_cut(error)
    )


def refusal(code: int, body: bytes | bytearray | str | None) -> SandboxError:
    """Return the error of an API server's answer."""
    said, reason = _said(body)
    if code == 404:
        return NotFoundError(f"The cluster has no such object: {said}.")
    if code == 409:
        return ConflictError(f"It was changed meanwhile: {said}.")
    if code == 410:
        return GoneError(f"The watch is too old: {said}.")
    if code == 403 and "exceeded quota" in said:
        return QuotaError(f"The namespace's quota is used up: {said}.")
    if code in (401, 403):
        return ClusterRefusedError(f"The cluster refuses the bridge's account: {said}.")
    if code == 429 or code >= 500:
        return BusyError(f"The cluster could not do it ({code} {reason}): {said}.")
    return LaunchError(
        f"The cluster does not take it ({code} {reason}): {said}.",
        remedy="Correct [kubernetes] in config.toml.",
    )


def _said(body: bytes | bytearray | str | None) -> tuple[str, str]:
    try:
        found = json.loads(body or b"{}")
        return _cut(str(found.get("message") or "no reason given")), str(found.get("reason") or "")
    except (ValueError, AttributeError):
        text = body if isinstance(body, str) else bytes(body or b"").decode("utf-8", "replace")
        return _cut(text), ""


def _cut(text: object) -> str:
    line = " ".join(str(text).split()).rstrip(".")
    return line[:MAX_MESSAGE_CHARS] or repr(text)


def start_problem(pod: Mapping[str, Any], *, patient: bool = True) -> SandboxError | None:
    """Return why a pod cannot start; None if it may yet.

    Args:
        patient: Whether it may still wait for room.
    """
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        lost = lost_error(pod)
        if lost is not None:
            return lost
        return LaunchError(f"The pod ended before it was used: {_last_words(status)}.")
    waiting = _container_state(status).get("waiting") or {}
    reason, said = str(waiting.get("reason") or ""), _cut(waiting.get("message") or "")
    if reason in _NO_IMAGE:
        return ImageMissingError(f"The node lacks the image: {said}.", remedy=_IMAGE_REMEDY)
    if reason in _NO_PULL:
        return ImagePullError(f"The node cannot fetch the image: {said}.", remedy=_IMAGE_REMEDY)
    if reason in _BROKEN:
        return LaunchError(f"The node cannot start the pod ({reason}): {said}.")
    if not patient:
        return _no_room(status)
    return None


_IMAGE_REMEDY = "Correct `image`, `pull_policy` or `pull_secrets` in [kubernetes]."


def _no_room(status: Mapping[str, Any]) -> SandboxError:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return CapacityError(f"The cluster has no room: {_cut(condition.get('message'))}.")
    said = _last_words(status)
    return CapacityError(f"The pod did not start in time: {said}.")


def is_running(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's process runs, so that it can be attached to."""
    status = pod.get("status") or {}
    return status.get("phase") == "Running" and "running" in _container_state(status)


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's process has ended for good."""
    status = pod.get("status") or {}
    ended = status.get("phase") in ("Failed", "Succeeded")
    return ended or "terminated" in _container_state(status)


def restarts(pod: Mapping[str, Any]) -> int:
    """Return how often a pod's process was started again."""
    return int(_container(pod.get("status") or {}).get("restartCount") or 0)


def lost_error(pod: Mapping[str, Any]) -> SandboxError | None:
    """Return the error of a pod that the cluster ended; None if its process ended by itself."""
    status = pod.get("status") or {}
    reason = str(status.get("reason") or "")
    kind = _ENDED_BY.get(reason)
    if kind is None:
        return None
    return kind(f"The cluster ended the pod ({reason}): {_cut(status.get('message') or '')}.")


def exit_report(pod: Mapping[str, Any]) -> ExitReport | None:
    """Return how a pod's process ended; None while it is not known to have.

    Exit status 128 + n is indistinguishable from death by signal n.
    """
    status = pod.get("status") or {}
    ended = _container_state(status).get("terminated")
    if ended is None:
        if not has_ended(pod):
            return None
        return ExitReport(detail=_last_words(status))
    code, oom = int(ended.get("exitCode", 0)), ended.get("reason") == "OOMKilled"
    number = int(ended.get("signal") or 0) or (code - _SIGNAL_BASE if _is_signal(code) else 0)
    return ExitReport(
        exit_code=None if number else code,
        signal=number or None,
        # Kubelets name it only where the first process was the victim.
        oom_killed=True if oom else None,
        detail=_cut(ended.get("message") or "") if ended.get("message") else "",
    )


REMOVED = "The pod was removed from outside."


def lost(pod: Mapping[str, Any] | None, why: str) -> SandboxError:
    """Return the error of a stream that broke, by what the cluster says of the pod."""
    if pod is not None:
        ended = lost_error(pod)
        if ended is not None:
            return ended
        if (pod.get("status") or {}).get("phase") == "Unknown":
            return NodeLostError(f"The pod's node does not answer: {why}.")
    return SandboxLostError(REMOVED if pod is None else f"The stream to the pod broke: {why}.")


def _container_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _container(status).get("state") or {}
    return found


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    return found


def _last_words(status: Mapping[str, Any]) -> str:
    ended = _container_state(status).get("terminated") or {}
    waiting = _container_state(status).get("waiting") or {}
    texts = (
        status.get("message"),
        ended.get("message"),
        ended.get("reason"),
        waiting.get("message"),
        waiting.get("reason"),
        status.get("phase"),
    )
    return _cut(next((text for text in texts if text), "no reason given"))


def _is_signal(code: int) -> bool:
    try:
        Signals(code - _SIGNAL_BASE)
    except ValueError:
        return False
    return True
