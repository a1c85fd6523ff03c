"""Servers of each protocol version with a handshake; `tests.wire` checks what they are sent."""

from __future__ import annotations

import sys

import pytest

from tests.upstream.rig import SERVERS, Rig
from tests.wire import OLDER, Wire


@pytest.mark.parametrize("version", OLDER)
async def test_a_server_of_each_version_is_called_and_answered(
    rig: Rig, wire: Wire, version: str
) -> None:
    """In its own version, though the newest with a handshake was offered."""
    inquirer = rig.spec(sys.executable, str(SERVERS / "inquirer.py"), version)
    async with rig.pool(inquirer, roots=[rig.directory]) as pool:
        result = await pool.call_tool("server", "ask", {"method": "roots/list", "params": {}})
        assert pool.state("server").server_info["protocol"] == version
    root = {"uri": rig.directory.as_uri(), "name": rig.directory.name}
    assert result["structuredContent"] == {"replies": [{"roots": [root]}]}
    # The handshake's two, the call and the answer; the list of tools is not needed for a call.
    assert wire.sent["2025-11-25"] >= 4
