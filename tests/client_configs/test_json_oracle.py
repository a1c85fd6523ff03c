"""VS Code's parser reads our edits as we do and makes equal ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from bridge.client_configs.install import open_document
from tests.client_configs.texts import ENTRY, jsonc_files

pytestmark = pytest.mark.node

HERE = Path(__file__).parent
PACKAGES = HERE.parent / "node" / "package.json"
TABLE = ("mcpServers",)

Oracle = Callable[[str, list[Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """Yield a function that sends a text and changes of it to a Node process."""
    node = Path(sys.executable).with_name("node")
    with subprocess.Popen(
        [node, HERE / "oracle.mjs", PACKAGES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def ask(text: str, changes: list[Any]) -> dict[str, Any]:
            asked.write(json.dumps({"text": text, "changes": changes}).encode() + b"\n")
            asked.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield ask
        asked.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=jsonc_files())
def test_each_edit_means_what_it_means_to_jsonc_parser(oracle: Oracle, raw: bytes) -> None:
    document = open_document(raw, "jsonc")
    names = list(document.entries(TABLE))
    edits = [document.with_entry(TABLE, name, ENTRY) for name in (*names, "new one")]
    changes: list[Any] = [[[*TABLE, name], ENTRY] for name in (*names, "new one")]
    edits += [document.without(TABLE, name) for name in names]
    changes += [[[*TABLE, name], None] for name in names]
    theirs = oracle(document.text, changes)
    assert (theirs["value"], theirs["errors"]) == (document.decoded, 0)
    for edit, change in zip(edits, theirs["changed"], strict=True):
        ours = oracle(edit.text, [])
        assert (ours["value"], ours["errors"]) == (edit.decoded, 0)
        # After a trailing comma, its `modify` adds a second one.
        assert change["errors"] or change["value"] == edit.decoded
