"""Texts that a test compares with a file; UPDATE_FROZEN=1 writes the file instead."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def assert_golden(file: Path, texts: Mapping[str, object]) -> None:
    """Compare JSON values by name with those in a file."""
    if os.environ.get("UPDATE_FROZEN"):
        file.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    assert json.loads(json.dumps(texts)) == json.loads(file.read_text())
