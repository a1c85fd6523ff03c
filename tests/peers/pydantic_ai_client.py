"""The toolset of pydantic-ai, which hands an agent values instead of results."""

from fastmcp_client import client
from playing import main, play
from pydantic_ai import BinaryContent
from pydantic_ai.mcp import MCPToolset


class Peer:
    def __init__(self, toolset):
        self.toolset = toolset

    async def tools(self):
        return [tool.name for tool in await self.toolset.list_tools()]

    async def call(self, code):
        try:
            value = await self.toolset.direct_call_tool("run_python", {"code": code})
        except Exception as error:
            return {"failed": True, "kinds": ["text"], "text": str(error), "record": None}
        values = value if isinstance(value, list) else [value]
        kinds = ["image" if isinstance(each, BinaryContent) else "text" for each in values]
        texts = [str(each) for each in values if not isinstance(each, BinaryContent)]
        return {"failed": False, "kinds": kinds, "text": "".join(texts), "record": None}

    async def cancel(self, call):
        call.cancel()


async def run(task):
    async with MCPToolset(client(task), tool_error_behavior="error") as toolset:
        return await play(Peer(toolset), task)


main(run)
