"""Entries that were kept elsewhere come back to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.client_configs.document import open_document
from bridge.discovery.dialect import Format
from tests.client_configs.changes import ENTRY
from tests.client_configs.texts import NAMES

FIELDS = st.fixed_dictionaries(
    {"command": st.sampled_from(["npx", "/bin/x y"])},
    optional={
        "args": st.lists(st.sampled_from(["-y", "a b", "no"]), max_size=2),
        "env": st.dictionaries(NAMES, st.just("v"), max_size=2),
        "timeout": st.integers(1, 9),
    },
)

TABLES: dict[Format, tuple[str]] = {
    "jsonc": ("mcpServers",),
    "toml": ("mcp_servers",),
    "yaml": ("servers",),
}


def sections(value: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    if path not in ((), TABLES["toml"]):
        lines = [f"[{'.'.join(map(json.dumps, path))}]"]
        pairs = ((json.dumps(key), item) for key, item in value.items())
        lines += [
            f"{key} = {json.dumps(item)}" for key, item in pairs if not isinstance(item, dict)
        ]
        yield "\n".join(lines) + "\n"
    for key, item in value.items():
        if isinstance(item, dict):
            yield from sections(item, (*path, key))


def written(format: Format, value: dict[str, object], indent: int | str | None) -> bytes:
    if format == "yaml":
        return yaml.safe_dump(value, sort_keys=False, indent=2, allow_unicode=True).encode()
    if format == "toml":
        return "\n".join(sections(value)).encode()
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return (text if indent is None else text + "\n").encode()


@settings(deadline=None, max_examples=50)
@given(data=st.data())
@pytest.mark.parametrize("format", TABLES)
def test_entries_that_were_kept_elsewhere_come_back_to_the_byte(
    format: Format, data: st.DataObject
) -> None:
    """In files as programs write them, and when the file has changed meanwhile, too."""
    table, servers = TABLES[format], st.dictionaries(NAMES, FIELDS, min_size=1, max_size=4)
    value = {"first": {"x": 1}, table[0]: data.draw(servers), "last": {"theme": "dark"}}
    raw = written(format, value, data.draw(st.sampled_from([2, 4, "\t", None])))
    document = open_document(raw, format)
    left, kept = document.with_entry(table, "bridge", ENTRY), open_document(b"", format)
    names = list(document.entries(table))
    for name in names:
        entry = document.entry(table, name)
        assert entry is not None
        kept, left = kept.with_text(table, entry), left.without(table, name)
    left = open_document(left.encode().replace(b"dark", b"light"), format)
    for index, name in enumerate(names):
        entry = open_document(kept.encode(), format).entry(table, name)
        assert entry is not None
        left = left.with_text(table, entry, index=index)
    assert left.without(table, "bridge").encode() == raw.replace(b"dark", b"light")
