"""Configuration files of tests."""

from __future__ import annotations

import json
from pathlib import Path


def write(path: Path, value: object) -> Path:
    """Write a file and its directories; a value other than text becomes JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path
