"""A change that is made in a file, recorded, and undone leaves the file as it was, to the byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.clients.document import open_document
from bridge.clients.journal import Journal, Record, Undone, digest, undo
from bridge.clients.rewrite import remove_directories, rewrite
from bridge.discovery.dialect import Format
from tests.clients_files.changes import ENTRY
from tests.clients_files.texts import jsonc_files, toml_files, yaml_files

FILES: dict[Format, st.SearchStrategy[bytes]] = {
    "jsonc": jsonc_files(),
    "toml": toml_files(),
    "yaml": yaml_files(listed=False),
}

TABLES = {"jsonc": ("mcpServers",), "toml": ("mcp_servers",), "yaml": ("servers",)}


def install_and_undo(home: Path, path: Path, format: Format) -> None:
    """Move all entries out and ours in, by a recorded change, then undo it."""
    journal, table = Journal(home / "state"), TABLES[format]
    made: tuple[str, ...] = ()

    def edit(before: bytes | None) -> bytes:
        document = open_document(before or b"", format)
        for name in document.entries(table):
            document = document.without(table, name)
        return document.with_entry(table, "bridge", ENTRY).encode()

    def record(before: bytes | None, after: bytes | None) -> None:
        journal.add(
            Record(
                at=0.0,
                client="c",
                scope="user",
                path=str(path),
                action="install",
                name="bridge",
                before=before,
                after_sha256=digest(after),
                made_directories=made,
            )
        )

    done = rewrite(path, edit, before_replace=record)
    assert done.after is not None
    assert open_document(done.after, format).entries(table) == {"bridge": ENTRY}
    latest = journal.latest(str(path))
    assert latest is not None
    undone = undo(latest, path.read_bytes())
    assert undone == Undone(content=done.before)
    rewrite(path, lambda present: undone.content)
    remove_directories(done.made_directories)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
@pytest.mark.parametrize("format", FILES)
def test_any_file_is_as_before(format: Format, data: st.DataObject) -> None:
    raw = data.draw(FILES[format])
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "client")
        path.write_bytes(raw)
        install_and_undo(Path(home), path, format)
        assert path.read_bytes() == raw


@pytest.mark.parametrize("raw", [b"", b"\n", b" \t\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
@pytest.mark.parametrize("format", FILES)
def test_an_empty_file_is_as_before(tmp_path: Path, format: Format, raw: bytes) -> None:
    path = tmp_path / "client"
    path.write_bytes(raw)
    install_and_undo(tmp_path, path, format)
    assert path.read_bytes() == raw


@pytest.mark.parametrize("format", FILES)
def test_no_file_is_as_before(tmp_path: Path, format: Format) -> None:
    install_and_undo(tmp_path, tmp_path / "a" / "b" / "client", format)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("format", FILES)
def test_a_large_file_is_as_before(tmp_path: Path, format: Format) -> None:
    """As large as its client's files may be; the entry after it shows that all was read."""
    text = "x" * 100
    lines = {
        "jsonc": '{{\n{}\n"mcpServers": {{"a": {{}}}}\n}}'.format(
            "\n".join(f'  "k{n}": {{"text": "{text}"}}, // {n}' for n in range(10_000))
        ),
        "toml": "\n".join(f'[k{n}]\ntext = "{text}" # {n}' for n in range(10_000))
        + "\n[mcp_servers.a]\n",
        "yaml": "\n".join(f'k{n}:\n  text: "{text}" # {n}' for n in range(2000))
        + "\nservers:\n  a: {}\n",
    }
    path = tmp_path / "client"
    path.write_text(lines[format])
    install_and_undo(tmp_path, path, format)
    assert path.read_text() == lines[format]
