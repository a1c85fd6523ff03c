"""Images as archives that containerd imports, made from a root filesystem without an engine."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shlex
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def configuration(instructions: Iterable[str]) -> dict[str, Any]:
    """Return the part of an image's configuration that Dockerfile instructions stand for.

    Raises:
        ValueError: An instruction is none of those that `build-rootfs.sh --changes` prints.
    """
    found: dict[str, Any] = {"Env": [], "Labels": {}}
    for instruction in instructions:
        word, _, rest = instruction.partition(" ")
        if word == "ENV":
            found["Env"] += shlex.split(rest)
        elif word == "LABEL":
            name, _, value = rest.partition("=")
            found["Labels"][name] = shlex.split(value)[0] if value else ""
        elif word == "CMD":
            found["Cmd"] = json.loads(rest)
        elif word == "WORKDIR":
            found["WorkingDir"] = rest
        elif word == "USER":
            found["User"] = rest
        elif word == "ENTRYPOINT":
            found["Entrypoint"] = json.loads(rest)
        else:
            message = f"no image configuration is known for {instruction!r}"
            raise ValueError(message)
    return found


def write_archive(target: Path, name: str, layers: Sequence[Path], config: dict[str, Any]) -> None:
    """Write an image of these layers, as `docker save` would, so that `ctr` imports it."""
    digests = []
    for layer in layers:
        with layer.open("rb") as file:
            digests.append(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
    described = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
    members = [f"layer{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": members}]
    with tarfile.open(target, "w") as archive:
        for member, layer in zip(members, layers, strict=True):
            archive.add(layer, member)
        for member, value in (("config.json", described), ("manifest.json", manifest)):
            data = json.dumps(value).encode()
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def write_single_file_archive(target: Path, name: str, program: Path) -> None:
    """Write an image that has one static program and runs it."""
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as archive:
        entry = tarfile.TarInfo(program.name)
        entry.mode, entry.size = 0o755, program.stat().st_size
        with program.open("rb") as file:
            archive.addfile(entry, file)
    write_archive(target, name, (layer,), {"Entrypoint": [f"/{program.name}"]})
    layer.unlink()
