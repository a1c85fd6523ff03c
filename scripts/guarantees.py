"""The promises in SECURITY.md, from the marks on the tests that hold them, and two tables there."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.shared import CHANNELS, RESOURCES
from tests.security.guarantees import PROMISES

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "SECURITY.md"

BEGIN = "<!-- The list of promises: written by `make reference` from the marks of the tests. -->"
END = "<!-- The list of promises ends. -->"

TABLES_BEGIN = "<!-- The tables of what is shared: written by `make reference`. -->"
TABLES_END = "<!-- The tables of what is shared end. -->"

_MARK = re.compile(r"mark\.guarantee\(([^)]*)\)")


def files_of_promises() -> dict[str, list[str]]:
    """Return the test files that hold each promise.

    Raises:
        ValueError: A mark names no promise, or a promise has no test.
    """
    files: dict[str, list[str]] = {name: [] for name in PROMISES}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        marks = _MARK.findall(path.read_text("utf-8")) if "node_modules" not in path.parts else ()
        file = path.relative_to(ROOT).as_posix()
        for name in {name for mark in marks for name in re.findall(r'"([^"]*)"', mark)}:
            if name not in files:
                raise ValueError(f"{file}: tests/security/guarantees.py has no promise {name!r}")
            files[name].append(file)
    if bare := [name for name in files if not files[name]]:
        raise ValueError(f"no test has the mark guarantee({bare[0]!r})")
    return files


def _test(named: str) -> str:
    """Return the file of a row's test, as the tables show it.

    Raises:
        ValueError: There is no such test.
    """
    file, _, name = named.partition("::")
    if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE):
        raise ValueError(f"there is no test {named}")
    return f"`{file}`"


def tables() -> list[str]:
    """Return the tables of shared resources and of channels, with the tests of their rows."""
    rows = ["| what | owner | share | at the bound | test |", "|---|---|---|---|---|"]
    for each in RESOURCES:
        cells = (each.name, each.owner, each.share or "none", each.bound, _test(each.test))
        rows.append(f"| {' | '.join(cells)} |")
    rows += ["", "What gets out of a run, and what judges each way:", ""]
    rows += ["| channel | judged by | test |", "|---|---|---|"]
    rows += [f"| {each.name} | {each.judge} | {_test(each.test)} |" for each in CHANNELS]
    return rows


def with_promises(document: str) -> str:
    """Return SECURITY.md with the present tables and the present list between their marks."""
    before, _, rest = document.partition(TABLES_BEGIN)
    after = rest.partition(TABLES_END)[2]
    document = "\n".join([f"{before}{TABLES_BEGIN}\n", *tables(), f"\n{TABLES_END}{after}"])
    before, _, rest = document.partition(BEGIN)
    after = rest.partition(END)[2]
    rows = [
        f"- {PROMISES[name]} {', '.join(f'`{file}`' for file in files)}"
        for name, files in files_of_promises().items()
    ]
    return "\n".join([f"{before}{BEGIN}\n", *rows, f"\n{END}{after}"])


def main() -> None:
    """Write the list into SECURITY.md."""
    DOCUMENT.write_text(with_promises(DOCUMENT.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
