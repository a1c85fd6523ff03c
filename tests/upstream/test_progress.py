"""A call that reports progress may take longer than its limit, and not without an end."""

from __future__ import annotations

import anyio
import pytest

from bridge.errors import CallTimeoutError
from bridge.upstream.client_features import on_behalf_of
from tests.upstream.rig import Rig
from tests.upstream.test_client_features import FakeCaller
from tests.upstream.test_offers import EVERYTHING
from tests.waiting import PATIENCE_SECONDS

WORK = "trigger-long-running-operation"


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
async def test_progress_moves_a_calls_limit(rig: Rig, wanted: bool) -> None:
    """Whether the client hears of it or not; ten times at most, and not without any report."""
    caller = FakeCaller()
    caller.wants_progress = wanted
    async with rig.pool(rig.spec("node", str(EVERYTHING), "stdio")) as pool:
        await pool.server("server").start()
        with on_behalf_of(caller), anyio.fail_after(PATIENCE_SECONDS):
            result = await pool.call_tool("server", WORK, {"duration": 4, "steps": 16}, timeout=2.0)
            assert "completed" in result["content"][0]["text"]
            assert bool(caller.reported) is wanted
            with pytest.raises(CallTimeoutError, match="within 1 s"):
                await pool.call_tool("server", WORK, {"duration": 3600, "steps": 1}, timeout=1.0)
            endless = {"duration": 3600, "steps": 72_000}
            with pytest.raises(CallTimeoutError, match="did not answer"):
                await pool.call_tool("server", WORK, endless, timeout=0.5)
