"""An entry of a JSON file is changed and nothing else, in the file's own style."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from bridge.clients.document import EntryText, open_document
from bridge.discovery.dialect import Format
from bridge.discovery.documents import decode
from bridge.errors import UneditableError
from tests.clients_files.changes import check_each_change
from tests.clients_files.texts import jsonc_files

TABLE = ("mcpServers",)
ENTRY = {"command": "/bin/bridge", "args": ["serve"]}

PRETTY = """{
  "mcpServers": {
    "bridge": {
      "command": "/bin/bridge",
      "args": [
        "serve"
      ]
    }
  }
}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", PRETTY, id="empty"),
        pytest.param(" \n", PRETTY, id="white space"),
        pytest.param("{\n}\n", PRETTY, id="empty object"),
        pytest.param(
            "{}",
            '{"mcpServers":{"bridge":{"command":"/bin/bridge","args":["serve"]}}}',
            id="one line",
        ),
        pytest.param(
            '{"a":1,"mcpServers":{}}\n',
            '{"a":1,"mcpServers":{"bridge":{"command":"/bin/bridge","args":["serve"]}}}\n',
            id="minified",
        ),
        pytest.param(
            '{"mcpServers": {"a": {}}}',
            '{"mcpServers": {"a": {}, "bridge": {"command": "/bin/bridge", "args": ["serve"]}}}',
            id="spaced",
        ),
        pytest.param(
            '{\n\t"mcpServers": {\n\t\t"a": {} // why\n\t\t// end\n\t},\n}\n',
            '{\n\t"mcpServers": {\n\t\t"a": {}, // why\n\t\t"bridge": {\n'
            '\t\t\t"command": "/bin/bridge",\n\t\t\t"args": [\n\t\t\t\t"serve"\n\t\t\t]\n\t\t}\n'
            "\t\t// end\n\t},\n}\n",
            id="tabs and comments",
        ),
        pytest.param(
            '\ufeff{\r\n    "mcpServers": {\r\n        "a": {},\r\n    }\r\n}',
            '\ufeff{\r\n    "mcpServers": {\r\n        "a": {},\r\n        "bridge": {\r\n'
            '            "command": "/bin/bridge",\r\n            "args": [\r\n'
            '                "serve"\r\n            ]\r\n        },\r\n    }\r\n}',
            id="CRLF, BOM and a trailing comma",
        ),
    ],
)
def test_an_entry_comes_in_the_style_of_the_file(before: str, after: str) -> None:
    made = open_document(before.encode(), "jsonc").with_entry(TABLE, "bridge", ENTRY)
    assert made.encode().decode() == after
    assert made.entries(TABLE)["bridge"] == ENTRY


def test_an_entry_that_is_there_is_replaced_where_it_stands() -> None:
    before = (
        '{\n  "mcpServers": {\n    // ours\n    "bridge": {"command": "old"}, // yes\n'
        '    "b": {}\n  }\n}'
    )
    made = open_document(before.encode(), "jsonc").with_entry(TABLE, "bridge", {"command": "new"})
    new = before.replace('{"command": "old"}', '{\n      "command": "new"\n    }')
    assert made.encode().decode() == new
    assert made.with_entry(TABLE, "bridge", {"command": "new"}) is made


@pytest.mark.parametrize(
    "raw",
    [
        b'{\n  "mcpServers": {}\n}\n',
        b'{"mcpServers":{}}',
        b'{\r\n\t"a": 1,\r\n\t"mcpServers": { "b": {} },\r\n}',
        b'{\n  "mcpServers": { // none\n    // yet\n  }\n}\n',
        b'{\n  "mcpServers": {\n    "a": {}, // last\n\n    // end\n  }\n}\n',
    ],
)
def test_an_entry_that_comes_and_goes_leaves_nothing(raw: bytes) -> None:
    made = open_document(raw, "jsonc").with_entry(TABLE, "bridge", ENTRY)
    assert made.without(TABLE, "bridge").encode() == raw


def test_tables_on_the_way_are_made() -> None:
    table = ("projects", "/repo", "mcpServers")
    for raw in (b"", b'{"projects": {"/other": {}}}', b'{"projects":{"/repo":{"x":[1]}}}'):
        document = open_document(raw, "json")
        assert document.entries(table) == {}
        made = document.with_entry(table, "bridge", ENTRY)
        assert made.entries(table) == {"bridge": ENTRY}


def test_a_key_with_dots_is_one_key() -> None:
    made = open_document(b'{"amp": {}}', "jsonc").with_entry(("amp.mcpServers",), "b", ENTRY)
    assert made.decoded == {"amp": {}, "amp.mcpServers": {"b": ENTRY}}


COMMENTED = """{
  "mcpServers": { // all of them
    // not about anything

    // one,
    /* still one */
    "one": {"command": "1"}, // also one

    "two": {
      "command": "2" // inner
    }, /* after two */
    // three
    "three": {}
    // the end
  }
}
"""


@pytest.mark.parametrize("crlf", [False, True])
def test_comments_at_an_entry_go_and_come_back_with_it(crlf: bool) -> None:
    text = COMMENTED.replace("\n", "\r\n") if crlf else COMMENTED
    document = open_document(text.encode(), "jsonc")
    expected = {
        "one": '    // one,\n    /* still one */\n    "one": {"command": "1"} // also one',
        "two": '\n    "two": {\n      "command": "2" // inner\n    } /* after two */',
        "three": '    // three\n    "three": {}',
    }
    for index, (name, wanted) in enumerate(expected.items()):
        found = document.entry(TABLE, name)
        assert found is not None
        assert found.text.replace("\r\n", "\n") == wanted
        without = document.without(TABLE, name)
        assert list(without.entries(TABLE)) == [one for one in expected if one != name]
        if name != "one":
            assert without.with_text(TABLE, found, index=index).encode() == document.encode()
    left = document
    for name in expected:
        left = left.without(TABLE, name)
    lines = [line.strip() for line in left.encode().decode().split("\n") if line.strip()]
    assert lines == [
        "{",
        '"mcpServers": { // all of them',
        "// not about anything",
        "// the end",
        "}",
        "}",
    ]


@pytest.mark.parametrize(
    ("text", "format", "said", "place"),
    [
        ('{"mcpServers": {}} // no', "json", "looks like a comment", (1, 20)),
        ('{"mcpServers": {"a": 1,}}', "json with comments", "comma", (1, 24)),
        ('{\n "mcpServers": {"a": 1,\n "a": 2}}', "jsonc", "the key a is there twice", (3, 2)),
        ('{"mcpServers": {}, "mcpServers": {}}', "json", "mcpServers is there twice", (1, 20)),
        ('{"mcpServers": {', "json", "not valid JSON", (1, 17)),
        ('{"mcpServers": null}', "json", "mcpServers is null, not an object", (0, 0)),
        ('{"mcpServers": []}', "json", "mcpServers is a list, not an object", (0, 0)),
        ("[1]", "json", "it holds a list, not an object", (0, 0)),
        ("{} /* open", "jsonc", "does not end", (1, 0)),
        ("\ufeff{".encode("utf-16").decode("latin-1"), "json", "UTF-16|UTF-8", (0, 0)),
    ],
)
def test_what_cannot_be_edited_is_refused_with_its_place(
    text: str, format: Format, said: str, place: tuple[int, int]
) -> None:
    raw = text.encode("latin-1")
    with pytest.raises(UneditableError, match=said) as caught:
        open_document(raw, format, path="/x.json").with_entry(TABLE, "b", ENTRY)
    assert (caught.value.line, caught.value.column) == place
    assert str(caught.value).startswith("/x.json is left as it is: ")


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(UneditableError, match="larger than"):
        open_document(b"{" + b" " * 2**21, "jsonc")


def test_a_duplicate_elsewhere_does_not_matter() -> None:
    before = b'{"x": 1, "x": 2, "mcpServers": {"a": {"b": 1, "b": 2}}}'
    made = open_document(before, "json").with_entry(TABLE, "b", {})
    assert made.encode() == before.replace(b"}}}", b'}, "b": {}}}')


def test_a_file_of_a_megabyte_is_edited() -> None:
    big = {str(number): {"text": "x" * 100} for number in range(9000)}
    raw = json.dumps({"history": big, "mcpServers": {"a": {}}}, indent=2).encode()
    assert len(raw) > 2**20
    made = open_document(raw, "jsonc").with_entry(TABLE, "b", ENTRY)
    assert made.without(TABLE, "b").encode() == raw


def test_a_list_of_entries_is_edited_by_name() -> None:
    raw = b'{\n  "servers": [\n    {"name": "a"},\n    {"x": 1}\n  ]\n}\n'
    document = open_document(raw, "jsonc", listed=True)
    made = document.with_entry(("servers",), "b", {"command": "c"})
    assert made.entries(("servers",)) == {"a": {"name": "a"}, "b": {"name": "b", "command": "c"}}
    assert made.without(("servers",), "b").encode() == raw
    entry = document.entry(("servers",), "a")
    assert entry == EntryText(name="a", text='    {"name": "a"}', value={"name": "a"})
    back = document.without(("servers",), "a").with_text(("servers",), entry, index=0)
    assert back.encode() == raw


def test_an_entry_goes_verbatim_into_a_new_file() -> None:
    entry = open_document(COMMENTED.encode(), "jsonc").entry(TABLE, "two")
    assert entry is not None
    stored = open_document(b"", "jsonc").with_text(TABLE, entry)
    assert stored.entry(TABLE, "two") == entry
    with pytest.raises(UneditableError, match="has an entry two already"):
        stored.with_text(TABLE, entry)
    with pytest.raises(UneditableError, match="is not one entry"):
        stored.with_text(TABLE, EntryText(name="x", text='"x": 1, "y": 2', value=1))
    with pytest.raises(UneditableError, match="cannot be read"):
        stored.with_text(TABLE, EntryText(name="x", text='"x": ', value=1))


def test_text_that_utf_8_cannot_hold_is_escaped() -> None:
    made = open_document(b"{}", "json").with_entry(TABLE, "b", {"args": ["\ud800"]})
    assert decode(made.encode()) == {"mcpServers": {"b": {"args": ["\ud800"]}}}


@settings(deadline=None)
@given(raw=jsonc_files())
def test_any_file_can_be_edited(raw: bytes) -> None:
    document = open_document(raw, "jsonc")
    assert document.encode() == raw
    check_each_change(document, TABLE)
