"""Translates engine failures to the bridge's errors, with remedies. Pure.

The patterns come from real engines (Docker 20.10, podman 4.3). The first match decides.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import docker.errors
import requests.exceptions

from bridge.errors import BridgeError, EngineDownError, LaunchError, SandboxError

MAX_DETAIL = 2000  # An engine may send an error of any length; a long chain of causes fits.


class _Pattern(NamedTuple):
    regex: str
    error: Callable[..., SandboxError]
    remedy: str | None = None


_RUNTIME_REMEDY = (
    "Install that OCI runtime and make the engine know it, or name another with"
    " MCP_BRIDGE_OCI_RUNTIME."
)
_HYBRID_REMEDY = (
    "This host's cgroups are mixed (v1 and v2). Set MCP_BRIDGE_OCI_RUNTIME=runc and unset"
    " CONTAINER_HOST, or boot with systemd.unified_cgroup_hierarchy=1."
)
OWN_PODMAN_REMEDY = (
    "Unset CONTAINER_HOST: the bridge then starts podman with the OCI runtime that"
    " MCP_BRIDGE_OCI_RUNTIME names."
)
_RLIMIT_REMEDY = (
    "The engine may not raise its own limits. Lower the open-files limit, or start the engine with"
    " a higher one (ulimit -n, ulimit -u)."
)
_SUBUID_REMEDY = (
    "Give this user 65536 subordinate ids that no line of /etc/subuid and /etc/subgid has (`sudo"
    " usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER`) and run"
    " `podman system migrate`, or set MCP_BRIDGE_CONTAINER_USER to an id within its range."
)

_SHARE_REMEDY = (
    "The engine's machine does not see this directory. Share it with that machine (`podman"
    " machine init --volume DIR:DIR`, Docker Desktop's file sharing), or name a shared one in"
    " [directories], or as `cache` of [dependencies]."
)

_MISSING = partial(SandboxError, code="image_missing")
_PULL = partial(SandboxError, code="image_pull_failed")
_RUNTIME = partial(LaunchError, code="oci_runtime_broken")
_CGROUP = partial(LaunchError, code="cgroup")

_PATTERNS: tuple[_Pattern, ...] = (
    _Pattern(
        r"bind source path does not exist|mounts denied|is not shared from the host"
        r"|(?:statfs|error mounting) [^:]*: no such file or directory",
        LaunchError,
        _SHARE_REMEDY,
    ),
    _Pattern(r"toomanyrequests|pull access denied|initializing source docker://", _PULL),
    _Pattern(r"no such image|image not known|unable to find image", _MISSING),
    _Pattern(
        r"unknown runtime specified|unknown or invalid runtime"
        r'|default OCI runtime "[^"]*" not found|no valid executable found for OCI runtime',
        _RUNTIME,
        _RUNTIME_REMEDY,
    ),
    _Pattern(
        r"executable file not found in \$PATH|command that was not found|no such file or directory"
        r": OCI runtime attempted",
        LaunchError,
        "The image has no such command. Rebuild it with `mcp-code-bridge image build`, or set"
        " MCP_BRIDGE_IMAGE to one with Python.",
    ),
    _Pattern(
        r'exec: "[^"]*": permission denied|exec format error',
        LaunchError,
        "The image's command cannot be executed here. Rebuild the image for this machine with"
        " `mcp-code-bridge image build`.",
    ),
    _Pattern(r"setting rlimit|rlimit type", LaunchError, _RLIMIT_REMEDY),
    _Pattern(r"cgroups in hybrid mode|drop all controllers from cgroupv2", _CGROUP, _HYBRID_REMEDY),
    _Pattern(
        r"graphdriver|storage driver",
        _RUNTIME,
        "Change storage.conf until `podman info` works; in a container, mount a volume for it.",
    ),
    _Pattern(
        r"memory limit (?:allowed is|to \d+)|range of cpus is|minimum memory",
        _CGROUP,
        "Set MCP_BRIDGE_MEMORY and MCP_BRIDGE_CPUS to values that this host has.",
    ),
    _Pattern(
        r"cgroup",
        _CGROUP,
        "Let this user's session manage its cgroup (on systemd: `Delegate=yes` for user@.service),"
        " or run the engine as root.",
    ),
    _Pattern(
        r"setgroups: invalid argument|potentially insufficient UIDs or GIDs|lchown"
        r"|newuidmap|newgidmap|cannot (?:setup|set up) (?:namespace|user namespace)",
        LaunchError,
        _SUBUID_REMEDY,
    ),
    _Pattern(
        r"unable to find user",
        LaunchError,
        "Set MCP_BRIDGE_CONTAINER_USER to numeric ids, such as 65534:65534.",
    ),
    _Pattern(
        r"seccomp profile",
        LaunchError,
        "The engine's seccomp profile is broken; reinstall the engine's default one.",
    ),
    _Pattern(
        r"OCI runtime|oci runtime error|runc create failed|runsc|crun:|kata"
        r"|OCI permission denied|shim task",
        _RUNTIME,
        "Name an OCI runtime that works on this host with MCP_BRIDGE_OCI_RUNTIME (runc, crun).",
    ),
    _Pattern(
        r"no space left on device|disk quota exceeded",
        LaunchError,
        "Free space where the engine keeps its containers.",
    ),
)


_REMEDIES = {
    ("docker", "permission"): "Add this user to the group `docker` (`sudo usermod -aG docker $USER`"
    ", then log in again; the group is as good as root), or use rootless podman:"
    " MCP_BRIDGE_RUNTIME=podman.",
    ("podman", "permission"): "Unset CONTAINER_HOST to use this user's own rootless podman.",
    ("docker", "down"): "Start it (`sudo systemctl start docker`, or Docker Desktop), or check"
    " DOCKER_HOST.",
    ("podman", "down"): "Start it (`systemctl --user start podman.socket`, or `podman machine"
    " start`), or check CONTAINER_HOST.",
    ("docker", "missing"): "Install Docker, or use podman: MCP_BRIDGE_RUNTIME=podman.",
    ("podman", "missing"): "Install podman (`apt install podman`, `brew install podman`), or use"
    " docker: MCP_BRIDGE_RUNTIME=docker.",
}


def remedy_for(engine: str, problem: Literal["permission", "down", "missing"]) -> str:
    return _REMEDIES["docker" if engine == "docker" else "podman", problem]


def down(engine: str, message: str) -> EngineDownError:
    return EngineDownError(message, remedy=remedy_for(engine, "down"))


def not_found(engine: str) -> SandboxError:
    remedy = remedy_for(engine, "missing")
    return SandboxError(f"{engine} is not installed.", remedy=remedy, code="engine_not_found")


def from_text(text: str, *, doing: str, engine: str) -> SandboxError:
    """Return the error for an engine's output; `doing` is the attempted action."""
    detail = one_line(text)
    message = f"{engine} could not {doing}: {detail}."
    for pattern, error, remedy in _PATTERNS:
        if re.search(pattern, text, re.IGNORECASE):
            return error(message, remedy=remedy)
    remedy = "Run `mcp-code-bridge doctor` to see what this engine can do."
    return LaunchError(message, remedy=remedy)


def from_exception(error: BaseException, *, doing: str, engine: str) -> BridgeError:
    """Translate an exception of the docker SDK, requests or a socket; return ours unchanged."""
    if isinstance(error, BridgeError):
        return error
    if isinstance(error, docker.errors.APIError):
        return from_text(str(error.explanation or error), doing=doing, engine=engine)
    os_error = _first_os_error(error)
    if isinstance(os_error, PermissionError):
        return SandboxError(
            f"{engine}'s socket refuses this user (trying to {doing}).",
            remedy=remedy_for(engine, "permission"),
            code="engine_permission",
        )
    if isinstance(error, requests.exceptions.Timeout | TimeoutError):
        return down(engine, f"{engine} did not answer in time (trying to {doing}).")
    if os_error is not None or isinstance(error, (OSError, docker.errors.DockerException)):
        reason = os_error.strerror if os_error and os_error.strerror else str(os_error or error)
        return down(engine, f"{engine} does not answer (trying to {doing}): {one_line(reason)}.")
    return LaunchError(f"{engine} could not {doing}: {one_line(repr(error))}.")


def is_absent(error: BaseException) -> bool:
    """Return whether an error means that no process listens at a local socket's path."""
    cause = _first_os_error(error)
    absent = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ENOTSOCK)
    return cause is not None and cause.errno in absent


def is_gone(error: BaseException) -> bool:
    if isinstance(error, docker.errors.APIError):
        return error.status_code == 404 and not isinstance(error, docker.errors.ImageNotFound)
    return False


def is_not_running(error: BaseException) -> bool:
    return _says(error, "is not running|can only kill running|state improper|no such process")


def is_no_image(error: BaseException) -> bool:
    # podman 4 reads the id of a removed image as a name, and answers 500.
    missing = isinstance(error, docker.errors.APIError) and error.status_code == 404
    return missing or _says(error, "cannot specify 64-byte hexadecimal")


def is_in_use(error: BaseException) -> bool:
    return isinstance(error, docker.errors.APIError) and error.status_code == 409


def is_being_removed(error: BaseException) -> bool:
    return _says(error, r"removal of container .* is already in progress")


def _says(error: BaseException, words: str) -> bool:
    return isinstance(error, docker.errors.APIError) and bool(
        re.search(words, str(error.explanation or error), re.IGNORECASE)
    )


def one_line(text: str) -> str:
    """Return `text` on one line, within `MAX_DETAIL`, without a final full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"


def _first_os_error(error: BaseException) -> OSError | None:
    """Return the first OSError with a number among an error, its arguments and its causes."""
    errors = [error]
    for current in errors:
        # requests' own exceptions are OSErrors too.
        foreign = isinstance(current, requests.exceptions.RequestException)
        if isinstance(current, OSError) and not foreign and current.errno is not None:
            return current
        linked = (*current.args, current.__cause__, current.__context__)
        errors += [e for e in linked if isinstance(e, BaseException) and e not in errors]
    return None
