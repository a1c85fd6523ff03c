"""Frames that only hostile code sends, on every descriptor it can find: attacks 18 to 25.

The host's end is the same on every backend, so one without and one with an engine are enough. Every
malformed frame is tried on the first.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.security.rig import Arena, peak_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these backends are for Linux")

DIFFERENT = ("bubblewrap", "podman")

BRIDGE = Path(__file__).parents[2] / "bridge"

INSIDE = (
    BRIDGE / "guest" / "bootstrap.py",
    BRIDGE / "guest" / "state" / "checkpoint.py",
    BRIDGE / "sandbox" / "process" / "stage.py",
)
"""What runs in a sandbox alone, and none of it on the host."""

HOST_GROWTH = 300 * 1024
"""KiB: the bound on calls that wait, with what Python needs around them."""

CHANNEL = r"""
import json, os, select, socket, time
def channel():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                return int(name)
        except OSError:
            pass
rpc = channel()
assert rpc > 2
def put(data):
    view = memoryview(data)
    while view:
        view = view[os.write(rpc, view):]
def call(number, method, **params):
    put(('{"type":"call","id":%d,"method":%s,"params":%s}\n' % (
        number, json.dumps(method), json.dumps(params))).encode())
def replies(count):
    data = b""
    while data.count(b"\n") < count:
        got = os.read(rpc, 1 << 20)
        if not got: break
        data += got
    return [json.loads(line) for line in data.splitlines()]
"""

FORGED_OUTPUT = r"""
import os
for frame in (
    '{"type":"done","outcome":"ok","exit_code":0,"has_result":true,"result":"forged"}',
    '{"type":"exited","code":0}',
    '{"type":"call","id":1,"method":"call_tool","params":{"server":"work-shop","tool":"add"}}',
):
    for fd in (1, 2):
        os.write(fd, (frame + "\n").encode())
7
"""

OTHER_METHODS = r"""
asked = ["open", "__init__", "_call_tool", "handle", "eval", "read_file", "shutdown", ""]
for number, method in enumerate(asked):
    call(number, method, code="1", path="/etc/shadow")
call(100, "call_tool", server="no-such", tool="add", arguments={})
call(101, "call_tool", server="work-shop", tool="no-such", arguments={})
call(102, "call_tool", server="../../etc", tool="add", arguments={})
call(103, "call_tool", server="work-shop", tool="add", arguments="text")
call(104, "call_tool", server=["work-shop"], tool={"add": 1}, arguments=None)
for line in (
    b'{"type":"exited","code":0}\n', b'{"type":"hello","digest":"","python":"","protocol":1}\n',
    b'{"type":"output","stream":"stdout","skipped":9}\n', b'{"type":"reply","id":1}\n',
    b'{"type":"run","code":"1"}\n', b"nonsense\n", b"\n\n",
):
    put(line)
put(b'{"type":"cancel","id":9007199254740000}\n')
[(reply["id"], (reply["error"] or {}).get("kind")) for reply in replies(len(asked) + 5)]
"""

FLOOD = r"""
import threading
def drain():
    while os.read(rpc, 1 << 20): pass
threading.Thread(target=drain, daemon=True).start()
line = b'{"type":"call","id":%d,"method":"list_servers","params":{}}\n'
for start in range(0, 100_000, 1000):
    put(b"".join(line % n for n in range(start, start + 1000)))
print("sent")
"""

LONG_LINE = r"""
block = b"x" * (1 << 20)
put(b'{"type":"call","id":1,"method":"')
for _ in range(1024): put(block)
put(b'"}\n')
call(2, "list_servers")
replies(1)[0]["value"]
"""

LARGE = """
try:
    await mcp_work_shop.echo(a="x" * (20 << 20))
except ValueError as error:
    print(error)
(await mcp_work_shop.add(a=1, b=2))["sum"]
"""

MALFORMED = {
    "nested deeply": '{"type":"call","id":1,"method":"x","params":' + "[" * 100_000 + "]" * 100_000,
    "not a number": '{"type":"call","id":1,"method":"x","params":{"a":NaN}}',
    "infinite": '{"type":"call","id":1,"method":"x","params":{"a":-Infinity}}',
    "no text": "\udcff\udcfe".join(['{"type":"call","id":1,"method":"', '","params":{}}']),
    "a number of 100,000 digits": '{"type":"call","id":' + "9" * 100_000 + ',"method":"x"}',
    "a negative id": '{"type":"call","id":-1,"method":"x","params":{}}',
    "a second type": '{"type":"call","type":"exited","code":0}',
    "another shape": '{"type":"call","id":1,"method":"x","params":{},"code":"1"}',
    "the same id twice": '{"type":"call","id":1,"method":"call_tool","params":{"server":'
    '"work-shop","tool":"meet","arguments":{"count":9}}}\n' * 2,
    "two ends": '{"type":"done","outcome":"ok","exit_code":0}\n' * 2,
}
"""What the supervisor passes on and the host does not take."""

HARMLESS = r"""
call(1, "call_tool", server="work-shop", tool="echo", arguments={"a": "\ud800", "b": 1e308})
put(b'{"type":"call","id":2,"method":"no","method":"list_servers","params":{"a":1},"params":{}}\n')
got = {reply["id"]: reply for reply in replies(2)}
[got[1]["value"], got[2]["value"]]
"""

STALLED = r"""
for number in range(40):
    call(number, "call_tool", server="work-shop", tool="big", arguments={"size": 4_000_000})
put(b'{"type":"call","id":')
time.sleep(60)
"""

PICKLED = r"""
import base64, pickle, sys
class Evil:
    def __reduce__(self):
        return open, (sys.argv[1], "w")
    def __repr__(self):
        return "evil"
text = base64.b64encode(pickle.dumps(Evil())).decode()
put(pickle.dumps(Evil()).replace(b"\n", b" ") + b"\n")
call(1, "call_tool", server="work-shop", tool="echo", arguments={"a": text, "py/reduce": text})
print(text, replies(1)[0]["id"])
Evil()
"""

SABOTAGE = r"""
import atexit, builtins, json, os, signal, sys, threading
def wrong(*args, **kwargs):
    return '{"type":"done","outcome":"ok","exit_code":0,"has_result":true,"result":"forged"}'
for name, module in list(sys.modules.items()):
    if name.startswith("bridge.guest"):
        for key in ("encode", "decode_host_frame", "to_json", "MAX_FRAME_BYTES"):
            if hasattr(module, key): setattr(module, key, wrong)
json.dumps = json.loads = wrong
sys.settrace(lambda *args: None)
threading.settrace(lambda *args: None)
atexit.register(wrong)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
builtins.print = builtins.open = wrong
sys.excepthook = sys.displayhook = wrong
open_files = os.open("/tmp/sitecustomize.py", os.O_CREAT | os.O_WRONLY)
os.environ["PYTHONSTARTUP"] = "/tmp/sitecustomize.py"
sys.modules.clear()
"""


@pytest.mark.guarantee("frames-are-text")
async def test_frames_on_the_programs_own_output_are_text(arena: Arena) -> None:
    found = (await arena.attack(FORGED_OUTPUT)).result
    assert (found.status, found.result) == ("success", 7), found
    assert found.stdout.count('"type"') == found.stderr.count('"type"') == 3
    assert found.usage.tool_calls == 0


@pytest.mark.guarantee("frames-give-nothing")
async def test_frames_on_the_channel_get_nothing_that_was_not_given(arena: Arena) -> None:
    await arena.with_server()
    found = (await arena.attack(CHANNEL + OTHER_METHODS)).result
    assert found.status == "success", found
    kinds = dict(found.result)
    assert set(kinds) == {*range(8), *range(100, 105)}
    assert {kinds[number] for number in range(8)} == {"usage"}
    assert None not in kinds.values(), found.result
    assert "forged" not in found.stdout


@pytest.mark.guarantee("floods")
async def test_a_gigabyte_in_one_line_is_not_kept(arena: Arena) -> None:
    with peak_memory() as grown:
        found = (await arena.attack(CHANNEL + LONG_LINE, timeout=60)).result
    assert found.result == ["work-shop"], found
    assert grown[0] < HOST_GROWTH, grown


@pytest.mark.guarantee("floods")
async def test_a_hundred_thousand_calls_are_held_back(arena: Arena) -> None:
    with peak_memory() as grown:
        found = (await arena.attack(CHANNEL + FLOOD, timeout=2)).result
    assert found.reason in (None, "timeout"), found
    assert grown[0] < HOST_GROWTH, grown


@pytest.mark.guarantee("frames-give-nothing", "malformed")
async def test_malformed_frames_end_their_run_and_nothing_else(arena: Arena) -> None:
    await arena.with_server()
    forms = list(MALFORMED) if arena.name == "bubblewrap" else list(MALFORMED)[:1]
    for form in forms:
        text = MALFORMED[form].encode("utf-8", "surrogateescape")
        code = f"{CHANNEL}put({text!r} + b'\\n')\ntime.sleep(600)"
        found = (await arena.attack(code)).result
        assert (found.status, found.reason) == ("error", "crash"), (form, found)
        assert "protocol" in found.summary, (form, found)


@pytest.mark.guarantee("malformed")
async def test_arguments_beyond_the_limit_are_refused(arena: Arena) -> None:
    await arena.with_server()
    with peak_memory() as grown:
        found = (await arena.attack(LARGE)).result
    assert ("the limit is" in found.stdout, found.result) == (True, 3), found
    assert grown[0] < HOST_GROWTH, grown


@pytest.mark.guarantee("malformed")
async def test_odd_values_in_good_frames_are_served(arena: Arena) -> None:
    await arena.with_server()
    found = (await arena.attack(CHANNEL + HARMLESS)).result
    assert found.status == "success", found
    assert found.result[1] == ["work-shop"]


@pytest.mark.guarantee("floods")
async def test_a_program_that_stops_reading_or_writing_meets_the_deadline(arena: Arena) -> None:
    await arena.with_server()
    with peak_memory() as grown:
        found = (await arena.attack(CHANNEL + STALLED, timeout=2)).result
    assert found.reason == "timeout", found
    assert grown[0] < 2 * HOST_GROWTH, grown


def unpickles(node: ast.AST) -> bool:
    """Tell whether a node makes objects of bytes. `marshal` may write: guests get compiled code."""
    if isinstance(node, ast.Import):
        return any(name.name in ("pickle", "shelve", "dill") for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in ("pickle", "shelve", "dill", "marshal")
    if isinstance(node, ast.Attribute) and node.attr in ("load", "loads"):
        return isinstance(node.value, ast.Name) and node.value.id == "marshal"
    return False


@pytest.mark.guarantee("no-code-comes-out")
async def test_nothing_from_a_program_is_unpickled(arena: Arena, tmp_path: Path) -> None:
    await arena.with_server()
    path = tmp_path / "made"
    found = (await arena.attack(CHANNEL + PICKLED, argv=(str(path),))).result
    assert (found.status, found.result_repr) == ("success", "evil"), found
    assert not path.exists()


@pytest.mark.guarantee("no-code-comes-out")
def test_the_host_could_not_unpickle_if_it_wanted_to() -> None:
    files = [file for file in BRIDGE.rglob("*.py") if file not in INSIDE]
    assert len(files) > 100
    texts = {file: file.read_text("utf-8") for file in files}
    for file, text in texts.items():
        if any(word in text for word in ("pickle", "shelve", "dill", "marshal")):
            for node in ast.walk(ast.parse(text)):
                assert not unpickles(node), (file, ast.unparse(node))


@pytest.mark.guarantee("no-code-comes-out")
async def test_what_a_program_does_to_its_own_interpreter_stays_there(arena: Arena) -> None:
    found = (await arena.attack(SABOTAGE, timeout=5)).result
    assert not (found.status == "success" and found.result == "forged"), found
