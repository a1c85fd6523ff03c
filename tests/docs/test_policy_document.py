"""The examples in the documents about the policy say what happens."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from bridge.settings.policy import parse_policy
from tests.docs.examples import blocks, told

DOCS = Path(__file__).parents[2] / "docs"

PAGES = {
    name: DOCS / f"{name}.md"
    for name in (
        "policy",
        "plans",
        "retries",
        "flow-rules",
        "reference/policy",
        "reference/flow-rules",
    )
}

EXAMPLES = dict.fromkeys(
    (page, block.name) for page, path in PAGES.items() for block in blocks(path.read_text())
)


@pytest.mark.parametrize(("page", "name"), EXAMPLES)
async def test_an_example_does_what_the_document_says(tmp_path: Path, page: str, name: str) -> None:
    document = PAGES[page].read_text()
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
        PAGES[page].write_text(document)
        return
    for written, happened in differing:
        assert written == happened


def test_every_policy_in_it_parses_and_every_part_of_one_is_shown() -> None:
    text = "".join(path.read_text() for path in PAGES.values())
    written = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    specs = [parse_policy(tomllib.loads(text)["policy"], "policy") for text in written]
    assert any(spec.budgets.per_minute for spec in specs)
    assert any(len(spec.flows) > 1 for spec in specs)
    assert {rule.action for spec in specs for rule in spec.rules} == {"allow", "deny"}
    tests = {each.test for spec in specs for rule in spec.rules for each in rule.when}
    assert tests >= {"is", "glob", "le", "present"}
