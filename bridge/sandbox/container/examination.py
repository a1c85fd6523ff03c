"""The isolation of a command's container, as seen from inside.

A command is the first process of its container, with no code of ours before it. So the examination
that guests make of themselves runs in another container of the same configuration, once per
configuration and connection, by the image's own Python.

Enforces: the mandatory layers of `layers`, before the first such command starts. An image without
Python cannot be examined; then the isolation is what was requested, marked as unverified.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio

from bridge.errors import ChannelClosedError, SandboxError
from bridge.model import Isolation, Json
from bridge.sandbox.container import hardening
from bridge.sandbox.container.sandbox import ContainerCalls, run_container
from bridge.sandbox.layers import insist, verified
from bridge.sandbox.probe import probe_argv, receive_facts

LOOK_SECONDS = 60.0
"""For a container to start and answer: under a second."""

MAX_LOOKED = 100
"""Outcomes kept on a connection, one for each profile usually."""

UNSEEN = "verification: nothing could be looked at from inside, for the image has no usable python3"

_UNTRIED = ("sized-tmpfs-noexec",)
"""It would write to the workspace, which is the user's; the mounts' options tell it too."""

_SHAPING = ("Image", "User", "NetworkDisabled", "HostConfig")
"""Of a create call's body: what decides how its container is isolated."""

_NO_PYTHON = re.compile(
    r"python3.{0,80}(not found|no such file)|(not found|error finding).{0,80}python3",
    re.IGNORECASE | re.DOTALL,
)

Looked = dict[str, Mapping[str, Any] | None]
"""What was seen, by what shapes a container; None where nothing could be."""


async def seen_from_inside(
    api: ContainerCalls,
    config: Mapping[str, Json],
    isolation: Isolation,
    looked: Looked,
    not_removed: Callable[[str], None],
) -> Isolation:
    """Return the isolation of a container like this as it was seen, before it is made.

    Args:
        config: The body of the create call.
        looked: Outcomes so far; this one is added.

    Raises:
        BrokenIsolationError: What was seen may not be.
        OciRuntimeError: A kernel of its own was demanded and not seen.
        SandboxError: Such a container does not start.
    """
    key = json.dumps([config[name] for name in _SHAPING], sort_keys=True)
    if key not in looked:
        facts = await _look(api, config, isolation, not_removed)
        if len(looked) >= MAX_LOOKED:
            looked.clear()
        looked[key] = facts
    return judged(isolation, looked[key])


def judged(isolation: Isolation, facts: Mapping[str, Any] | None) -> Isolation:
    """Return the isolation as `facts` have it; see `seen_from_inside`."""
    if facts is None:
        insist(isolation, {})
        return replace(isolation, weaker=(*isolation.weaker, UNSEEN), host_kernel=None)
    found = facts.get("mounts")
    # The workspace is the user's directory; what else can be written to is in memory.
    mounts = {hardening.TMP: found[hardening.TMP]} if found and hardening.TMP in found else {}
    seen = {**facts, "mounts": mounts}
    insist(isolation, seen)
    return verified(isolation, seen)


def looking(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return the body of the create call for a container that looks around in a command's place."""
    argv = probe_argv(untried=_UNTRIED)
    return {**config, "Entrypoint": list(argv), "Cmd": [], "Env": [], "WorkingDir": "/"}


async def _look(
    api: ContainerCalls,
    config: Mapping[str, Json],
    isolation: Isolation,
    not_removed: Callable[[str], None],
) -> Mapping[str, Any] | None:
    name = hardening.container_name("look", secrets.token_hex(4))
    try:
        async with run_container(
            api,
            name,
            looking(config),
            isolation=isolation,
            knows_oom=False,
            not_removed=not_removed,
        ) as sandbox:
            with anyio.move_on_after(LOOK_SECONDS):
                return await receive_facts(sandbox)
    except ChannelClosedError:
        return None  # what is called python3 there does not listen
    except SandboxError as error:
        if not lacks_python(error.message):
            raise
    return None


def lacks_python(said: str) -> bool:
    """Tell whether an engine did not start a container because its image has no Python."""
    return _NO_PYTHON.search(said) is not None
