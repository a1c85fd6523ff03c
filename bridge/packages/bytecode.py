"""Bytecode of installed packages: compiled once, in a sandbox, for all sets and bridges.

A sandbox has one wheel at a time, and can only return something for the sources of that wheel.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio.to_thread

from bridge.packages.sets import link_tree
from bridge.private_files import in_use

Compile = Callable[[Path], Awaitable[bytes | None]]
"""Returns what a sandbox compiled of a wheel; None if it failed."""


async def compile_set(
    tree: Path, wheels: Sequence[Path], tag: str, most: int, compiled: Compile
) -> None:
    """Add bytecode to the wheels of a set, and to the set, as far as it is missing.

    `tag` is the Python's in names of compiled files; a wheel's bytecode has at most `most` bytes.
    """
    for wheel in wheels:
        # It is evicted, or has no metadata.
        with suppress(OSError):
            marker = await anyio.to_thread.run_sync(_marker, wheel, tag)
            if (tree / marker).exists():
                continue
            with in_use((wheel / marker).parent, alone=True) as alone:
                # Otherwise another bridge compiles it, and a later run finds that.
                if alone and not (wheel / marker).exists():
                    await _compile(wheel, tag, most, compiled)
                    (wheel / marker).touch(mode=0o644)
            await anyio.to_thread.run_sync(link_tree, wheel, tree)


async def _compile(wheel: Path, tag: str, most: int, compiled: Compile) -> None:
    while data := await compiled(wheel):
        add = partial(add_bytecode, wheel, data, tag, most)
        if not await anyio.to_thread.run_sync(add):
            return


async def add_fonts(tree: Path, listed: Compile) -> None:
    """Add matplotlib's list of fonts to a set that has matplotlib, as a sandbox makes it."""
    place = tree / ".matplotlib"
    if not (tree / "matplotlib").is_dir() or place.exists():
        return
    name, _, content = (await listed(tree) or b"").partition(b"\n")
    if re.fullmatch(rb"fontlist-v[\w.-]{1,20}\.json", name):
        place.mkdir(mode=0o755)
        (place / name.decode()).write_bytes(content)
        (place / name.decode()).chmod(0o644)


def _marker(wheel: Path, tag: str) -> str:
    for found in wheel.glob("*.dist-info"):
        return f"{found.name}/COMPILED.{tag}"
    raise FileNotFoundError(str(wheel))


def add_bytecode(wheel: Path, data: bytes, tag: str, most: int) -> int:
    """Write compiled files next to their sources; return how many are new. `data` may lie."""
    added = 0
    sources = {
        str(Path(place, name).relative_to(wheel))
        for place, _, names in os.walk(wheel)
        for name in names
        if name.endswith(".py")
    }
    for name, content in _unpacked(data, most):
        if name not in sources:
            continue
        source = wheel / name
        made = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
        half = made.with_suffix(".half")
        with suppress(OSError):
            made.parent.mkdir(mode=0o755, exist_ok=True)
            if not made.exists():
                half.write_bytes(content)
                half.chmod(0o644)
                half.rename(made)
                added += 1
    return added


def _unpacked(data: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents in what a sandbox returned, up to the first that is malformed."""
    with suppress(zlib.error):
        rest = memoryview(zlib.decompressobj().decompress(data, most))
        while len(rest) > 4:
            pair = []
            for _ in range(2):
                end = 4 + int.from_bytes(rest[:4], "big")
                if len(rest) < end:
                    return
                pair.append(bytes(rest[4:end]))
                rest = rest[end:]
            yield os.fsdecode(pair[0]), pair[1]
