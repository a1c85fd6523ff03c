"""What the packages say, against the one description that it is written from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from bridge.discovery.self_reference import starts_bridge
from scripts import package
from tests.clients.exchange import SERVERS, bridge_environ

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"

MAX_TOOL_NAME = 64
"""Of a tool's whole name, with what a client puts before it."""


def test_the_checked_in_files_follow_from_the_description() -> None:
    """`make package` writes them; the one test that an edit of the version concerns."""
    assert package.stale(package.product()) == []


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"MCPB_POLICY": "read-only"}, "workshop.add is not allowed"),
        ({"MCPB_POLICY": "ask"}, "which asks you"),
        ({"MCPB_POLICY": "lenient"}, "no policy 'lenient'"),
        ({"MCPB_POLICY": "ask", "MCP_BRIDGE_CONFIG": "own"}, "exclude each other"),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_the_bundle_s_policies_hold(tmp_path: Path, chosen: dict[str, str], said: str) -> None:
    environ = bridge_environ(tmp_path, SERVERS)
    del environ["MCP_BRIDGE_CONFIG"]
    start = PACKAGING / "mcpb" / "server" / "mcp_code_bridge.py"
    program = "print(await mcp_workshop.add(a=1, b=2))"
    done = subprocess.run(
        [sys.executable, start, "run", "-c", program],
        env={**environ, "MCP_BRIDGE_IMAGE": "${user_config.image}", **chosen},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert said in done.stderr


def test_the_registry_takes_the_entry() -> None:
    schema = json.loads((PACKAGING / "server.schema.json").read_text())
    entry = json.loads((PACKAGING / "server.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(entry, schema)


def test_a_bridge_does_not_start_the_bridge_of_a_package() -> None:
    plugin = json.loads((PACKAGING / "plugin" / ".mcp.json").read_text())["mcpServers"]
    bundle = json.loads((PACKAGING / "mcpb" / "manifest.json").read_text())["server"]
    for entry in (*plugin.values(), bundle["mcp_config"]):
        assert starts_bridge(entry["command"], entry["args"]), entry


def test_the_plugin_s_tools_have_names_that_models_take() -> None:
    of = package.product()
    for tool in of["tools"]:
        assert len(f"mcp__plugin_{of['name']}_{of['server']}__{tool}") <= MAX_TOOL_NAME


INSTALLS = re.compile(
    r"^.*\b(?:pip3? install|uv (?:pip |tool )?(?:install|sync|add)|pipx install) .*$", re.MULTILINE
)
USERS_OWN = ("README.md", "CHANGELOG.md", "docs/", "bridge/packages/", "bridge/guest/", "bench")
"""What users type themselves, from a checkout or for an extra of what they have; and the virtual
environment that a benchmark compares with, which has the newest packages as a sandbox has them."""


def test_what_the_project_installs_is_held_against_hashes() -> None:
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    unhashed: list[str] = []
    hashed: list[str] = []
    for name in listed:
        if name.startswith(("tests/", "bridge/discovery/", *USERS_OWN)):
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        words = re.sub(r"""["',]+|\\\n""", "", text)
        words = words.replace("${pip[@]} install", "pip install").replace("}/bin/pip", "pip")
        for line in INSTALLS.findall(words):
            # What `image build --package` adds has no lock.
            safe = any(word in line for word in ("--require-hashes", "--no-index", "-added.txt"))
            (hashed if safe else unhashed).append(f"{name}: {line.strip()}")
    assert unhashed == []
    assert {line.partition(":")[0] for line in hashed} >= {
        "deploy/Containerfile",
        "packaging/mcpb/server/mcp_code_bridge.py",
        "scripts/package.py",
        "scripts/venv",
    }
