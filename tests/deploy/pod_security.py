"""The rules of Kubernetes' Pod Security Standard `restricted`.

Clusters before 1.23, such as the one of `make test-fleet`, do not apply it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
SECCOMP = {"RuntimeDefault", "Localhost"}

Spec = Mapping[str, Any]


def violations(spec: Spec) -> list[str]:
    found = [*_of_pod(spec)]
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind, ()):
            found += [f"{container['name']}: {fault}" for fault in _of_container(container, spec)]
    return found


def _of_pod(spec: Spec) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field} is set"
    if spec.get("securityContext", {}).get("sysctls"):
        yield "sysctls are set"
    for volume in spec.get("volumes", ()):
        kinds = {kind for kind, value in volume.items() if kind != "name" and value is not None}
        if not kinds <= VOLUMES:
            yield f"volume {volume['name']} is of {sorted(kinds - VOLUMES)}"


def _of_container(container: Spec, spec: Spec) -> Iterator[str]:
    own = container.get("securityContext", {})
    effective = {**spec.get("securityContext", {}), **own}
    if own.get("privileged"):
        yield "is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allows privilege escalation"
    if effective.get("runAsNonRoot") is not True:
        yield "may run as root"
    if effective.get("runAsUser") == 0:
        yield "runs as root"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield "does not drop all capabilities"
    if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield "adds capabilities"
    if effective.get("seccompProfile", {}).get("type") not in SECCOMP:
        yield "has no seccomp profile"
    if own.get("procMount", "Default") != "Default":
        yield "has another /proc"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "takes a port of the host"
