"""Golden data of this directory: `golden.json`, which `UPDATE_FROZEN=1` writes again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "golden.json"


def is_golden(name: str, value: Any) -> bool:
    known: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    value = json.loads(json.dumps(value))
    if os.environ.get("UPDATE_FROZEN"):
        known[name] = value
        text = json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False)
        FILE.write_text(f"{text}\n", encoding="utf-8")
    return bool(known.get(name) == value)
