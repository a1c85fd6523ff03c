"""Build the documents as a site in the directory given: `python scripts/site.py build/site`.

Links are relative to the repository, so a copy of all that they may lead to is built. A page that
is in no menu, and a link whose file or heading does not exist, are errors. Nothing is fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
DIRECTORIES = ("docs", "configs", "examples")


def build(target: Path, *, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Return the finished process; its stderr names each broken link."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "documents")
        source.mkdir()
        for name in PAGES:
            shutil.copy(root / name, source)
        for name in DIRECTORIES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / name, source / name, ignore=ignored)
        settings = Path(scratch, "mkdocs.yml")
        settings.write_text(f"INHERIT: {root / 'mkdocs.yml'}\ndocs_dir: documents\n")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        return subprocess.run(
            [*command, "--config-file", str(settings), "--site-dir", str(target.resolve())],
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


if __name__ == "__main__":
    built = build(Path(sys.argv[1]))
    sys.stderr.write(built.stderr)
    sys.exit(built.returncode)
