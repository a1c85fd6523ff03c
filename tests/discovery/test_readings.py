"""Documents in clients' dialects, and their servers, skipped entries and warnings.

readings.txt has documents behind their dialect; lines with "?" have other fields of `Origin`.
`UPDATE_FROZEN=1` writes the outcomes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from bridge.discovery import dialect as dialects
from bridge.model import ServerSpec
from tests.discovery.parsing import Found, Origin, parse_config
from tests.golden_texts import assert_outcomes

GOLDEN = Path(__file__).with_name("readings.txt")
ENVIRON = {"TOKEN": "the-secret", "NUL": "a\0b", "EMPTY": ""}


def read(lines: list[str]) -> Found:
    dialect, _, document = lines[-1].partition(" ")
    given = {
        "path": "servers.json",
        "workspace": "/home/me/shop",
        "projects": ("/home/me/shop", "/home/me/shop/sub"),
    }
    for line in lines[:-1]:
        given |= json.loads(line.removeprefix("? "))
    origin = Origin(
        client="Some client",
        scope="user",
        dialect=getattr(dialects, dialect),
        environ=ENVIRON,
        home="/home/me",
        **given,  # type: ignore[arg-type]  # fields as the file has them
    )
    return parse_config(document.encode(), origin)


def told(found: Found) -> Iterator[str]:
    for each in found.entries:
        if isinstance(each, ServerSpec):
            yield f"{each.source.key or 'bare'}: {json.dumps(dict(_fields(each)), default=str)}"
        else:
            free = "foreign" if each.foreign else "holds the name" if each.holds_name else "none"
            yield f"{each.source.key or 'bare'}: {free}, {each.reason}"
    yield from (f"warning: {warning}" for warning in found.warnings)


def _fields(spec: ServerSpec) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if value != default and field.name not in ("source", "templates"):
            yield field.name, dataclasses.asdict(value) if field.name == "oauth" else value


def outcomes(lines: list[str]) -> list[str]:
    found = read([line for line in lines if not line.startswith("#")])
    assert "the-secret" not in "".join(map(str, found.warnings))
    said = list(told(found))
    assert "".join(said).isprintable()
    return said


def test_what_a_document_means_in_its_dialect() -> None:
    assert_outcomes(GOLDEN, outcomes)
