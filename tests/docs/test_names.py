"""The modules that documents and docstrings mention exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [
        *ROOT.glob("bridge/**/*.py"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*.md"),
        ROOT / "Makefile",
    ]
)
EXAMPLES = {"docs/skills.md", "bridge/saved_functions/files.py", "CHANGELOG.md"}
"""Files that mention a user's files, or those of earlier versions."""

_FILE = re.compile(r"`([\w/]+\.py)`")
_MODULE = re.compile(r"`(bridge(?:\.[a-z_]\w*)+)")


def test_every_module_that_is_mentioned_exists() -> None:
    missing = [
        f"{place}: {name}"
        for file in FILES
        if (place := file.relative_to(ROOT).as_posix()) not in EXAMPLES
        for text in [file.read_text(encoding="utf-8")]
        for name in [
            *(name for name in _FILE.findall(text) if not _is_file(name, file.parent)),
            *(name for name in _MODULE.findall(text) if not _is_module(name)),
        ]
    ]
    assert not missing, "\n".join(missing)


def _is_file(name: str, folder: Path) -> bool:
    if "NAME" in name:
        return True
    if any((place / name).is_file() for place in (folder, ROOT, ROOT / "bridge")):
        return True
    # Documents name a file within a folder that they named before.
    return "/" not in name and any(
        ROOT.glob(f"tests/**/{name}" if "bridge" in folder.parts else f"bridge/**/{name}")
    )


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return any(
        one.with_suffix(".py").is_file() or (one / "__init__.py").is_file()
        for one in (path, path.parent)
        if one != ROOT
    )
