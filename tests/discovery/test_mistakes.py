"""Files as people write them: what each gives, and what the user reads about the rest."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import SPELLINGS, Dialect
from bridge.discovery.finder import DiscoveryContext, discover
from bridge.model import ServerSpec
from tests.discovery.parsing import Origin
from tests.discovery.parsing import parse_config as parse
from tests.discovery.writing import write

MISTAKES = tomllib.loads((Path(__file__).parents[1] / "testdata" / "mistakes.toml").read_text())


@pytest.mark.parametrize("mistake", MISTAKES["mistake"], ids=lambda each: each["letter"])
def test_mistakes(mistake: Mapping[str, Any], context: DiscoveryContext) -> None:
    path = write(context.home / mistake["path"], mistake["text"])
    found = discover(replace(context, cwd=context.home / "repo"))
    said = [f"{each.name}: {each.reason}" for each in found.skipped]
    said += [f"{each.key}: {each.reason}" for each in found.warnings if not each.reported]
    assert [spec.name for spec in found.servers] == list(mistake["used"])
    assert said == [text.replace("@HOME@", str(context.home)) for text in mistake["said"]]
    assert all(each.source.path == str(path) for each in found.skipped)


@pytest.mark.parametrize("path", [".cursor/mcp.json", ".config/Code/User/mcp.json"])
def test_an_entry_that_nests_without_end_ends_nothing(path: str, context: DiscoveryContext) -> None:
    deep = '{"a":' * 900 + '["${input:x}"]' + "}" * 900
    entries = f'{{"a": {{"command": "x", "deep": {deep}}}}}'
    write(context.home / path, f'{{"mcpServers": {entries}, "servers": {entries}}}')
    assert [spec.name for spec in discover(context).servers] == ["a"]


DIALECTS = {row.client: row.dialect for row in LOCATIONS if row.dialect.server_keys}


def entry_in(dialect: Dialect, spelling: str, attribute: str) -> dict[str, object]:
    """Return a server with one field in another client's spelling."""
    own_url, own_command = dialect.url_keys[0], dialect.command_keys[0]
    entry: dict[str, object] = {own_command: ["x"] if dialect.command_list else "x"}
    if attribute in ("url_keys", "header_keys", "type_keys"):
        kind = "sse" if attribute == "url_keys" else "http"
        entry = {own_url: "https://h/", dialect.type_keys[0]: kind}
    own = getattr(dialect, attribute)[0]
    value = entry.pop(own, {"A": "b"})
    outer, _, inner = spelling.rpartition(".")
    return {**entry, outer or spelling: {inner: value} if outer else value}


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("attribute", [name for name in SPELLINGS if name != "server_keys"])
def test_every_spelling_is_the_client_s_own_or_named_with_what_to_write(
    client: str, attribute: str
) -> None:
    dialect = DIALECTS[client]
    origin = Origin(client=client, scope="user", path="/f", dialect=dialect, environ={}, home="/h")
    for spelling in SPELLINGS[attribute]:
        entry = {"name": "x", **entry_in(dialect, spelling, attribute)}
        document: object = [entry] if dialect.listed else {"x": entry}
        place = dialect.server_keys[0]
        for key in reversed([place] if dialect.flat_keys else place.split(".")):
            document = {key: document}
        found = parse(json.dumps(document).encode(), origin)
        (each,) = found.entries
        own = spelling in getattr(dialect, attribute)
        reasons = [f"{warning.key}: {warning.reason}" for warning in found.warnings]
        named = re.compile(rf"{re.escape(spelling)}: {client} does not read it[,;] write")
        assert any(map(named.search, reasons)) is not own, (spelling, reasons)
        assert isinstance(each, ServerSpec) or not own
