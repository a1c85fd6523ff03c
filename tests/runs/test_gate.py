"""What watches over runs: the policy file read again, and what a result says of its calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.model import RunRequest
from bridge.runs.guest_requests import SAID_BEFORE
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend

ADD = "await mcp_work_shop.add(a=1, b=2)"

DENY = '[policy]\n[[policy.rules]]\nname = "no sums"\ntool = "add"\naction = "deny"\n'


def write(path: Path, text: str) -> None:
    """Write another version of a file, and have it look like one whatever the clock's grain."""
    path.write_text(text)
    changed = path.stat().st_mtime_ns + 1_000_000 * (len(text) + 1)
    os.utime(path, ns=(changed, changed))


async def test_a_policy_is_read_again_when_its_file_changes(
    settings: Settings, finder: ListFinder, backend: FakeBackend, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    write(config, "")
    async with engine_on(backend, settings, config=config, finder=finder) as engine:
        assert (await engine.run(RunRequest(code=ADD))).result == {"sum": 3}
        write(config, DENY)
        denied = await engine.run(RunRequest(code=ADD))
        assert (denied.status, denied.reason) == ("error", "exception")
        assert "rule 'no sums'" in denied.error
        assert [(found.tool, found.count) for found in denied.refused] == [("add", 1)]
        assert denied.receipt is not None
        assert (denied.receipt.refused, denied.receipt.calls) == (1, {})
        write(config, DENY + 'effect = "sometimes"\n')
        for code in (ADD, "1"):
            # What is written there may be a secret that was put in the wrong place.
            with pytest.raises(SettingsError, match=r"config\.toml.*rules\[1\].*\[its value\]"):
                await engine.run(RunRequest(code=code))
        write(config, DENY.replace("add", "other"))
        assert (await engine.run(RunRequest(code=ADD))).status == "error"  # a write is asked about
        for gone in ("", None):
            # As an editor leaves it for a moment: no policy is not what was meant.
            config.write_text("") if gone == "" else config.unlink()
            with pytest.raises(SettingsError, match="empty or gone"):
                await engine.run(RunRequest(code="1"))
        write(config, "# gone")
        assert (await engine.run(RunRequest(code=ADD))).result == {"sum": 3}


@pytest.mark.parametrize(
    ("tool", "call"),
    [("add", ADD), ("prompts/get", 'await runtime.complete("work-shop", "name", "key", "t")')],
)
async def test_the_rule_that_would_allow_a_call_is_told_once_in_a_run(
    settings: Settings,
    finder: ListFinder,
    backend: FakeBackend,
    tmp_path: Path,
    tool: str,
    call: str,
) -> None:
    config = tmp_path / "config.toml"
    write(config, DENY.replace('"deny"', '"ask"').replace("add", tool))
    code = f"""
for _ in range(3):
    try:
        {call}
    except MCPError as error:
        print(error)
"""
    async with engine_on(backend, settings, config=config, finder=finder) as engine:
        for _ in range(2):
            told = (await engine.run(RunRequest(code=code))).stdout
            assert told.count("needs a person's approval (rule 'no sums')") == 3
            assert told.count("[[policy.rules]]") == 1
            assert told.count(SAID_BEFORE) == 2
