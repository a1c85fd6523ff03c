"""The `kubernetes` table of `config.toml`: where and how pods are made for programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from bridge.model import Json
from bridge.settings import fields

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


MAX_TEXT_CHARS = 500

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")


def _name(value: Json, place: str) -> str:
    """Return a name as Kubernetes has them."""
    found = fields.text(value, place)
    if not _NAME.fullmatch(found):
        fields.fail(place, f"is {found[:100]!r}, which is no name that Kubernetes allows")
    return found


def _names(value: Json, place: str) -> tuple[str, ...]:
    """Return one name, or several of a list."""
    return tuple(_name(text, place) for text in fields.texts(value, place))


def _text_table(value: Json, place: str) -> Mapping[str, str]:
    """Return a table of texts."""
    parse = fields.line(MAX_TEXT_CHARS)
    given = fields.table(value, place)
    return {key: parse(item, fields.below(place, key)) for key, item in given.items()}


def _tolerations(value: Json, place: str) -> tuple[Mapping[str, Json], ...]:
    """Return an array of tables, as pods have them."""
    found = []
    for item, where in fields.tables(value, place):
        given = fields.table(item, where)
        for key in given:
            if key not in _TOLERATION_KEYS:
                problem = (
                    f"is an unknown key of a toleration. {fields.suggest(key, _TOLERATION_KEYS)}"
                )
                fields.fail(fields.below(where, key), problem.rstrip("."))
        found.append(dict(given))
    return tuple(found)


def _seccomp(value: Json, place: str) -> str:
    """Return "RuntimeDefault", or "localhost/" and a path."""
    found = fields.text(value, place)
    if found != "RuntimeDefault" and not re.fullmatch(r"localhost/.+", found):
        fields.fail(place, 'must be "RuntimeDefault" or "localhost/" and a profile\'s path')
    return found


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """The table.

    Attributes:
        kubeconfig: The file; KUBECONFIG or `~/.kube/config` if not set, and before those the
            service account of the pod that the bridge runs in.
        context: The file's context; its current one if not set.
        namespace: Where pods are made; the context's if not set.
        image: Of pods; that of `image` if not set, else `python:3.13-slim`.
        pull_policy: When nodes fetch it.
        pull_secrets: The secrets that they fetch it with.
        runtime_class: The pods' `runtimeClassName`, such as gvisor.
        node_selector: Labels that their nodes must have.
        tolerations: Taints of nodes that they bear.
        requests: What they ask of a node, if not their limits: `cpu`, `memory`.
        service_account: The pods' own; it gets no token.
        labels: Further labels of theirs.
        annotations: Annotations of theirs.
        seccomp: Their profile: "RuntimeDefault", or "localhost/" and a path on the nodes.
        service: Bridges of one service share their warm pods.
        warm: Pods of the service that wait, started, each for one run.
        warm_seconds: How long one waits before it is replaced.
        room_seconds: How long a run waits for room in the cluster.
    """

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""
    image: str = ""
    pull_policy: PullPolicy = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Json], ...] = ()
    requests: Mapping[str, str] = field(default_factory=dict)
    service_account: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    seccomp: str = "RuntimeDefault"
    service: str = "default"
    warm: int = 0
    warm_seconds: float = 600.0
    room_seconds: float = 30.0


KEYS: Mapping[str, fields.Parse] = {
    "kubeconfig": fields.path,
    "context": fields.line(MAX_TEXT_CHARS),
    "namespace": _name,
    "image": fields.line(MAX_TEXT_CHARS),
    "pull_policy": fields.choice(get_args(PullPolicy)),
    "pull_secrets": _names,
    "runtime_class": _name,
    "node_selector": _text_table,
    "tolerations": _tolerations,
    "requests": _text_table,
    "service_account": _name,
    "labels": _text_table,
    "annotations": _text_table,
    "seccomp": _seccomp,
    "service": _name,
    "warm": fields.whole(1000, 0),  # Each holds its memory on a node.
    "warm_seconds": fields.seconds(86_400),
    "room_seconds": fields.seconds(3600),
}
"""Its keys."""


def parse_kubernetes(table: Json, place: str) -> Kubernetes:
    """Return the `kubernetes` table at `place`; the defaults where there is none.

    Raises:
        SettingsError: It has a key or a value that cannot be.
    """
    if table is None:
        return Kubernetes()
    return Kubernetes(**fields.record(table, place, KEYS, "the Kubernetes settings"))
