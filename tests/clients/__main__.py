"""Drive the real clients against the bridge and write what was seen into docs/clients.md.

python -m tests.clients [PROGRAM ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.clients.every import CLIENTS
from tests.clients.probes import observed
from tests.clients.sizes import size_row, with_sizes
from tests.clients.table import PAGE, replaced, row


def main(arguments: Sequence[str] | None = None) -> int:
    """Observe the named clients, or all; return 1 if one of them is not installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    names = [client.program for client in CLIENTS]
    parser.add_argument("program", nargs="*", help=f"of {', '.join(names)}; all unless given")
    chosen = parser.parse_args(arguments).program or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    clients = [client for client in CLIENTS if client.program in chosen]
    for client in clients:
        if not client.path.exists():
            print(f"{client.title} is not installed; `make clients` installs it", file=sys.stderr)
            return 1
    new: dict[str, str] = {}
    sizes: dict[str, str] = {}
    for client in clients:
        with tempfile.TemporaryDirectory() as directory:
            new[client.title] = row(observed(client, Path(directory)))
        sizes[client.title] = size_row(client)
        print(new[client.title], sizes[client.title], sep="\n")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_sizes(replaced(page, new), sizes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
