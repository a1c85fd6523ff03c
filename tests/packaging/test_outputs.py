"""The files of the packages follow from one description."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from bridge.discovery.precedence import starts_bridge
from scripts import package
from tests.clients.exchange import SERVERS, bridge_environ

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"

MAX_TOOL_NAME = 64
"""Characters of a tool's name with the client's prefix."""


def test_the_checked_in_files_follow_from_the_description() -> None:
    assert package.stale(package.product()) == []
    schema = json.loads((PACKAGING / "server.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(json.loads((PACKAGING / "server.json").read_text()), schema)


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


def test_discovery_recognises_the_packages_bridge_and_models_accept_its_tools() -> None:
    plugin = json.loads((PACKAGING / "plugin" / ".mcp.json").read_text())["mcpServers"]
    bundle = json.loads((PACKAGING / "mcpb" / "manifest.json").read_text())["server"]
    for entry in (*plugin.values(), bundle["mcp_config"]):
        assert starts_bridge(entry["command"], entry["args"]), entry
    of = package.product()
    for tool in of["tools"]:
        assert len(f"mcp__plugin_{of['name']}_{of['server']}__{tool}") <= MAX_TOOL_NAME


INSTALLS = re.compile(
    r"^.*\b(?:pip3? install|uv (?:pip |tool )?(?:install|sync|add)|pipx install) .*$", re.MULTILINE
)
USERS_OWN = ("README.md", "CHANGELOG.md", "docs/", "bridge/packages/", "bridge/guest/", "bench")
"""Commands for users, and a benchmark's environment, which has the newest packages."""


def test_the_project_installs_only_packages_with_hashes() -> None:
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
            # Packages of `image build --package` have no lock.
            safe = any(word in line for word in ("--require-hashes", "--no-index", "-added.txt"))
            (hashed if safe else unhashed).append(f"{name}: {line.strip()}")
    assert unhashed == []
    assert {line.partition(":")[0] for line in hashed} >= {
        "deploy/Containerfile",
        "packaging/mcpb/server/mcp_code_bridge.py",
        "scripts/package.py",
        "scripts/venv",
    }
