"""The client of FastMCP 2, 3 or 4, whichever is installed."""

import fastmcp
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from playing import came, main, play

OLDER = int(fastmcp.__version__.split(".")[0]) < 4


def client(task):
    """Return a client of what a task names."""
    if "url" in task:
        return Client(task["url"])
    command, *args = task["command"]
    return Client(StdioTransport(command, args, env=task["env"], cwd=task["cwd"]))


class Peer:
    def __init__(self, connected):
        self.connected = connected

    async def tools(self):
        return [tool.name for tool in await self.connected.list_tools()]

    async def call(self, code):
        return came(await self.connected.call_tool_mcp("run_python", {"code": code}))

    async def cancel(self, call):
        if OLDER:
            await self.connected.cancel(self.connected.session._request_id - 1)
        else:
            call.cancel()


async def run(task):
    async with client(task) as connected:
        return await play(Peer(connected), task)


if __name__ == "__main__":
    main(run)
