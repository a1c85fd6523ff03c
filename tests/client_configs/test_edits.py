"""The changes of a file by each edit: add, replace, remove and restore an entry.

edits.txt has each file, up to a `¶`, and its changes, which `UPDATE_FROZEN=1` writes. The line
above a file has its format, whether the table is a list, and its key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Any

from bridge.client_configs.document import Document
from bridge.client_configs.install import open_document
from bridge.errors import UneditableError
from tests.client_configs.texts import ENTRY

GOLDEN = Path(__file__).with_name("edits.txt")


def diff_of(before: str, after: str) -> str:
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    diff = list(unified_diff(old, new, n=1))[2:]
    shown = (line if line.endswith("\n") else f"{line}¶\n" for line in diff)
    return re.sub(r"^@@.*", "@@", "".join(shown), flags=re.MULTILINE) or "(nothing)\n"


def edits(document: Document, key: str, new: Document) -> Iterator[tuple[str, str]]:
    table, text = (key,), document.text
    made = document.with_entry(table, "bridge", ENTRY)
    yield "with bridge", diff_of(text, made.text)
    yield "and without it", diff_of(text, made.without(table, "bridge").text)
    for index, name in enumerate(document.entries(table)):
        entry = document.entry(table, name)
        assert entry is not None
        without = document.without(table, name)
        replaced = document.with_entry(table, name, ENTRY)
        assert replaced.with_entry(table, name, ENTRY) is replaced
        yield name, f"{entry.text}¶\n"
        yield f"without {name}", diff_of(text, without.text)
        yield f"{name} is back", diff_of(text, without.with_text(table, entry, index=index).text)
        yield f"{name} alone", diff_of("", new.with_text(table, entry).text)
        yield f"{name} is replaced", diff_of(text, replaced.text)
    for name in document.entries(table):
        document = document.without(table, name)
    yield "without any", diff_of(text, document.text)


def outcome(head: str, raw: bytes) -> str:
    """Return the edits of a file, or why it has none."""
    *words, key = head.partition(":")[0].split(" ")
    listed = "listed" in words
    format: Any = " ".join(word for word in words if word != "listed")
    opened = partial(open_document, format=format, listed=listed, path="FILE")
    shown = ""
    try:
        for edit, change in edits(opened(raw), key, opened(b"")):
            shown += f"--- {edit}\n{change}"
    except UneditableError as error:
        shown += f"--- {error}\n"
    return shown


def test_each_edit_changes_what_edits_txt_says() -> None:
    made = ""
    for block in re.split(r"^=== ", GOLDEN.read_text(), flags=re.MULTILINE)[1:]:
        head, _, rest = block.partition("\n")
        before = rest.partition("¶\n")[0]
        shown = outcome(head, before.encode())
        made += f"=== {head}\n{before}¶\n{shown}"
        if "\n" in before:
            crlf = outcome(head, before.replace("\n", "\r\n").encode())
            assert crlf.replace("\r\n", "\n") == shown
        assert outcome(head, b"\xef\xbb\xbf" + before.encode()) == shown
    if os.environ.get("UPDATE_FROZEN"):
        GOLDEN.write_text(made)
    assert made == GOLDEN.read_text()
