"""An entry of a TOML file is changed and nothing else: sections, dotted keys, inline tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from bridge.clients.document import EntryText, open_document
from bridge.errors import UneditableError
from tests.clients_files.changes import check_each_change
from tests.clients_files.texts import toml_files

TABLE = ("mcp_servers",)
ENTRY = {"command": "/bin/bridge", "args": ["serve"], "env": {"A.B": "c"}, "timeout": 2.5}

SECTION = """[mcp_servers.bridge]
command = "/bin/bridge"
args = ["serve"]
timeout = 2.5

[mcp_servers.bridge.env]
"A.B" = "c"
"""

COMMENTED = """# Codex
model = "m"  # a model

# about one
[mcp_servers.one]
command = "1" # [no]
args = [
  "]", # ] "
  '''
[mcp_servers.two]
''',
]
# inner

[mcp_servers.one.env]
K = "v"

# about "two 2"
[mcp_servers."two 2"]
url = \"\"\"
[mcp_servers.three]
\"\"\"

# others

[tui]
theme = 1
"""

KEYS = """[mcp_servers]
a = {command = "1"} # one
# b
b.command = "2"
b.env.X = "y"
c = {}

[z]
"""

ROOT_KEYS = """mcp_servers.a.command = "1"
mcp_servers.b = {command="2"}
other = 2

[z]
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", SECTION, id="empty"),
        pytest.param("a = 1", f"a = 1\n\n{SECTION}", id="no line end"),
        pytest.param("\ufeffa = 1\n", f"\ufeffa = 1\n\n{SECTION}", id="BOM"),
        pytest.param("mcp_servers = {}\n[a]\n", f"[a]\n\n{SECTION}", id="an empty value"),
        pytest.param(
            COMMENTED, COMMENTED.replace("# others", f"{SECTION}\n# others"), id="commented"
        ),
        pytest.param(KEYS, KEYS.replace("[z]", f"{SECTION}\n[z]"), id="keys"),
        pytest.param(ROOT_KEYS, ROOT_KEYS.replace("[z]", f"{SECTION}\n[z]"), id="root keys"),
    ],
)
@pytest.mark.parametrize("nl", ["\n", "\r\n"])
def test_an_entry_becomes_sections_after_the_others(before: str, after: str, nl: str) -> None:
    if nl not in before.replace("\n", nl):
        nl = "\n"
    made = open_document(before.replace("\n", nl).encode(), "toml").with_entry(
        TABLE, "bridge", ENTRY
    )
    assert made.encode().decode() == after.replace("\n", nl)
    assert made.entries(TABLE)["bridge"] == ENTRY
    if before.endswith("\n") and "{}\n[a]" not in before and before[0] != "\ufeff":
        assert made.without(TABLE, "bridge").encode().decode() == before.replace("\n", nl)


@pytest.mark.parametrize("nl", ["\n", "\r\n"])
@pytest.mark.parametrize("text", [COMMENTED, KEYS])
def test_an_entry_goes_and_comes_back_to_the_byte(text: str, nl: str) -> None:
    document = open_document(text.replace("\n", nl).encode(), "toml")
    for index, name in enumerate(document.entries(TABLE)):
        entry = document.entry(TABLE, name)
        assert entry is not None
        back = document.without(TABLE, name).with_text(TABLE, entry, index=index)
        assert back.encode() == document.encode()
        assert back.entry(TABLE, name) == entry


def test_an_entry_has_its_comments_and_all_its_sections() -> None:
    document = open_document(COMMENTED.encode(), "toml")
    one, two = document.entry(TABLE, "one"), document.entry(TABLE, "two 2")
    assert one is not None
    assert one.text == COMMENTED[COMMENTED.index("# about one") : COMMENTED.index('\n\n# about "')]
    assert two is not None
    assert two.text == COMMENTED[COMMENTED.index('# about "') : COMMENTED.index("\n\n# others")]
    left = document.without(TABLE, "one").without(TABLE, "two 2").encode().decode()
    assert left == '# Codex\nmodel = "m"  # a model\n\n# others\n\n[tui]\ntheme = 1\n'


def test_an_entry_is_replaced_in_its_own_form() -> None:
    keys = open_document(KEYS.encode(), "toml")
    made = keys.with_entry(TABLE, "b", {"command": "3"}).encode().decode()
    assert made == KEYS.replace('b.command = "2"\nb.env.X = "y"', 'b = { command = "3" }')
    sections = open_document(COMMENTED.encode(), "toml").with_entry(TABLE, "one", {"command": "3"})
    assert '# about one\n[mcp_servers.one]\ncommand = "3"\n\n# about "two' in sections.text
    root = open_document(ROOT_KEYS.encode(), "toml").with_entry(TABLE, "a", {"command": "3"})
    assert root.text == ROOT_KEYS.replace('a.command = "1"', 'a = { command = "3" }')


LISTED = """[[mcp_servers]]
name = "a"
[mcp_servers.env]
K="1"

# b
[[mcp_servers]]
name = "b"

[[mcp_servers.tools]]
q=1
[[mcp_servers.tools]]
q=1

[other]
"""


def test_a_list_of_sections_is_edited_by_name() -> None:
    document = open_document(LISTED.encode(), "toml", listed=True)
    made = document.with_entry(TABLE, "c", {"command": "c", "env": {"A": "b"}})
    new = '[[mcp_servers]]\nname = "c"\ncommand = "c"\n\n[mcp_servers.env]\nA = "b"\n\n[other]'
    assert made.text == LISTED.replace("[other]", new)
    assert made.without(TABLE, "c").text == LISTED
    for index, name in enumerate(("a", "b")):
        entry = document.entry(TABLE, name)
        assert entry is not None
        assert document.without(TABLE, name).with_text(TABLE, entry, index=index).text == LISTED
    empty = open_document(b"x = 1\nmcp_servers = []\n", "toml", listed=True)
    assert empty.with_entry(TABLE, "c", {}).text == 'x = 1\n\n[[mcp_servers]]\nname = "c"\n'


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("mcp_servers = { a = {} }", "mcp_servers is one value; write .mcp_servers.NAME.", 1),
        ("x = 1\n[mcp_servers]\na = {}\na = {}", "Cannot overwrite a value", 4),
        ("a = [", "not valid TOML", 0),
        ("[a]\n[a]\n", "the table \\[a\\] is there twice", 2),
        ("mcp_servers = 1", "mcp_servers is a number, not an object", 0),
        ('[mcp_servers]\nbridge.command = "a"\n[mcp_servers.bridge.env]', "several ways", 2),
    ],
)
def test_what_cannot_be_edited_is_refused(text: str, said: str, line: int) -> None:
    with pytest.raises(UneditableError, match=said) as caught:
        open_document(text.encode(), "toml").with_entry(TABLE, "bridge", ENTRY)
    assert caught.value.line in (line, 0)


def test_what_toml_has_no_value_for_is_refused() -> None:
    with pytest.raises(UneditableError, match="TOML has no value for None"):
        open_document(b"", "toml").with_entry(TABLE, "a", {"env": None})
    with pytest.raises(UneditableError, match="cannot be read"):
        open_document(b"", "toml").with_text(TABLE, EntryText(name="a", text="a =", value={}))


@settings(deadline=None)
@given(raw=toml_files())
def test_any_file_can_be_edited(raw: bytes) -> None:
    document = open_document(raw, "toml")
    assert document.encode() == raw
    check_each_change(document, TABLE)
