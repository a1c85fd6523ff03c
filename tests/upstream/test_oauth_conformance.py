"""The official suite's authorization servers, which are others than the SDK's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest

TESTS = Path(__file__).parents[1]
SUITE = TESTS / "node" / "node_modules" / "@modelcontextprotocol" / "conformance"
SCRIPTS = Path(sys.executable).parent


@pytest.mark.node
@pytest.mark.parametrize(
    "scenario",
    ["auth/metadata-var3", "auth/scope-step-up"],
)
async def test_a_scenario_of_the_official_suite_passes(tmp_path: Path, scenario: str) -> None:
    """Metadata in odd places, and permissions asked for later."""
    script = SUITE / json.loads((SUITE / "package.json").read_text())["bin"]["conformance"]
    client = f"{sys.executable} {TESTS / 'upstream' / 'conformance_client.py'} {tmp_path}"
    with anyio.fail_after(120):
        done = await anyio.run_process(
            [str(SCRIPTS / "node"), str(script), "client"]
            + ["--command", client, "--scenario", scenario, "-o", str(tmp_path / "out")],
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
