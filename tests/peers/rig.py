"""Where the peers are that `scripts/peers` installs."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
NPM = HERE / "node"
NODE = Path(sys.executable).with_name("node")


def environment(name: str) -> Path:
    """Return the Python of an environment."""
    python = HERE.parents[1] / ".state" / "peers" / name / "bin" / "python"
    assert python.exists(), f"there is no {python}; run scripts/peers {name}"
    return python
