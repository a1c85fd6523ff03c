"""What must be true of every document, in each format."""

from __future__ import annotations

from bridge.client_configs.document import Document, Table, open_document

ENTRY = {"command": "/bin/bridge", "args": ["serve", "-y"], "env": {"A": "b: # c"}}


def check_each_change(document: Document, table: Table) -> None:
    """Move each entry out and back, replace it, and add one; the value is as it must be."""
    names = list(document.entries(table))
    for index, name in enumerate(names):
        entry = document.entry(table, name)
        assert entry is not None
        without = document.without(table, name)
        assert set(without.entries(table)) == set(names) - {name}
        back = without.with_text(table, entry, index=index)
        assert back.decoded == document.decoded
        assert back.without(table, name).decoded == without.decoded
        stored = open_document(b"", document.format, listed=document.listed)
        assert stored.with_text(table, entry).entries(table) == {name: entry.value}
        replaced = document.with_entry(table, name, ENTRY).entries(table)[name]
        assert isinstance(replaced, dict)
        assert replaced == ({"name": name, **ENTRY} if document.listed else ENTRY)
    made = document.with_entry(table, "bridge", ENTRY)
    assert made.without(table, "bridge").entries(table) == document.entries(table)
    others = {key: item for key, item in document.decoded.items() if key != table[0]}
    assert {key: item for key, item in made.decoded.items() if key != table[0]} == others
