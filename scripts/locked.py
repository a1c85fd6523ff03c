"""Takes from requirements.lock what one package needs, with its hashes."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def locked(package: str, *extras: str) -> str:
    """Return the lines of requirements.lock that a package needs, on each system and Python."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = {part.partition("==")[0]: part for part in re.split(r"\n(?=\w)", text) if "==" in part}
    systems = [
        {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0", "sys_platform": on}
        for minor in range(11, 15)
        for on in ("linux", "darwin")
    ]
    wanted, pending = set[str](), [(package, frozenset(extras))]
    seen = set(pending)
    while pending:
        owner, chosen = pending.pop()
        for each in map(Requirement, importlib.metadata.requires(owner) or ()):
            name = re.sub(r"[-_.]+", "-", each.name).lower()
            needed = not each.marker or any(
                each.marker.evaluate({**system, "extra": extra})
                for system in systems
                for extra in ("", *chosen)
            )
            if needed and name in lines and (name, frozenset(each.extras)) not in seen:
                wanted.add(name)
                seen.add((name, frozenset(each.extras)))
                pending.append((name, frozenset(each.extras)))
    return "".join(f"{lines[name].strip()}\n" for name in sorted(wanted))
