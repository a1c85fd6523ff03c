"""The examples in `docs/policy.md` say what happens."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from bridge.settings.policy import parse_policy
from tests.docs.examples import blocks, told

DOCUMENT = Path(__file__).parents[2] / "docs" / "policy.md"

NAMES = list(dict.fromkeys(block.name for block in blocks(DOCUMENT.read_text())))


@pytest.mark.parametrize("name", NAMES)
async def test_an_example_does_what_the_document_says(tmp_path: Path, name: str) -> None:
    """Run again with UPDATE_EXAMPLES=1 to write what happens into the document."""
    document = DOCUMENT.read_text()
    differing: list[tuple[str, str]] = []
    changes: list[tuple[int, int, str]] = []
    async with told(tmp_path / "home") as story:
        for block in blocks(document):
            if block.name != name:
                continue
            happened = await story.tell(block)
            if happened is not None and happened != block.text:
                differing.append((block.text, happened))
                changes.append((block.start, block.end, happened))
    if os.environ.get("UPDATE_EXAMPLES"):
        for start, end, happened in reversed(changes):
            document = document[:start] + happened + document[end:]
        DOCUMENT.write_text(document)
        return
    for written, happened in differing:
        assert written == happened


def test_every_policy_in_it_parses_and_every_part_of_one_is_shown() -> None:
    """So that nobody has to guess how it is written."""
    written = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    specs = [parse_policy(tomllib.loads(text)["policy"], "policy") for text in written]
    assert any(spec.budgets.per_minute for spec in specs)
    assert any(len(spec.flows) > 1 for spec in specs)
    assert {rule.action for spec in specs for rule in spec.rules} == {"allow", "deny"}
    tests = {each.test for spec in specs for rule in spec.rules for each in rule.when}
    assert tests >= {"is", "glob", "le", "present"}
