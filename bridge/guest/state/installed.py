"""Reports the contents of a sandbox: its distributions, bytecode or fonts of its packages.

Metadata is read and sources are compiled; only the font list runs code of a package.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

from bridge.guest.protocol.distributions import normalize_name
from bridge.guest.protocol.wire import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Sequence

    from bridge.guest.protocol.wire import Run

PART_BYTES = 512 * 1024


def report(run: Run, path: Sequence[str]) -> Iterator[State]:
    """Yield the report that a run requests with its `argv`, in parts; `path` is the import path."""
    if run.argv == ["distributions"]:
        data = json.dumps(distributions(path)).encode()
    elif run.argv == ["fonts"]:
        data = fonts(run.paths[0])
    else:
        data = bytecode(run.paths[0], float(run.limits["timeout"]) / 5)
    for start in range(0, len(data) or 1, PART_BYTES):
        yield State(data=data[start : start + PART_BYTES])


def distributions(path: Sequence[str]) -> List[List[object]]:
    """Return [name, version, names of dependencies] of each distribution, in import order."""
    from importlib import metadata

    found: Dict[str, List[object]] = {}
    for one in metadata.distributions(path=list(path)):
        try:
            name, requires = one.metadata["Name"], one.requires or []
            needs = [
                re.split("[^A-Za-z0-9._-]", text, maxsplit=1)[0]
                for text in requires
                if "extra" not in text
            ]
            found.setdefault(normalize_name(name), [name, one.version, needs])
        except Exception:
            # It has no usable metadata.
            continue
    return list(found.values())


def fonts(root: str) -> bytes:
    """Return the name and the content of matplotlib's font list file."""
    sys.path.insert(1, root)
    __import__("matplotlib.font_manager")
    directory = os.environ["MPLCONFIGDIR"]
    name = next(name for name in os.listdir(directory) if name.startswith("fontlist-"))
    with open(os.path.join(directory, name), "rb") as file:
        return name.encode() + b"\n" + file.read()


def bytecode(root: str, seconds: float) -> bytes:
    """Return compiled files of a directory, compressed, within a time limit and 64 MiB.

    Each entry is the source's path, the length and the content. Tests and sources that are already
    compiled are omitted. Packages are compiled, not run.
    """
    import _imp
    import zlib
    from importlib import _bootstrap_external, util

    bootstrap: Any = _bootstrap_external
    end = time.monotonic() + seconds
    packed, left, parts = zlib.compressobj(1), 64 * 1024 * 1024, []
    for directory, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in ("tests", "__pycache__")]
        for name in names:
            path = os.path.join(directory, name)
            if not name.endswith(".py") or os.path.exists(util.cache_from_source(path)):
                continue
            if time.monotonic() > end or left < 0:
                break
            try:
                with open(path, "rb") as file:
                    source = file.read()
                code = compile(source, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, OSError, MemoryError, RecursionError):
                # A template, or for another Python.
                continue
            key = _imp.source_hash(bootstrap._RAW_MAGIC_NUMBER, source)
            data = bytes(bootstrap._code_to_hash_pyc(code, key, False))
            head = os.path.relpath(path, root).encode("utf-8", "surrogateescape")
            parts += [packed.compress(len(part).to_bytes(4, "big") + part) for part in (head, data)]
            left -= len(data)
    return b"".join([*parts, packed.flush()]) if parts else b""
