"""A run that keeps nothing does not touch the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_plain_run_makes_no_database_and_imports_no_sqlalchemy(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
    }
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bridge", "run", "-c", "print(6 * 7)"],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "42\n"), run.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "bridge.store.store" in imported
    assert not {
        name for name in imported if name.partition(".")[0] in ("sqlalchemy", "sqlite3", "psycopg")
    }
    assert "bridge.store.postgresql" not in imported
    assert not list(tmp_path.rglob("store.db*"))
