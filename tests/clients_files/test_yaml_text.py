"""An entry of a YAML file is changed and nothing else: mappings, and lists of named entries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.clients.document import EntryText, open_document
from bridge.errors import UneditableError
from tests.clients_files.changes import check_each_change
from tests.clients_files.texts import yaml_files

TABLE = ("extensions",)
ENTRY = {"cmd": "/bin/bridge", "args": ["-y", "no"], "envs": {"A": "b: c"}, "timeout": 300}

LINES = """new:
  cmd: /bin/bridge
  args:
    - "-y"
    - "no"
  envs:
    A: "b: c"
  timeout: 300
"""


def indented(lines: str, by: str) -> str:
    return "".join(by + line for line in lines.splitlines(keepends=True))


NEW = indented(LINES, "  ")

COMMENTED = """# goose
MODEL: x   # a model

extensions: # all
  # about a
  a:
    cmd: "1" # x
    text: |
      # not a comment

      more
    # inner

  # about b
  "b c":
    args:
    - x
    - y
  # end
# root
other: 1
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", f"extensions:\n{NEW}", id="empty"),
        pytest.param("# only\n", f"# only\nextensions:\n{NEW}", id="only a comment"),
        pytest.param("{}\n", f"extensions:\n{NEW}", id="an empty object"),
        pytest.param("a: 1", f"a: 1\nextensions:\n{NEW}", id="no line end"),
        pytest.param("\ufeffa: 1\n", f"\ufeffa: 1\nextensions:\n{NEW}", id="BOM"),
        pytest.param(
            "extensions: {} # none\nb: 2\n", f"extensions: # none\n{NEW}b: 2\n", id="braces"
        ),
        pytest.param("extensions:\nb: 2\n", f"extensions:\n{NEW}b: 2\n", id="null"),
        pytest.param("---\na: 1\n...\n", f"---\na: 1\nextensions:\n{NEW}...\n", id="marks"),
        pytest.param(
            "extensions:\n      a: {}\n",
            "extensions:\n      a: {}\n" + indented(LINES, "      "),
            id="deep",
        ),
        pytest.param(COMMENTED, COMMENTED.replace("  # end", f"{NEW}  # end"), id="commented"),
    ],
)
@pytest.mark.parametrize("nl", ["\n", "\r\n"])
def test_an_entry_comes_after_the_others(before: str, after: str, nl: str) -> None:
    if "\n" not in before:
        nl = "\n"
    raw = before.replace("\n", nl).encode()
    made = open_document(raw, "yaml").with_entry(TABLE, "new", ENTRY)
    assert made.encode().decode() == after.replace("\n", nl)
    assert made.entries(TABLE)["new"] == ENTRY
    if "a:" in before and "extensions" in before:
        assert made.without(TABLE, "new").encode() == raw


@pytest.mark.parametrize("nl", ["\n", "\r\n"])
def test_an_entry_goes_and_comes_back_to_the_byte_with_its_comments(nl: str) -> None:
    document = open_document(COMMENTED.replace("\n", nl).encode(), "yaml")
    for index, name in enumerate(("a", "b c")):
        entry = document.entry(TABLE, name)
        assert entry is not None
        back = document.without(TABLE, name).with_text(TABLE, entry, index=index)
        assert back.encode() == document.encode()
        assert back.entry(TABLE, name) == entry
    left = document.without(TABLE, "a").without(TABLE, "b c").encode().decode()
    assert left.replace(nl, "\n") == (
        "# goose\nMODEL: x   # a model\n\nextensions: {} # all\n  # end\n# root\nother: 1\n"
    )


def test_an_entry_is_replaced_where_it_stands() -> None:
    made = open_document(COMMENTED.encode(), "yaml").with_entry(TABLE, "a", {"cmd": "2"})
    assert '  # about a\n  a:\n    cmd: "2"\n\n  # about b\n' in made.encode().decode()


LISTED = """name: x
mcpServers:
- name: a
  command: 1

# b
- # why
  name: b
  args: [1,
    2]
- {name: c}
z: 1"""


def test_a_list_of_entries_is_edited_by_name() -> None:
    table = ("mcpServers",)
    document = open_document(LISTED.encode(), "yaml", listed=True)
    made = document.with_entry(table, "new", {"command": "x", "env": {"A": "b"}})
    new = "- name: new\n  command: x\n  env:\n    A: b\nz: 1"
    assert made.text == LISTED.replace("z: 1", new)
    assert made.without(table, "new").text == LISTED
    for index, name in enumerate(("a", "b", "c")):
        entry = document.entry(table, name)
        assert entry is not None
        assert document.without(table, name).with_text(table, entry, index=index).text == LISTED


def test_an_entry_is_indented_as_its_new_table_is() -> None:
    entry = open_document(COMMENTED.encode(), "yaml").entry(TABLE, "a")
    assert entry is not None
    made = open_document(b"extensions:\n     x: 1\n", "yaml").with_text(TABLE, entry)
    assert "\n     # about a\n     a:\n       cmd:" in made.text
    assert made.entries(TABLE)["a"] == entry.value


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        ("extensions: {a: 1}\n", "in brackets", (1, 13)),
        ("extensions:\n  a: {}\n  a: {}", "a is there twice", (3, 3)),
        ("extensions:\n  a: {}\nextensions: {}", "extensions is there twice", (3, 1)),
        ("a: &x 1\nb: *x\n", "alias", (0, 0)),
        ("a: b: c", "not valid YAML", (1, 5)),
        ("extensions: 1\n", "extensions is a number, not an object", (0, 0)),
        ("- 1\n", "holds a list", (0, 0)),
        ("extensions:\n  True: {}\n", "keys must be text", (2, 3)),
        ("a: 1\n--- # second\nb: 1\n", "not valid YAML", (2, 1)),
    ],
)
def test_what_cannot_be_edited_is_refused_with_its_place(
    text: str, said: str, place: tuple[int, int]
) -> None:
    with pytest.raises(UneditableError, match=said) as caught:
        open_document(text.encode(), "yaml").with_entry(TABLE, "new", ENTRY)
    assert (caught.value.line, caught.value.column) == place


def test_an_entrys_text_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UneditableError):
        open_document(b"", "yaml").with_text(TABLE, EntryText(name="a", text="a: [", value={}))


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("listed", [False, True])
def test_any_file_can_be_edited(listed: bool, data: st.DataObject) -> None:
    raw = data.draw(yaml_files(listed))
    document = open_document(raw, "yaml", listed=listed)
    assert document.encode() == raw
    check_each_change(document, ("servers",))


@pytest.mark.parametrize("comment", ["    # one for later\n", "\n    # one for later\n"])
def test_a_comment_in_an_emptied_table_does_not_go_with_what_is_put_there(comment: str) -> None:
    text = f"servers:\n    a:\n        command: x\n{comment}other: 1\n"
    emptied = open_document(text.encode(), "yaml").without(("servers",), "a")
    made = emptied.with_entry(("servers",), "bridge", {"command": "b"})
    assert "# one for later" in made.without(("servers",), "bridge").text
