"""The isolation of a command's container, as seen from inside.

A command is the first process of its container. So the guest's self-examination runs in another
container of the same configuration, by the image's own Python, once per connection.
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
from bridge.sandbox.container.api import EngineApi
from bridge.sandbox.container.sandbox import run_container
from bridge.sandbox.layers import of_command, require_mandatory_layers
from bridge.sandbox.probe import probe_argv, receive_facts

UNEXAMINED = "verification: not examined from inside, since the image has no usable python3"

_SHAPING = ("Image", "User", "NetworkDisabled", "HostConfig")
"""The fields of a create call's body that decide how its container is isolated."""

_NO_PYTHON = re.compile(
    r"python3.{0,80}(not found|no such file)|(not found|error finding).{0,80}python3",
    re.IGNORECASE | re.DOTALL,
)

Examinations = dict[str, Mapping[str, Any] | None]
"""Facts by the configuration fields of `_SHAPING`, as JSON; None if an image has no Python."""


async def examined_isolation(
    api: EngineApi,
    config: Mapping[str, Json],
    isolation: Isolation,
    examinations: Examinations,
    not_removed: Callable[[str], None],
) -> Isolation:
    """Return the isolation of a container as seen from inside a like one, before it is made.

    Raises:
        SandboxError: A mandatory layer does not hold, or such a container does not start.
    """
    key = json.dumps([config[name] for name in _SHAPING], sort_keys=True)
    if key not in examinations:
        facts = await look_inside(api, config, isolation, not_removed)
        if len(examinations) >= 100:  # usually one for each profile
            examinations.clear()
        examinations[key] = facts
    return judged(isolation, examinations[key])


def judged(isolation: Isolation, facts: Mapping[str, Any] | None) -> Isolation:
    if facts is None:
        require_mandatory_layers(isolation, {})
        return replace(isolation, weaker=(*isolation.weaker, UNEXAMINED), host_kernel=None)
    return of_command(isolation, facts)


def examination_config(config: Mapping[str, Json]) -> dict[str, Json]:
    # This attempt would write to the user's workspace; the mount options show it as well.
    argv = probe_argv(untried=("sized-tmpfs-noexec",))
    return {**config, "Entrypoint": list(argv), "Cmd": [], "Env": [], "WorkingDir": "/"}


async def look_inside(
    api: EngineApi,
    config: Mapping[str, Json],
    isolation: Isolation,
    not_removed: Callable[[str], None],
) -> Mapping[str, Any] | None:
    """Return what the probe's program sees in a container; None where the image has no Python."""
    name = hardening.container_name("look", secrets.token_hex(4))
    try:
        async with run_container(
            api,
            name,
            examination_config(config),
            isolation=isolation,
            reports_oom=False,
            not_removed=not_removed,
        ) as sandbox:
            with anyio.move_on_after(60.0):
                return await receive_facts(sandbox)
    except ChannelClosedError:
        return None  # the image's python3 is not a usable Python
    except SandboxError as error:
        if not lacks_python(error.message):
            raise
    return None


def lacks_python(said: str) -> bool:
    return _NO_PYTHON.search(said) is not None
