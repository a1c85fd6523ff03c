"""The client of the mcp SDK 1.x."""

from contextlib import AsyncExitStack

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CancelledNotification, CancelledNotificationParams, ClientNotification
from playing import came, main, play


class Peer:
    def __init__(self, session):
        self.session = session

    async def tools(self):
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def call(self, code):
        return came(await self.session.call_tool("run_python", {"code": code}))

    async def cancel(self, call):
        # Cancelling the call alone tells the server nothing in 1.x.
        params = CancelledNotificationParams(requestId=self.session._request_id - 1)
        notification = CancelledNotification(method="notifications/cancelled", params=params)
        await self.session.send_notification(ClientNotification(notification))


async def run(task):
    async with AsyncExitStack() as stack:
        if "url" in task:
            opened = streamable_http_client(task["url"])
        else:
            command, *args = task["command"]
            opened = stdio_client(
                StdioServerParameters(command=command, args=args, env=task["env"], cwd=task["cwd"])
            )
        read, write, *_ = await stack.enter_async_context(opened)
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()
        return await play(Peer(session), task)


main(run)
