"""A file that is damaged, or is none of a client's, is edited exactly or refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.clients.document import open_document
from bridge.discovery.dialect import Format
from bridge.errors import UneditableError
from tests.clients_files.changes import ENTRY
from tests.clients_files.texts import jsonc_files, toml_files, yaml_files

FILES: dict[str, tuple[Format, str, st.SearchStrategy[bytes]]] = {
    "json": ("json", "mcpServers", jsonc_files()),
    "jsonc": ("jsonc", "mcpServers", jsonc_files()),
    "toml": ("toml", "mcp_servers", toml_files()),
    "yaml": ("yaml", "servers", yaml_files(listed=False)),
}

PIECES = st.sampled_from(
    [b"", b"{", b"}", b"[", b"]", b'"', b"'", b",", b":", b"=", b"#", b"//", b"/*", b"*/", b"\\"]
    + [
        b"- ",
        b"? ",
        b"| ",
        b"&a ",
        b"*a",
        b"!t ",
        b"\t",
        b"\n",
        b"\r",
        b"\xff",
        b"\x00",
        b"\xc2\x85",
    ]
    + [b"---\n", b"'''", b'"""', b"[[", b"null", b"\xe2\x80\xa8", b"<<: "]
)


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_edited_exactly_or_refused(
    kind: str, listed: bool, data: st.DataObject
) -> None:
    format, key, files = FILES[kind]
    raw = data.draw(files)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw = raw[:at] + data.draw(PIECES) + raw[at + data.draw(st.integers(0, 3)) :]
    try:
        document = open_document(raw, format, listed=listed)
        names = list(document.entries((key,)))
    except UneditableError:
        return
    for name in names:
        try:
            entry = document.entry((key,), name)
            assert entry is not None
            assert name not in document.without((key,), name).entries((key,))
            open_document(b"", format, listed=listed).with_text((key,), entry)
        except UneditableError:
            continue
    try:
        made = document.with_entry((key,), "bridge", ENTRY)
        assert made.without((key,), "bridge").entries((key,)) == document.entries((key,))
    except UneditableError:
        return
