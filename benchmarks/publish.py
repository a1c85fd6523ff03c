"""Put the last results into docs/performance.md: the table between two markers, and the histograms.

The figures without their samples go to published.json, with which later readings are compared.

python -m benchmarks.publish [RESULTS]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import pictures
from benchmarks.options import PUBLISHED, RESULTS
from benchmarks.results import Results, ResultsError, dumped, load
from benchmarks.table import counted, machine_line, markdown
from benchmarks.targets import BY_KEY

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
PICTURES = DOCS / "performance"

BEGIN = "<!-- begin: written by `make bench-publish` -->"
END = "<!-- end: written by `make bench-publish` -->"

MAX_PICTURE_BYTES = 30_000


class PublishError(Exception):
    """The page cannot be written; the text says why."""


def section(results: Results, drawn: Sequence[str]) -> str:
    """Return what stands between the markers."""
    parts = [f"{machine_line(results)}.", counted(results), markdown(results)]
    parts += [f"{name} was skipped: {why}" for name, why in results.skipped.items()]
    parts += [
        f"![{pictures.title(BY_KEY[name.removesuffix('.svg')])}](performance/{name})"
        for name in drawn
    ]
    return "\n\n".join(parts)


def replaced(page: str, text: str) -> str:
    """Return the page with `text` between its markers.

    Raises:
        PublishError: It has not exactly one of each, in order.
    """
    head, begin, rest = page.partition(BEGIN)
    old, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in old + tail or END in tail:
        message = f"The page needs the line {BEGIN!r} once, and {END!r} once below it."
        raise PublishError(message)
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def without_samples(results: Results) -> Results:
    """Return results with figures and floors alone."""
    rows = tuple(replace(row, samples=(), floor_samples=()) for row in results.rows)
    return replace(results, rows=rows)


def publish(results: Results, page: Path, directory: Path, reading: Path) -> list[Path]:
    """Write the page, the pictures and the reading; return what was written.

    Raises:
        PublishError: The page has no markers, or a picture is too large to keep.
    """
    drawn = pictures.drawings(results)
    for name, text in drawn.items():
        if len(text.encode()) > MAX_PICTURE_BYTES:
            message = (
                f"{name} has {len(text.encode()):,} bytes; the limit is {MAX_PICTURE_BYTES:,}."
            )
            raise PublishError(message)
    text = replaced(page.read_text(encoding="utf-8"), section(results, list(drawn)))
    page.write_text(text, encoding="utf-8")
    reading.write_text(dumped(without_samples(results)), encoding="utf-8")
    return [page, reading, *pictures.write(results, directory)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--quick-too", action="store_true", help="even results of --quick")
    asked = parser.parse_args(arguments)
    try:
        results = load(asked.results)
        if results.quick and not asked.quick_too:
            message = "These results were taken with --quick. Run `make bench` without it."
            raise PublishError(message)
        written = publish(results, PAGE, PICTURES, PUBLISHED)
    except (ResultsError, PublishError) as error:
        print(f"bench-publish: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"Written: {path}" for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
