"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.targets import ENGINES, ROWS

DIRECTORY = Path(__file__).parent
RESULTS = DIRECTORY / "results.json"
PUBLISHED = DIRECTORY / "published.json"
"""The reading in docs/performance.md, without its samples."""

OUT = DIRECTORY / "out"

EPILOG = """\
other bridges: --peer starts any MCP server that offers a tool which runs code, and measures it
with the same client beside this bridge:

  python -m benchmarks --peer 'uvx some-code-server' --tool execute --arg code --code 'print(1)'
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the bridge beside floors taken in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--engine",
        action="append",
        choices=ENGINES,
        metavar="NAME",
        help=f"measure only on this one of {', '.join(ENGINES)}; may be given again",
    )
    made.add_argument(
        "--only",
        action="append",
        choices=[row.key for row in ROWS],
        metavar="ROW",
        help="measure only this row (--list names them); may be given again",
    )
    made.add_argument("--quick", action="store_true", help="few samples: does it work at all?")
    made.add_argument("--list", action="store_true", help="name the rows and their targets")
    made.add_argument(
        "--results", type=Path, default=RESULTS, metavar="PATH", help="where to write (%(default)s)"
    )
    peer = made.add_argument_group("other bridges")
    peer.add_argument("--peer", metavar="COMMAND", help="the server's command line, in one word")
    peer.add_argument("--tool", metavar="NAME", help="its tool that runs code")
    peer.add_argument("--arg", metavar="NAME", help="the tool's argument that takes the code")
    peer.add_argument("--extra", metavar="JSON", help="the tool's other arguments, an object")
    peer.add_argument("--code", metavar="TEXT", help="what to run in both (print(1))")
    peer.add_argument("--own-code", metavar="TEXT", help="what to run in this bridge instead")
    return made


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; end with a message on those that do not go together."""
    made = parser()
    options = made.parse_args(arguments)
    names = ("peer", "tool", "arg", "extra", "code", "own_code")
    given = {name: getattr(options, name) for name in names}
    if options.peer is None and any(value is not None for value in given.values()):
        made.error(
            "--tool, --arg, --extra, --code and --own-code say how to use a --peer; "
            "name its command too"
        )
    if options.peer is not None:
        lacking = [f"--{name}" for name in ("tool", "arg") if given[name] is None]
        if lacking:
            made.error(f"--peer needs {' and '.join(lacking)}: what runs code, and how it is given")
        if options.only:
            made.error("--only names rows of the table; a --peer is measured without them")
    return options
