"""The code could not be given a place to run in, or lost it."""

from __future__ import annotations

from bridge.errors.base import BridgeError


class SandboxError(BridgeError):
    """The bridge could not give the code a sandbox, or lost it."""

    code = "sandbox"
    exit_status = 3


class NoSandboxError(SandboxError):
    """Nothing on this machine can run code in isolation."""

    code = "no_sandbox"
    default_remedy = "Install podman or docker, then run `mcp-code-bridge doctor`."


class EngineNotFoundError(SandboxError):
    """The container engine is not installed."""

    code = "engine_not_found"


class EngineDownError(SandboxError):
    """The container engine is installed but does not answer."""

    code = "engine_down"


class EnginePermissionError(SandboxError):
    """The container engine's socket refuses this user."""

    code = "engine_permission"


class ImageMissingError(SandboxError):
    """The runtime image is not present on the engine."""

    code = "image_missing"
    default_remedy = "Run `mcp-code-bridge image build`."


class ImagePullError(SandboxError):
    """The runtime image could not be fetched."""

    code = "image_pull_failed"
    default_remedy = "Run `mcp-code-bridge image build --offline` to build it without a registry."


class ImageBuildError(SandboxError):
    """The runtime image could not be built."""

    code = "image_build_failed"


class OciRuntimeError(SandboxError):
    """The OCI runtime (crun, runc, runsc, ...) cannot start a container."""

    code = "oci_runtime_broken"


class CgroupError(SandboxError):
    """The engine could not apply resource limits."""

    code = "cgroup"


class LaunchError(SandboxError):
    """A sandbox was started but never became usable."""

    code = "launch_failed"


class BrokenIsolationError(SandboxError):
    """A sandbox came up, and is seen from inside to lack what keeps programs in."""

    code = "isolation_broken"
    default_remedy = (
        "What started it does not do what it was told: reinstall it, or set MCP_BRIDGE_RUNTIME to "
        "another backend."
    )


class WrongSystemError(SandboxError):
    """The backend is for another operating system."""

    code = "wrong_system"
    default_remedy = "Leave MCP_BRIDGE_RUNTIME at auto, which takes what works here."


class ChannelClosedError(SandboxError):
    """The byte stream to a sandbox ended while it was still needed."""

    code = "channel_closed"
