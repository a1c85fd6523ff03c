"""A plan through the installed command: a real engine, and a client whose person answers."""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult

from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS, User, document_of, text_of
from tests.recorder_rig import recorded, recorder_entry

POLICY = "[policy.servers.tracker]\ntrust = true\n"

CODE = "a = await mcp_tracker.create(title='a')\nawait mcp_tracker.create(title='b', parent=a.id)"


async def test_a_plan_is_applied_on_each_engine(user: User) -> None:
    """With the calls of the program made in a container, and those of the plan without one."""
    log = user.home / "tracker.log"
    servers = {"tracker": recorder_entry(log, notes={})}
    (user.home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    (user.home / "config.toml").write_text(POLICY)
    environ = user.environ(MCP_BRIDGE_CONFIG=str(user.home / "config.toml"), MCP_BRIDGE_WARM="0")
    parameters = StdioServerParameters(command=str(BRIDGE), cwd=user.project, env=environ)

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"decision": "apply"})

    with (user.home / "bridge.log").open("a") as errors, anyio.fail_after(PATIENCE_SECONDS):
        bridge = stdio_client(parameters, errlog=errors)
        async with Client(bridge, elicitation_callback=answer) as client:
            plan = await client.call_tool("run_python", {"code": CODE, "mode": "plan"})
            planned = document_of(plan)
            assert planned["isolation"]["backend"] == user.engine
            applied = await client.call_tool("run_python", {"apply": planned["plan"]["id"]})
    assert applied.is_error is False, text_of(applied)
    assert recorded(log) == [("create", {"title": "a"}), ("create", {"title": "b", "parent": 1})]
