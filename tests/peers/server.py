"""A server of FastMCP over stdio, whichever version is installed; else the one of the mcp SDK 1.x.

    server.py [PORT]

With a port it speaks event streams there, which the SDK's does. Runs in environments of others.
"""

import base64
import sys
from pathlib import Path

import anyio

try:
    from fastmcp import FastMCP
    from fastmcp.utilities.types import Image
except ImportError:
    from mcp.server.fastmcp import FastMCP, Image

server = FastMCP("peer")


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it broke")


@server.tool()
def picture(data: str) -> Image:
    """Return a PNG as a picture."""
    return Image(data=base64.b64decode(data), format="png")


@server.tool()
async def slow(started: str, cancelled: str) -> str:
    """Wait until it is cancelled."""
    Path(started).write_text("yes")
    try:
        await anyio.sleep_forever()
    except BaseException:
        Path(cancelled).write_text("yes")
        raise
    return "done"


if sys.argv[1:]:
    server.settings.port = int(sys.argv[1])
    server.run("sse")
else:
    server.run(show_banner=False)
