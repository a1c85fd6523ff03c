"""Which directories the user has told a client to trust: pure.

Codex and Gemini CLI use what a project's own files of theirs define in folders that the user
trusts. Whatever cannot be read trusts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePath

Trusts = Callable[[Mapping[str, object], tuple[str, ...]], bool]
"""A client's own file and the project's directories, to whether that file trusts them."""


def codex_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    """Read `[projects."<directory>"] trust_level` of Codex's `config.toml`."""
    projects = document.get("projects")
    if not isinstance(projects, Mapping):
        return False
    entries = [projects.get(directory) for directory in directories]
    levels = [entry.get("trust_level") for entry in entries if isinstance(entry, Mapping)]
    return "trusted" in levels and "untrusted" not in levels


def gemini_trusts(document: Mapping[str, object], directories: tuple[str, ...]) -> bool:
    """Read Gemini CLI's `trustedFolders.json`: the rule nearest to the working directory counts."""
    if not directories:
        return False
    here = PurePath(directories[-1])
    nearest, trusted = -1, False
    for path, level in document.items():
        if level not in ("TRUST_FOLDER", "TRUST_PARENT", "DO_NOT_TRUST"):
            continue
        folder = PurePath(os.path.dirname(path) if level == "TRUST_PARENT" else path)  # noqa: PTH120
        depth = len(folder.parts)
        if not here.is_relative_to(folder) or depth < nearest:
            continue
        # Of two rules on one folder, that which distrusts it.
        distrusted_alike = depth == nearest and not trusted
        trusted = level != "DO_NOT_TRUST" and not distrusted_alike
        nearest = depth
    return trusted
