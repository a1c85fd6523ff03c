"""The official suite's authorization servers, which are others than the SDK's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest

TESTS = Path(__file__).parents[1]
PACKAGES = TESTS / "node" / "node_modules"
OLD, NEW = PACKAGES / "@modelcontextprotocol" / "conformance", PACKAGES / "conformance-next"
MODERN = ("--spec-version", "2026-07-28")
SCRIPTS = Path(sys.executable).parent


@pytest.mark.node
@pytest.mark.parametrize(
    ("suite", "scenario", "options"),
    [
        (OLD, "auth/metadata-var3", ()),
        (NEW, "auth/scope-step-up", MODERN),
        pytest.param(OLD, "auth/scope-step-up", (), marks=pytest.mark.full),
        pytest.param(NEW, "auth/scope-retry-limit", MODERN, marks=pytest.mark.full),
        pytest.param(NEW, "auth/authorization-server-migration", MODERN, marks=pytest.mark.full),
        pytest.param(NEW, "auth/pre-registration", MODERN, marks=pytest.mark.full),
        pytest.param(NEW, "auth/basic-cimd", MODERN, marks=pytest.mark.full),
    ],
)
async def test_a_scenario_of_the_official_suites_passes(
    tmp_path: Path, suite: Path, scenario: str, options: tuple[str, ...]
) -> None:
    """Metadata in odd places, permissions asked for later, another authorization server."""
    script = suite / json.loads((suite / "package.json").read_text())["bin"]["conformance"]
    client = f"{sys.executable} {TESTS / 'upstream' / 'conformance_client.py'} {tmp_path}"
    with anyio.fail_after(120):
        done = await anyio.run_process(
            [str(SCRIPTS / "node"), str(script), "client"]
            + ["--command", client, "--scenario", scenario, *options, "-o", str(tmp_path / "out")],
            check=False,
            env={
                **os.environ,
                "NO_COLOR": "1",
                "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
            },
        )
    text = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, text[-2000:]
    assert ", 0 failed" in text
