"""Layers that engines put in force only if asked for more than their defaults.

Owns what is requested of an engine: our seccomp profile, and unused host ids for a user namespace
(podman's "auto"); the file that podman reads the profile from; and what an engine declined, which
is requested once and then reported as missing.

Does not: request ids of their own where they are expensive. Where the kernel maps the owners of an
image's files (5.19, overlay storage) they cost 0.215 s instead of 0.20 s for a podman run,
measured. Elsewhere podman copies and chowns the image once per set of ids in use. Where podman has
no ids to give, which is how distributions ship it, it says so to the first request: that is not
reported as missing. Docker's remapping is a setting of its daemon; rootless engines always remap.

Verified: `tests/sandbox/container/test_extra_layers.py`; "own-seccomp" and "user-namespace" from
inside (`layers`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import get_args

from bridge.atomic_files import replace_file
from bridge.errors import SandboxError
from bridge.sandbox.container import faults
from bridge.sandbox.container.facts import EngineFacts
from bridge.sandbox.container.service import make_private
from bridge.sandbox.layers import brings_own_kernel
from bridge.sandbox.syscalls import Purpose, oci_profile

OWN_SECCOMP = "own-seccomp"
USER_NAMESPACE = "user-namespace"

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

NAMESPACE_IDS = 65_536
"""Ids in a sandbox's user namespace: enough for all of an image's files and users."""

AUTO_NAMESPACE = f"auto:size={NAMESPACE_IDS}"

_DECLINED = (
    (OWN_SECCOMP, re.compile(r"seccomp", re.IGNORECASE)),
    (
        USER_NAMESPACE,
        re.compile(r"available [UG]?IDs|sub[ug]id|user ?ns|user namespace|mappings", re.IGNORECASE),
    ),
)


@cache
def profile_text(purpose: Purpose) -> str:
    """Return the bridge's seccomp profile as JSON."""
    return json.dumps(oci_profile(purpose), separators=(",", ":"))


@dataclass(kw_only=True)
class ExtraLayers:
    """The layers requested of one engine beyond its defaults. Layers are only ever removed.

    Attributes:
        seccomp: The value of "seccomp=" for each purpose: the profile, or a path.
        user_namespace: podman's mode; empty for the engine's default.
    """

    seccomp: dict[Purpose, str] = field(default_factory=dict)
    user_namespace: str = ""
    lacking: list[str] = field(default_factory=list)

    def declined(self, error: SandboxError, *, proven: bool) -> bool:
        """Remove the layer that `error` is about; return whether there was one.

        Args:
            proven: Whether containers have started with all this on the engine. Then an error
                about filters has another cause; ids were there and have run out.
        """
        for layer, about in _DECLINED:
            if not about.search(error.message):
                continue
            cause = f"the engine declined ({faults.shorten(error.message)})"
            if layer == OWN_SECCOMP and self.seccomp and not proven:
                self.seccomp = {}
                self.lacking.append(f"{layer}: {cause}")
                return True
            if layer == USER_NAMESPACE and self.user_namespace:
                self.user_namespace = ""
                if proven:
                    self.lacking.append(f"{layer}: {cause}")
                return True
        return False


def choose_extra_layers(
    facts: EngineFacts,
    *,
    oci_runtime: str,
    runtime_dir: Path,
    local: bool,
    owner: int = 0,
) -> ExtraLayers:
    """Return the layers to request of an engine; write the file that podman reads.

    Args:
        runtime_dir: This user's private directory, for podman's file.
        local: Whether the engine sees this machine's files.
        owner: The user id that runs the engine.
    """
    made = ExtraLayers()
    if brings_own_kernel(oci_runtime):
        # gVisor loads no profile; in a virtual machine it would protect the machine's kernel.
        return made
    if facts.kind == "docker":
        made.seccomp = {purpose: profile_text(purpose) for purpose in PURPOSES}
    elif not facts.seccomp:
        # podman would accept the profile and not apply it.
        made.lacking.append(f"{OWN_SECCOMP}: podman finds no seccomp here")
    elif local and owner not in (0, os.getuid()):
        made.lacking.append(f"{OWN_SECCOMP}: podman is another user's, who cannot read our file")
    elif local:
        try:
            made.seccomp = {on: str(write_profile(runtime_dir, on)) for on in PURPOSES}
        except OSError as error:
            made.lacking.append(f"{OWN_SECCOMP}: its file cannot be written ({error})")
    else:
        made.lacking.append(f"{OWN_SECCOMP}: podman wants a file of its own machine, not of this")
    if local and maps_cheaply(facts):
        made.user_namespace = AUTO_NAMESPACE
    return made


def maps_cheaply(facts: EngineFacts) -> bool:
    """Return whether this podman remaps ids at little cost."""
    release = re.match(r"(\d+)\.(\d+)", facts.kernel)
    return (
        facts.kind == "podman"
        and not facts.rootless
        and facts.storage == "overlay"
        and release is not None
        # the kernel that maps owners on overlay mounts
        and tuple(map(int, release.groups())) >= (5, 19)
    )


def write_profile(directory: Path, purpose: Purpose) -> Path:
    """Write the bridge's profile to a file for podman, unless it exists; return its path.

    Raises:
        OSError: It cannot be written, or others could replace it.
    """
    text = profile_text(purpose).encode()
    path = directory / f"seccomp-{hashlib.sha256(text).hexdigest()[:16]}.json"
    make_private(directory)
    with suppress(OSError):
        if path.read_bytes() == text:
            return path
    replace_file(path, text)  # Another bridge's podman may be reading.
    return path
