"""Any file of a client is edited exactly or refused; entries return with their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.client_configs.document import EntryText
from bridge.client_configs.install import open_document
from bridge.discovery.dialect import Format
from bridge.discovery.documents import decode
from bridge.errors import UneditableError
from tests.client_configs.texts import (
    ENTRY,
    NAMES,
    check_each_change,
    jsonc_files,
    toml_files,
    yaml_files,
)

SERVERS = ("mcpServers",)

FILES: dict[str, tuple[Format, str, st.SearchStrategy[bytes]]] = {
    "jsonc": ("jsonc", "mcpServers", jsonc_files()),
    "toml": ("toml", "mcp_servers", toml_files()),
    "yaml": ("yaml", "servers", yaml_files(listed=False)),
    "a list in yaml": ("yaml", "servers", yaml_files(listed=True)),
    "json": ("json", "mcpServers", jsonc_files()),
}

PIECES = st.sampled_from(
    [
        *(b"", *(bytes([char]) for char in b"{}[]\"',:=#\\\t\n\r\xff\x00"), b"//", b"/*", b"*/"),
        *(b"- ", b"? ", b"| ", b"&a ", b"*a", b"!t ", b"---\n", b"<<: ", b"null"),
        *(b"'''", b'"""', b"[[", b"\xc2\x85", b"\xe2\x80\xa8"),
    ]
)


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", list(FILES)[:-1])
def test_any_file_can_be_edited(kind: str, data: st.DataObject) -> None:
    format, key, files = FILES[kind]
    raw = data.draw(files)
    document = open_document(raw, format, listed="list" in kind)
    assert document.encode() == raw
    check_each_change(document, (key,))


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("kind", ["json", "jsonc", "toml", "yaml"])
def test_a_damaged_file_is_exact_or_refused(kind: str, listed: bool, data: st.DataObject) -> None:
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


@pytest.mark.parametrize(
    "raw", [b"", b'{"projects": {"/other": {}}}', b'{"projects":{"/repo":{"x":[1]}}}']
)
def test_missing_outer_tables_are_made(raw: bytes) -> None:
    table = ("projects", "/repo", "mcpServers")
    document = open_document(raw, "json")
    assert document.entries(table) == {}
    assert document.with_entry(table, "bridge", ENTRY).entries(table) == {"bridge": ENTRY}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(b"{" + b" " * 2**21, "larger than"), ("{".encode("utf-16"), "UTF-16"), (b"\xff", "UTF-8")],
)
def test_large_or_undecodable_content_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(UneditableError, match=rf"^/x.json is left as it is: .*{reason}"):
        open_document(raw, "jsonc", path="/x.json")


def test_a_file_of_a_megabyte_is_edited() -> None:
    big = {str(number): {"text": "x" * 100} for number in range(9000)}
    raw = json.dumps({"history": big, "mcpServers": {"a": {}}}, indent=2).encode()
    assert len(raw) > 2**20
    made = open_document(raw, "jsonc").with_entry(SERVERS, "b", ENTRY)
    assert made.without(SERVERS, "b").encode() == raw


@pytest.mark.parametrize(
    ("format", "text", "reason"),
    [
        ("jsonc", '"a": {}', "already has an entry a"),
        ("jsonc", '"x": 1, "y": 2', "is not one entry"),
        ("jsonc", '"x": ', "cannot be read"),
        ("toml", "x =", "cannot be read"),
        ("toml", "[mcpServers.x]\n[other]", "without changing others"),
        ("yaml", "x: [", "cannot be made exactly"),
    ],
)
def test_a_text_that_is_no_new_entry_is_refused(format: Format, text: str, reason: str) -> None:
    entry = EntryText(name="a" if "already" in reason else "x", text=text, value=1)
    document = open_document(b"", format).with_entry(SERVERS, "a", {})
    with pytest.raises(UneditableError, match=reason):
        document.with_text(SERVERS, entry)


def test_a_value_that_a_format_does_not_have_is_refused_or_escaped() -> None:
    with pytest.raises(UneditableError, match="TOML has no value for None"):
        open_document(b"", "toml").with_entry(SERVERS, "a", {"env": None})
    made = open_document(b"{}", "json").with_entry(SERVERS, "b", {"args": ["\ud800"]})
    assert decode(made.encode()) == {"mcpServers": {"b": {"args": ["\ud800"]}}}
    dotted = open_document(b'{"amp": {}}', "jsonc").with_entry(("amp.mcpServers",), "b", ENTRY)
    assert dotted.decoded == {"amp": {}, "amp.mcpServers": {"b": ENTRY}}


def test_a_moved_entry_gets_the_indentation_of_its_new_table() -> None:
    entry = EntryText(name="a", text="  # about a\n  a:\n    cmd: x", value={"cmd": "x"})
    made = open_document(b"mcpServers:\n     x: 1\n", "yaml").with_text(SERVERS, entry)
    assert made.text == "mcpServers:\n     x: 1\n     # about a\n     a:\n       cmd: x\n"


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


def file_of(format: Format, value: dict[str, object], indent: int | str | None) -> bytes:
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
def test_entries_return_to_a_changed_file_with_their_bytes(
    format: Format, data: st.DataObject
) -> None:
    table, servers = TABLES[format], st.dictionaries(NAMES, FIELDS, min_size=1, max_size=4)
    value = {"first": {"x": 1}, table[0]: data.draw(servers), "last": {"theme": "dark"}}
    raw = file_of(format, value, data.draw(st.sampled_from([2, 4, "\t", None])))
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
