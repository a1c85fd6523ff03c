"""Hostile programs: whatever they are and write to the channel, the loop turns on."""

from __future__ import annotations

import anyio
import pytest

from bridge.errors import BridgeError
from bridge.model import RunRequest
from bridge.runs import Engine
from tests.hostile.test_servers import PATIENCE_SECONDS
from tests.security.test_protocol import CHANNEL as PUT
from tests.watchdog import Watchdog

pytestmark = pytest.mark.guarantee("loop-never-stalls", "names-counted")

M = 1_000_000

CHANNEL = (
    f"{PUT}M = {M}"
    r"""
def raw(method, params):
    put(b'{"type":"call","id":9,"method":"%s","params":%s}\n' % (method, params))
    data = b""
    while not data.endswith(b"\n"):
        data += os.read(rpc, 1 << 20)
    reply = json.loads(data)
    print((reply.get("error") or {}).get("message") or reply.get("value"))
def call(method, **params):
    raw(method.encode(), json.dumps(params).encode())
def call_t(**params):
    call("call_tool", server="pb", tool="t", **params)
"""
)

TOO_LONG = "has 12,000,000 characters; the limit is"

FRAMES = {
    "server": ('call("call_tool", server="s" * 12 * M, tool="t")', TOO_LONG),
    "tool": ('call("call_tool", server="pb", tool="t" * 12 * M)', TOO_LONG),
    "argument": ('call_t(arguments={"a" * 12 * M: 1})', TOO_LONG),
    "uri": ('call("read_resource", server="pb", uri="u" * 12 * M)', TOO_LONG),
    "prompt": ('call("get_prompt", server="pb", name="p" * 12 * M, arguments={})', TOO_LONG),
    "query": ('call("search_tool_docs", query="w " * 6 * M)', TOO_LONG),
    "limit": ('call("search_tool_docs", query="q", limit=0)', "limit must be a whole number"),
    "detail": ('call("query_tool_docs", server="pb", detail="all")', 'detail must be "summary" or'),
    "memory": ('call("save_memory", key="k" * 12 * M, value=1)', TOO_LONG),
    "skill": ('call("save_skill", name="s" * 12 * M, source="def f(): pass")', TOO_LONG),
    "memory's value": ('call("save_memory", key="k", value="v" * 12 * M)', ""),
    "memory of 200,000 values": ('call("save_memory", key="k", value=[1] * 200_000)', ""),
    "skill's source": ('call("save_skill", name="s", source="x = 1\\n" * 2 * M)', ""),
    "skill's depth": ('call("save_skill", name="s", source="(" * 60_000)', ""),
    "output": ('call("read_output", run_id="r" * 12 * M, stream="stdout")', TOO_LONG),
    "method": ('raw(b"m" * 12 * M, b"{}")', "The bridge has no method 'mmm"),
    "text": ('call_t(arguments={"a": "s" * 12 * M})', "'ok'"),
    "200,000 items": ('call_t(arguments={"a": ["s"] * 200_000})', "'ok'"),
    "200,000 arguments": ('call_t(arguments={f"k{i}": 1 for i in range(200_000)})', "'ok'"),
    "3,000,000 items": (
        "raw(b'call_tool', b'{\"a\":[' + b'1,' * 3 * M + b'1]}')",
        "too many values",
    ),
    "90,000 levels": (
        "put(b'{\"type\":\"call\",\"a\":' + b'[' * 90_000 + b']' * 90_000 + b'}\\n')",
        "nested too deeply",
    ),
    "3,000 numbers of 4,000 digits": (
        'raw(b"call_tool", b\'{"a":[\' + (b"1" * 4_000 + b",") * 3_000 + b"1]}")',
        "4000 digits; the limit is 1000",
    ),
    "50,000 cancellations": (
        'put(b"".join(b\'{"type":"cancel","id":%d}\\n\' % i for i in range(50_000)))\nprint("ok")',
        "ok",
    ),
    "20,000 frames of progress": (
        'put(b\'{"type":"progress","done":1}\\n\' * 20_000)\nprint("ok")',
        "ok",
    ),
}


@pytest.mark.parametrize(("code", "told"), list(FRAMES.values()), ids=list(FRAMES))
async def test_no_frame_keeps_the_loop(
    engine: Engine, watchdog: Watchdog, code: str, told: str
) -> None:
    await engine.servers.load(["pb"])
    request = RunRequest(code=CHANNEL + code, servers=("pb",), timeout=60)
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        try:
            result = await engine.run(request)
            said = result.stdout + result.error + result.summary
        except BridgeError as error:
            said = str(error)
    assert told in said


async def test_a_name_that_is_refused_counts_as_a_call(engine: Engine) -> None:
    code = (
        CHANNEL
        + """
params = json.dumps({"server": "pb", "tool": "t" * 1_025})
frame = b'{"type":"call","id":%d,"method":"call_tool","params":' + params.encode() + b"}\\n"
for _ in range(21):
    for number in range(500):
        put(frame % number)
    data = b""
    while data.count(b"\\n") < 500:
        data += os.read(rpc, 1 << 20)
    lines = data.splitlines()
print(json.loads(lines[-1])["error"]["message"])
"""
    )
    result = await engine.run(RunRequest(code=code, servers=("pb",), timeout=120))
    assert "has made all of the 10,000 calls" in result.stdout


PROGRAMS = {
    "10 MB": "x = 1\n" * 1_600_000,
    "20,000 calls": "if 0:\n" + "  mcp_pb.t(a=1)\n" * 20_000,
    "40,000 servers": "".join(f"mcp_s{i}.t()\n" for i in range(40_000)),
    "30,000 unknown tools": "".join(f"await mcp_pb.t{i}()\n" for i in range(30_000)),
    "a server of 1 MB": "mcp_" + "x" * M + ".t()",
    "an argument of 1 MB": "await mcp_pb.t(" + "x" * M + "=1)",
    "a text of 1 MB": "x = '" + "a" * M + "'",
    "5,000 parentheses": "(" * 5_000 + ")" * 5_000,
    "100,000 additions": "x = 1" + "+1" * 100_000,
    "100,000 attributes": "x" + ".a" * 100_000,
    "30,000 branches": "if x: pass\n" + "elif x: pass\n" * 30_000,
    "20,000 arguments": "if 0: mcp_pb.t(" + ",".join(f"k{i}=1" for i in range(20_000)) + ")",
    "50,000 imports": "if 0:\n" + "".join(f" import m{i}\n" for i in range(50_000)),
    "30,000 names of one server": "a0 = mcp_pb\n"
    + "".join(f"a{i} = a{i - 1}\n" for i in range(1, 30_000)),
    "20,000 fields of one text": "a = 1\nx = f'" + "{a}" * 20_000 + "'",
    "5,000 loops in one": "x = [1 " + "for a in b " * 5_000 + "]",
    "a mistake behind 50,000 lines": "x = 1\n" * 50_000 + "x = = 1",
}


@pytest.mark.parametrize("code", list(PROGRAMS.values()), ids=list(PROGRAMS))
async def test_no_program_s_text_keeps_the_loop(
    engine: Engine, watchdog: Watchdog, code: str
) -> None:
    await engine.servers.load(["pb"])
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        try:
            result = await engine.run(RunRequest(code=code, timeout=10))
            said = result.summary
        except BridgeError as error:
            said = str(error)
    assert 0 < len(said) < 2_000
