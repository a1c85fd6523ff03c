"""Entries with mistakes: skipped, or used without a field, each with a precise reason.

bad_entries.txt has a client and its table of servers, and what is said of it; `UPDATE_FROZEN=1`
writes that anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from bridge.discovery.clients import LOCATIONS
from tests.discovery.parsing import Origin, parse_config

GOLDEN = Path(__file__).with_name("bad_entries.txt")
DIALECTS = {row.id: row.dialect for row in reversed(LOCATIONS)}
ENVIRON = {"TOKEN": "the-secret", "NUL": "a\0b", "EMPTY": ""}


def said_of(case: str) -> str:
    """Return what is said of a client's table of servers."""
    client, _, table = case.partition(" ")
    dialect = DIALECTS[client]
    for key in reversed(dialect.server_keys[-1].split(".")):
        table = f'{{"{key}": {table}}}'
    origin = Origin(
        client="Some client",
        scope="user",
        path="servers.json",
        dialect=dialect,
        environ=ENVIRON,
        home="/home/me",
        workspace="/home/me/shop",
    )
    found = parse_config(table.encode(), origin)
    assert len(found.servers) + len(found.skipped) == 1
    for each in found.skipped:
        assert f"skipped: {each.reason}" in [warning.reason for warning in found.warnings]
    return "\n".join(f"-> {warning}" for warning in found.warnings)


def test_an_entry_with_a_mistake_says_precisely_what_it_is() -> None:
    blocks = GOLDEN.read_text().strip().split("\n\n")
    cases = [block.partition("\n-> ")[0] for block in blocks]
    written = "\n\n".join(f"{case}\n{said_of(case)}" for case in cases) + "\n"
    assert written.replace("\n", " ").isprintable()
    assert "the-secret" not in written
    if os.environ.get("UPDATE_FROZEN"):
        GOLDEN.write_text(written)
    assert written == GOLDEN.read_text()
