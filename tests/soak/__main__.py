"""Thousands of hostile runs, and samples of the host between them. Run it with `make soak`.

The exit status is 1 if a resource of the host grew, if anything is left at the end, or after an
unexpected ending of a program.
"""

from __future__ import annotations

import argparse
import sys
import time

import anyio

from tests.soak.soak import soak

SHARE = 10
"""Each backend but the first gets one in so many runs: engines take longer."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="in all")
    parser.add_argument("--backends", default="bubblewrap,podman,docker", help="comma separated")
    parser.add_argument("--at-once", type=int, default=3, help="runs at the same time")
    parser.add_argument(
        "--day", action="store_true", help="an ordinary day's programs instead of attacks"
    )
    options = parser.parse_args()
    first, *others = options.backends.split(",")
    share = options.runs // SHARE
    status = 0
    for backend, runs in [
        (first, options.runs - share * len(others)),
        *((o, share) for o in others),
    ]:
        print(f"\n{backend}: {runs} runs, {options.at_once} at once", flush=True)
        started = time.monotonic()
        report = anyio.run(soak, backend, runs, options.at_once, options.day)
        print(report.text())
        print(f"{runs} runs in {time.monotonic() - started:.0f} s", flush=True)
        status |= bool(report.complaints)
    return status


if __name__ == "__main__":
    sys.exit(main())
