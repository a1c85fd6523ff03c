"""Translates an API server's refusals and a pod's state to the bridge's errors. Pure.

A pod's state outranks its stream, because an attach reports success for any exit code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2
from lightkube.core.exceptions import ConfigError
from websockets.exceptions import WebSocketException

from bridge.errors import (
    EngineDownError,
    LaunchError,
    SandboxError,
    SandboxLostError,
)
from bridge.sandbox.backend import ExitReport, code_and_signal

Document = Mapping[str, Any]  # An object of the API server's.

REMOVED = "The pod was removed from outside."

_IMAGE_REMEDY = "Correct `image`, `pull_policy` or `pull_secrets` in [kubernetes]."

_MISSING = partial(SandboxError, code="image_missing")
_PULL = partial(SandboxError, code="image_pull_failed")

# Reasons of a waiting container that will never start.
_CANNOT_START: Mapping[str, tuple[Callable[..., SandboxError], str | None]] = {
    "ErrImageNeverPull": (_MISSING, _IMAGE_REMEDY),
    "ImagePullBackOff": (_PULL, _IMAGE_REMEDY),
    "InvalidImageName": (_PULL, _IMAGE_REMEDY),
    "ImageInspectError": (_PULL, _IMAGE_REMEDY),
    "CreateContainerConfigError": (LaunchError, None),
    "CreateContainerError": (LaunchError, None),
    "RunContainerError": (LaunchError, None),
}

# The reasons in a failed pod's status.
_CODES: Mapping[str, str] = {
    "DeadlineExceeded": "pod_deadline", "Evicted": "pod_evicted", "Preempting": "pod_evicted",
    "NodeLost": "node_lost", "NodeShutdown": "node_lost", "Shutdown": "node_lost",
    "Terminated": "node_lost", "UnexpectedAdmissionError": "no_room", "OutOfmemory": "no_room",
    "OutOfcpu": "no_room", "OutOfpods": "no_room",
}  # fmt: skip


class ClusterAnswerError(SandboxError):
    """The API server's refusal: 404 no such object, 409 changed meanwhile, else busy."""

    status = 0


def is_gone(error: BaseException) -> bool:
    return isinstance(error, ClusterAnswerError) and error.status in (404, 409)


@contextmanager
def ignoring(*statuses: int) -> Iterator[None]:
    try:
        yield
    except ClusterAnswerError as error:
        if error.status not in statuses:
            raise


# Raised if no server answers, or the server is no API server.
_NO_ANSWER = (httpx2.HTTPError, WebSocketException, OSError, ValueError, LookupError, TypeError)


@contextmanager
def translated(server: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        message = "The kubeconfig gives no credentials for the cluster."
        raise SandboxError(message, host_detail=cut(error), code="cluster_refused") from error
    except _NO_ANSWER as error:
        detail = f"It is at {server}: {cut(error)}."
        raise EngineDownError(
            "The API server does not answer.", host_detail=detail, code="cluster_down"
        ) from error


def refusal(code: int, body: bytes) -> SandboxError:
    try:
        said = cut(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        said = cut(body.decode("utf-8", "replace"))
    detail = f"It says: {said} ({code})."
    if code == 403 and "exceeded quota" in said:
        message = "The namespace's quota is used up."
        return SandboxError(message, host_detail=detail, code="quota")
    if code == 403 and "must specify" in said:
        remedy = "Set [kubernetes] requests."
        return LaunchError("A quota forbids the pod.", remedy=remedy, host_detail=detail)
    if code in (401, 403):
        message = "The cluster refuses the bridge's account."
        return SandboxError(message, host_detail=detail, code="cluster_refused")
    if code in (404, 409, 410, 429) or code >= 500:
        refused = ClusterAnswerError("The cluster refused the request.", host_detail=detail)
        refused.status = code
        return refused
    remedy = "Correct [kubernetes] in config.toml."
    return LaunchError("The cluster does not accept the pod.", remedy=remedy, host_detail=detail)


def start_problem(pod: Document) -> SandboxError | None:
    """Return the error of a pod that cannot start; None if it may still start."""
    if has_ended(pod):
        ended = SandboxLostError("The pod ended before it was used.", host_detail=_words(pod))
        return ended_by_cluster(pod) or ended
    reason = str((_state(pod).get("waiting") or {}).get("reason"))
    if reason not in _CANNOT_START:
        return None
    kind, remedy = _CANNOT_START[reason]
    message = f"The node cannot start the pod ({reason})."
    return kind(message, remedy=remedy, host_detail=_words(pod))


def no_room(pod: Document) -> SandboxError:
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            said = f"{cut(condition.get('message'))}."
            return SandboxError("The cluster has no room.", host_detail=said, code="no_room")
    return SandboxError("The pod did not start in time.", host_detail=_words(pod), code="no_room")


def is_running(pod: Document) -> bool:
    return _status(pod).get("phase") == "Running" and "running" in _state(pod)


def has_ended(pod: Document) -> bool:
    return _status(pod).get("phase") in ("Failed", "Succeeded") or "terminated" in _state(pod)


def restarts(pod: Document) -> int:
    return int(_container(pod).get("restartCount") or 0)


def ended_by_cluster(pod: Document) -> SandboxError | None:
    """Return the error of a pod that the cluster ended; None if its process ended by itself."""
    reason = str(_status(pod).get("reason"))
    if reason not in _CODES:
        return None
    said, code = f"{cut(_status(pod).get('message'))}.", _CODES[reason]
    family = SandboxError if code == "no_room" else SandboxLostError
    return family(f"The cluster ended the pod ({reason}).", code=code, host_detail=said)


def exit_report(pod: Document) -> ExitReport | None:
    ended = _state(pod).get("terminated")
    if ended is None:
        return ExitReport(detail=_words(pod)) if has_ended(pod) else None
    code, signal = code_and_signal(int(ended["exitCode"]))
    return ExitReport(
        exit_code=code,
        signal=signal,
        # Kubelets report it only if the first process was the victim.
        oom_killed=True if ended.get("reason") == "OOMKilled" else None,
        detail=cut(ended["message"]) if ended.get("message") else "",
    )


def lost(pod: Document | None, why: str) -> SandboxError:
    """Return the error of a broken stream, by the pod's state."""
    if pod is None:
        return SandboxLostError(REMOVED)
    if _status(pod).get("phase") == "Unknown":
        return SandboxLostError(
            "The pod's node does not answer.", host_detail=f"{cut(why)}.", code="node_lost"
        )
    broken = SandboxLostError("The stream to the pod broke.", host_detail=f"{cut(why)}.")
    return ended_by_cluster(pod) or broken


def _status(pod: Document) -> Document:
    return pod.get("status") or {}


def _container(pod: Document) -> Document:
    return next(iter(_status(pod).get("containerStatuses") or ()), {})


def _state(pod: Document) -> Document:
    return _container(pod).get("state") or {}


def _words(pod: Document) -> str:
    state = _state(pod).get("terminated") or _state(pod).get("waiting") or {}
    words = (_status(pod).get("message"), state.get("message"), state.get("reason"))
    return f"{cut(next((text for text in words if text), _status(pod).get('phase')))}."


def cut(text: object) -> str:
    return " ".join(str(text or "no reason given").split()).rstrip(".")[:500]
