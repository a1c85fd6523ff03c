"""The guest package as bytes: what is sent to a sandbox and what an image may carry.

Owns the bundle's format, its digest and the command that unpacks it. Reads the sources as package
resources, so that it works from a wheel; imports nothing of the guest but the wire format's name.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import resources
from pathlib import Path

_PACKAGE = "bridge.guest"

_LENGTH_BYTES = 8

INTERPRETER = ("python3", "-I", "-S", "-c")
"""Isolated and without `site`: nothing in the image's environment or packages runs before ours."""


@cache
def guest_modules() -> dict[str, str]:
    """Return every guest module's name and source, in the order of their names."""
    found: dict[str, str] = {}
    for entry in resources.files(_PACKAGE).iterdir():
        if not entry.name.endswith(".py"):
            continue
        stem = entry.name[: -len(".py")]
        name = _PACKAGE if stem == "__init__" else f"{_PACKAGE}.{stem}"
        # read_text would translate newlines; the digest is over what is there.
        found[name] = entry.read_bytes().decode("utf-8")
    return dict(sorted(found.items()))


@cache
def guest_digest() -> str:
    """Return what names this version of the guest: SHA-256 over its modules, hexadecimal."""
    digest = hashlib.sha256()
    for name, source in guest_modules().items():
        for part in (name.encode(), source.encode()):
            digest.update(len(part).to_bytes(_LENGTH_BYTES, "big"))
            digest.update(part)
    return digest.hexdigest()


@cache
def bundle_bytes() -> bytes:
    """Return what goes to a sandbox's stdin before any frame, its length in front."""
    modules = {
        name: source
        for name, source in guest_modules().items()
        # The bootstrap is on the command line already.
        if name != f"{_PACKAGE}.bootstrap"
    }
    document = json.dumps({"digest": guest_digest(), "modules": modules}, separators=(",", ":"))
    body = document.encode("utf-8")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def bootstrap_argv() -> tuple[str, ...]:
    """Return the command that a sandbox starts."""
    return (*INTERPRETER, guest_modules()[f"{_PACKAGE}.bootstrap"])


BOOTSTRAP_ARGV: tuple[str, ...] = bootstrap_argv()
"""The command that a sandbox starts; it waits for `bundle_bytes` on its stdin."""


def write_guest_tree(directory: Path) -> Path:
    """Write the guest's sources below `directory`, for an image to compile and carry.

    Returns:
        The directory named after the digest; its `bridge/guest` holds the modules.
    """
    root = directory / guest_digest()
    package = root / "bridge" / "guest"
    package.mkdir(parents=True, exist_ok=True)
    for name, source in guest_modules().items():
        stem = "__init__" if name == _PACKAGE else name.rpartition(".")[2]
        (package / f"{stem}.py").write_bytes(source.encode("utf-8"))
    return root
