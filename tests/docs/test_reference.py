"""docs/reference says what the code says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bridge.guest.api import runtime as mcp_api
from bridge.guest.protocol import wire
from scripts import guarantees, reference
from scripts.docstrings import section


@pytest.mark.parametrize("name", reference.pages())
def test_each_page_is_what_the_code_says(name: str) -> None:
    fresh = reference.pages()[name]
    written = (reference.PAGES / name).read_text("utf-8")
    assert written == fresh, f"docs/reference/{name} is outdated: run `make reference`"


def test_security_lists_the_promises_with_their_tests() -> None:
    written = guarantees.DOCUMENT.read_text("utf-8")
    assert written == guarantees.with_promises(written), "SECURITY.md: run `make reference`"


def test_there_are_no_other_generated_pages() -> None:
    pages = {path.name: path.read_text("utf-8") for path in reference.PAGES.iterdir()}
    generated = {name for name, text in pages.items() if text.startswith(reference.NOTICE)}
    assert generated == set(reference.pages())


def test_no_item_is_without_an_explanation() -> None:
    bare = [
        line
        for name, text in reference.pages().items()
        if name != "errors.md"
        for line in text.splitlines()
        if line.endswith("|  |") and not line.startswith("| `limit` |")
    ]
    assert bare == []


def test_each_global_of_a_program_is_explained() -> None:
    """Runs in a process of its own, since a program's `mcp` replaces the SDK's."""
    code = (
        f"from {mcp_api.__name__} import GLOBAL_HELPERS, build;"
        f"from {wire.__name__} import Run; server = dict(name='a-b', alias='a_b', tools=[]);"
        "print(*{*build(Run(code='', servers=[server]), None)} - GLOBAL_HELPERS)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    given = set(done.stdout.replace("mcp_a_b", "mcp_ALIAS").split())
    assert given == section(mcp_api.build, "Names").keys()
