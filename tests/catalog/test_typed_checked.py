"""A type checker accepts the stubs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bridge.catalog.stubs import server_stub
from tests.catalog.nasty_servers import nasty_entries


def test_mypy_accepts_stubs(tmp_path: Path) -> None:
    for number, entry in enumerate(nasty_entries()):
        (tmp_path / f"stub_{number}.py").write_text(server_stub(entry))
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
            f"--cache-dir={tmp_path / 'cache'}", *map(str, sorted(tmp_path.glob("*.py"))),
        ],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0)
