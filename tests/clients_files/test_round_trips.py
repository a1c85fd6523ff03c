"""A change that is made in a file, recorded, and undone leaves the file as it was, to the byte."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.clients.document import open_document
from bridge.clients.journal import Journal, Record, digest
from bridge.clients.rewrite import remove_directories, rewrite
from bridge.discovery.dialect import Format
from tests.clients_files.changes import ENTRY
from tests.clients_files.texts import NAMES, jsonc_files, toml_files, yaml_files

FIELDS = st.fixed_dictionaries(
    {"command": st.sampled_from(["npx", "/bin/x y"])},
    optional={
        "args": st.lists(st.sampled_from(["-y", "a b", "no"]), max_size=2),
        "env": st.dictionaries(NAMES, st.just("v"), max_size=2),
        "timeout": st.integers(1, 9),
    },
)

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
    latest = journal.records()[-1]
    assert latest.describes(path.read_bytes())
    assert latest.before == done.before
    rewrite(path, lambda present: latest.before)
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
@pytest.mark.parametrize("format", FILES)
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
