"""The `[kubernetes]` table of `config.toml`: settings of pods for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bridge.model import Json
from bridge.settings import fields, parsers

PullPolicy = Literal["Always", "IfNotPresent", "Never"]

_TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")


def _name(text: str) -> str:
    """Return a valid Kubernetes name."""
    pattern = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
    return parsers.require_match(pattern, text, "is not a name that Kubernetes allows")


def _seccomp(text: str) -> str:
    """Return "RuntimeDefault", or "localhost/" and a path."""
    problem = 'must be "RuntimeDefault" or "localhost/" and a profile\'s path'
    return parsers.require_match(r"RuntimeDefault|localhost/.+", text, problem)


def _text_table(value: Json, place: str) -> Mapping[str, str]:
    """Return a table of texts."""
    given = fields.table(value, place)
    return {key: fields.line(item, fields.below(place, key)) for key, item in given.items()}


def _tolerations(value: Json, place: str) -> tuple[Mapping[str, Json], ...]:
    """Return an array of tolerations."""
    given: dict[str, fields.Parse] = dict.fromkeys(_TOLERATION_KEYS, lambda value, place: value)
    return tuple(fields.record(item, where, given) for item, where in fields.tables(value, place))


_NAME = fields.of(_name, str)


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """The `[kubernetes]` table.

    Attributes:
        kubeconfig: The kubeconfig file. By default the pod's service account if the bridge runs
            in a pod, else KUBECONFIG or `~/.kube/config`.
        context: The kubeconfig's context; its current one by default.
        namespace: The namespace of pods; the context's by default.
        image: The image of pods; `image` by default, else `python:3.13-slim`.
        pull_policy: When nodes pull the image.
        pull_secrets: The secrets to pull the image with.
        runtime_class: The pods' `runtimeClassName`, such as gvisor.
        node_selector: Labels that the pods' nodes must have.
        tolerations: The pods' tolerations of node taints.
        requests: The pods' requests of `cpu` and `memory`; their limits by default.
        service_account: The pods' service account; they get no token.
        labels: Further labels of pods.
        annotations: Annotations of pods.
        seccomp: The pods' seccomp profile: "RuntimeDefault", or "localhost/" and a path on the
            nodes.
        service: The name by which bridges share their warm pods.
        warm: Number of started pods that wait for runs. Each serves one run.
        warm_seconds: Seconds until a waiting pod is replaced.
        room_seconds: Seconds that a pod may take to start once it has a node.
    """

    kubeconfig: Path | None = fields.key(fields.path, None)
    context: str = fields.key(fields.line, "")
    namespace: str = fields.key(_NAME, "")
    image: str = fields.key(fields.line, "")
    pull_policy: PullPolicy = fields.key(fields.choice(PullPolicy), "IfNotPresent")
    pull_secrets: tuple[str, ...] = fields.key(fields.several(_NAME), ())
    runtime_class: str = fields.key(_NAME, "")
    node_selector: Mapping[str, str] = fields.key(_text_table, default_factory=dict)
    tolerations: tuple[Mapping[str, Json], ...] = fields.key(_tolerations, ())
    requests: Mapping[str, str] = fields.key(_text_table, default_factory=dict)
    service_account: str = fields.key(_NAME, "")
    labels: Mapping[str, str] = fields.key(_text_table, default_factory=dict)
    annotations: Mapping[str, str] = fields.key(_text_table, default_factory=dict)
    seccomp: str = fields.key(fields.of(_seccomp, str), "RuntimeDefault")
    service: str = fields.key(_NAME, "default")
    warm: int = fields.key(fields.whole(1000, 0), 0)  # Each reserves its memory on a node.
    warm_seconds: float = fields.key(fields.seconds(86_400), 600.0)
    room_seconds: float = fields.key(fields.seconds(3600), 30.0)
