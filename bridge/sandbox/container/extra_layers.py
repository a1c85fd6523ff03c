"""What is requested of an engine beyond its defaults: our seccomp profile, host ids per sandbox.

Ids of their own (podman's "auto") are requested only where the kernel maps the owners of an image's
files: elsewhere podman copies the image per set of ids. If podman has no ids to give, that is not
reported as missing. Docker's remapping is its daemon's; rootless engines always remap.
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

        If containers have started with all this (`proven`), an error about filters has another
        cause, and ids have run out.
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
    """Return the layers to request of an engine, run by the user `owner`; write podman's file."""
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
    text = profile_text(purpose).encode()
    path = directory / f"seccomp-{hashlib.sha256(text).hexdigest()[:16]}.json"
    make_private(directory)
    with suppress(OSError):
        if path.read_bytes() == text:
            return path
    replace_file(path, text)  # Another bridge's podman may be reading.
    return path
