"""What leaves a sandbox as bytes just before its program ends arrives whole."""

from __future__ import annotations

import base64
import hashlib

import anyio
from mcp.types import ImageContent

from tests.e2e.rig import PATIENCE_SECONDS, User, document_of, text_of

RUNS = 3
"""Of each program: how the bytes are cut into reads differs from run to run."""

SIDE = 700
"""Of a picture whose pixels nothing compresses: 490 KB, many reads."""

LAST_PICTURE = f"""
import hashlib, os, struct, zlib

def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

rows = b"".join(b"\\0" + os.urandom({SIDE}) for _ in range({SIDE}))
head = struct.pack(">IIBBBBB", {SIDE}, {SIDE}, 8, 0, 0, 0, 0)
png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 0))
png += chunk(b"IEND", b"")

class Picture:
    def _repr_png_(self):
        return png

print(hashlib.sha256(png).hexdigest())
Picture()
"""


async def test_a_large_picture_that_is_a_program_s_last_act_arrives_whole(user: User) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client() as client:
            for _ in range(RUNS):
                result = await client.call_tool("run_python", {"code": LAST_PICTURE})
                assert result.is_error is False, text_of(result)
                document = document_of(result)
                (shown,) = document["shown"]
                assert (shown["width"], shown["height"]) == (SIDE, SIDE)
                (block,) = (one for one in result.content if isinstance(one, ImageContent))
                digest = hashlib.sha256(base64.b64decode(block.data)).hexdigest()
                assert document["stdout"] == [digest]
