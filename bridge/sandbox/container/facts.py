"""An engine's kind, version and abilities, from its `/info`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from bridge.model import Json

EngineKind = Literal["docker", "podman"]


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The facts of one engine. They are claims, and may be too good."""

    kind: EngineKind  # The engine that answers, whatever its socket's name.
    version: str
    rootless: bool  # Whether it runs as an ordinary user, in a user namespace.
    oci_runtime: str
    cgroup_version: str  # "1", "2" or empty.
    cpus: int  # 0 if unknown.
    limits_memory: bool
    limits_pids: bool
    limits_cpu: bool
    obeys_ulimits: bool
    seccomp: bool
    mandatory_access: str  # "apparmor" or "selinux" if one confines containers, else empty.
    remaps_ids: bool = False  # Whether the daemon puts every container into a user namespace.
    kernel: str = ""  # The host kernel's release; empty if unknown.
    storage: str = ""
    unlimited: tuple[str, ...] = ()  # The OCI runtimes that are configured to apply no limits.


def docker_facts(info: Mapping[str, Json]) -> EngineFacts:
    # "name=seccomp,profile=default" and its like.
    options: dict[str, str] = {}
    for text in info.get("SecurityOptions") or []:
        fields = dict(part.partition("=")[::2] for part in str(text).split(","))
        options[fields.get("name", "")] = fields.get("profile", "")
    return EngineFacts(
        kind="docker",
        version=str(info.get("ServerVersion") or ""),
        rootless="rootless" in options,
        oci_runtime=str(info.get("DefaultRuntime") or ""),
        cgroup_version=str(info.get("CgroupVersion") or ""),
        cpus=int(info.get("NCPU") or 0),
        limits_memory=bool(info.get("MemoryLimit")),
        limits_pids=bool(info.get("PidsLimit", True)),
        limits_cpu=bool(info.get("CpuCfsQuota")),
        obeys_ulimits=True,
        seccomp=options.get("seccomp", "unconfined") != "unconfined",
        mandatory_access=next((n for n in ("apparmor", "selinux") if n in options), ""),
        remaps_ids="userns" in options,
        kernel=str(info.get("KernelVersion") or ""),
        storage=str(info.get("Driver") or ""),
        unlimited=tuple(
            name
            for name, runtime in sorted((info.get("Runtimes") or {}).items())
            # gVisor's flag for hosts whose cgroups it cannot use
            if "--ignore-cgroups" in (runtime.get("runtimeArgs") or ())
        ),
    )


def podman_facts(info: Mapping[str, Json]) -> EngineFacts:
    """Return the facts from `/info` of podman's own API.

    podman's Docker-like API claims every limit, even if rootless podman applies none.
    """
    host: Mapping[str, Json] = info.get("host") or {}
    security: Mapping[str, Json] = host.get("security") or {}
    rootless = bool(security.get("rootless"))
    controllers = frozenset(host.get("cgroupControllers") or ())
    confined = [n for n in ("apparmor", "selinux") if security.get(f"{n}Enabled")]
    return EngineFacts(
        kind="podman",
        version=str((info.get("version") or {}).get("Version") or ""),
        rootless=rootless,
        oci_runtime=runtime_name(str((host.get("ociRuntime") or {}).get("name") or "")),
        cgroup_version=str(host.get("cgroupVersion") or "").removeprefix("v"),
        cpus=int(host.get("cpus") or 0),
        limits_memory="memory" in controllers,
        limits_pids="pids" in controllers,
        limits_cpu="cpu" in controllers,
        # Rootless podman's Docker-like API ignores ulimits; only its command line has them.
        obeys_ulimits=not rootless,
        seccomp=bool(security.get("seccompEnabled")),
        mandatory_access=confined[0] if confined else "",
        kernel=str(host.get("kernel") or ""),
        storage=str((info.get("store") or {}).get("graphDriverName") or ""),
    )


def runtime_name(runtime: str) -> str:
    return PurePosixPath(runtime).name
