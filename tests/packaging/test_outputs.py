"""What the packages say, against the one description that it is written from."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from bridge.discovery.self_reference import starts_bridge
from scripts import package

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"

MAX_LINES = 500
"""Of the description, the templates and the script together."""

MAX_TOOL_NAME = 64
"""Of a tool's whole name, with what a client puts before it."""


def test_the_checked_in_files_follow_from_the_description() -> None:
    """`make package` writes them; the one test that an edit of the version concerns."""
    assert package.stale() == []


def test_the_registry_takes_the_entry() -> None:
    """With what its schema demands of the members that we use."""
    schema = json.loads((PACKAGING / "server.schema.json").read_text())
    entry = json.loads((PACKAGING / "server.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(entry, schema)


@pytest.mark.parametrize(
    "broken",
    [
        {"name": "no-namespace"},
        {"description": "x" * 101},
        {"version": "latest"},
        {"packages": [{"registryType": "mcpb", "identifier": "x", "transport": {"type": "stdio"}}]},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_an_entry_that_the_registry_refuses_is_found(broken: dict[str, object]) -> None:
    """A schema that takes everything would show nothing."""
    schema = json.loads((PACKAGING / "server.schema.json").read_text())
    entry = json.loads((PACKAGING / "server.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(entry | broken, schema)


def test_a_bridge_does_not_start_the_bridge_of_a_package() -> None:
    """Where it finds the plugin or the bundle among the user's servers."""
    plugin = json.loads((PACKAGING / "plugin" / ".mcp.json").read_text())["mcpServers"]
    bundle = json.loads((PACKAGING / "mcpb" / "manifest.json").read_text())["server"]
    for entry in (*plugin.values(), bundle["mcp_config"]):
        assert starts_bridge(entry["command"], entry["args"]), entry


def test_the_plugin_s_tools_have_names_that_models_take() -> None:
    of = package.product()
    for tool in of["tools"]:
        assert len(f"mcp__plugin_{of['name']}_{of['server']}__{tool}") <= MAX_TOOL_NAME


def test_the_sources_of_the_packages_stay_small() -> None:
    """Without what is written from them, and the skill, which has a limit of its own."""
    written = {ROOT / name for name in package.outputs()}
    sources = [
        path
        for path in PACKAGING.rglob("*")
        if path.is_file()
        and path not in written
        and not {"node", "skills"} & set(path.relative_to(PACKAGING).parts)
        and path.name != "server.schema.json"
    ]
    sources.append(ROOT / "scripts" / "package.py")
    assert sum(path.read_text().count("\n") for path in sources) <= MAX_LINES
