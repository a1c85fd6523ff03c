"""A stdio MCP server in plain Python that misbehaves on request. Standard library only.

Its first argument is a comma-separated list of modes, which change how it starts and lists its
tools; each of its tools misbehaves in a call. If PID_FILE is set, its pid is appended to that file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODES = set(sys.argv[1].split(",")) if len(sys.argv) > 1 else set()

SLEEP = "import time; time.sleep(3600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); {SLEEP}"
DAEMON = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "print(os.getpid(), flush=True)\n"
    "os.close(1)\n"
    f"{SLEEP}\n"
)

stdout = sys.stdout.buffer


def send_bytes(data: bytes) -> None:
    stdout.write(data + b"\n")
    stdout.flush()


def send(message: dict[str, Any]) -> None:
    send_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode())


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def answer(request_id: Any, result: dict[str, Any]) -> None:
    send({"id": request_id, "result": result})


def spawn_grandchild(arguments: dict[str, Any]) -> int:
    kind = arguments["kind"]
    if kind == "daemon":
        out = subprocess.run([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, check=True)
        return int(out.stdout)
    program = STUBBORN if kind == "stubborn" else f"print(1); {SLEEP}"
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=kind == "setsid",
    )
    if child.stdout is not None:
        child.stdout.readline()
    return child.pid


def call_crash(request_id: Any, arguments: dict[str, Any]) -> None:
    print("about to crash", file=sys.stderr, flush=True)
    os._exit(7)


def call_killed(request_id: Any, arguments: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def call_crash_holding_stdout(request_id: Any, arguments: dict[str, Any]) -> None:
    subprocess.Popen([sys.executable, "-c", SLEEP], stdin=subprocess.DEVNULL)
    os._exit(8)


def call_never(request_id: Any, arguments: dict[str, Any]) -> None:
    if "started" in arguments:
        Path(arguments["started"]).write_text("yes")


def call_deaf(request_id: Any, arguments: dict[str, Any]) -> None:
    os.close(0)
    answer(request_id, text("deaf now"))
    time.sleep(3600)


def call_jam(request_id: Any, arguments: dict[str, Any]) -> None:
    answer(request_id, text("reading no more"))
    time.sleep(3600)


def call_busy(request_id: Any, arguments: dict[str, Any]) -> None:
    time.sleep(arguments["seconds"])
    answer(request_id, text("done"))


def call_wrapped(request_id: Any, arguments: dict[str, Any]) -> None:
    message = {"jsonrpc": "2.0", "id": request_id, "result": text('{"jsonrpc": "2.0"}')}
    more = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}}'
    asked = f'{{"jsonrpc": "2.0", "id": {request_id}, "method": "tools/call"}}'
    wrapped = arguments["around"].replace("$MORE", more).replace("$ASKED", asked)
    send_bytes(wrapped.replace("$MESSAGE", json.dumps(message)).encode())


def call_null_id(request_id: Any, arguments: dict[str, Any]) -> None:
    send({"id": None, "error": {"code": -32603, "message": "no such table"}})


def call_noise_only(request_id: Any, arguments: dict[str, Any]) -> None:
    send_bytes(b"Traceback: the table is missing")


def call_noise(request_id: Any, arguments: dict[str, Any]) -> None:
    for noise in (b"Loading...", b"", b"\xff\xfe\x00 garbage", b"42", b"[1,2]", b"{broken"):
        send_bytes(noise)
    answer(request_id, text("after the noise"))


def call_big(request_id: Any, arguments: dict[str, Any]) -> None:
    answer(request_id, text("x" * arguments["size"]))


def call_big_id_last(request_id: Any, arguments: dict[str, Any]) -> None:
    result = json.dumps(text("x" * arguments["size"]))
    send_bytes(f'{{"result":{result},"jsonrpc":"2.0","id":{request_id}}}'.encode())


def call_big_nameless(request_id: Any, arguments: dict[str, Any]) -> None:
    send_bytes(b"x" * arguments["size"])


def call_odd_shape(request_id: Any, arguments: dict[str, Any]) -> None:
    answer(request_id, {"structuredContent": [1, 2], "madeUp": {"kept": True}})


def call_refuse(request_id: Any, arguments: dict[str, Any]) -> None:
    message = arguments.get("message", "no")
    send({"id": request_id, "error": {"code": -32042, "message": message, "data": {"why": "so"}}})


def call_stderr(request_id: Any, arguments: dict[str, Any]) -> None:
    for _ in range(arguments["lines"]):
        print("e" * 99, file=sys.stderr)
    sys.stderr.flush()
    answer(request_id, text("written"))


def call_grow(request_id: Any, arguments: dict[str, Any]) -> None:
    CALLS["grown"] = call_echo
    if "quiet" not in MODES:
        send({"method": "notifications/tools/list_changed"})
    answer(request_id, text("grown"))


def call_tell(request_id: Any, arguments: dict[str, Any]) -> None:
    """Write messages, progress and the answer in one go."""
    told = [{"method": "notifications/message", "params": {"level": "info", "data": "said"}}] * 3
    report = {"progressToken": request_id, "progress": 1}
    last = [{"method": "notifications/progress", "params": report}, {"id": request_id}]
    last[-1]["result"] = text("told")
    send_bytes(b"\n".join(json.dumps({"jsonrpc": "2.0", **one}).encode() for one in told + last))


def call_ask_user(request_id: Any, arguments: dict[str, Any]) -> None:
    wanted = {"q": {"method": "elicitation/create", "params": {"message": "?"}}}
    answer(request_id, {"resultType": "input_required", "inputRequests": wanted})


def call_sample(request_id: Any, arguments: dict[str, Any]) -> None:
    params = {"messages": [], "maxTokens": 1}
    send({"id": "s-1", "method": "sampling/createMessage", "params": params})
    reply = json.loads(sys.stdin.buffer.readline())
    answer(request_id, text(reply["error"]["message"]))


def call_write_file(request_id: Any, arguments: dict[str, Any]) -> None:
    path = Path(arguments["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(arguments["content"])
    answer(request_id, text("written"))


def call_where(request_id: Any, arguments: dict[str, Any]) -> None:
    facts = {"cwd": str(Path.cwd()), "env": dict(os.environ), "pid": os.getpid()}
    answer(request_id, {"content": [], "structuredContent": facts})


def call_spawn(request_id: Any, arguments: dict[str, Any]) -> None:
    answer(request_id, {"content": [], "structuredContent": {"pid": spawn_grandchild(arguments)}})


def call_echo(request_id: Any, arguments: dict[str, Any]) -> None:
    answer(request_id, {**text(json.dumps(arguments)), "structuredContent": arguments})


CALLS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    name.removeprefix("call_"): value
    for name, value in list(globals().items())
    if name.startswith("call_")
}


def describe(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


def list_tools(request_id: Any, cursor: str | None) -> None:
    page = int(cursor or 0)
    if "pages" in MODES:
        entries = [describe(f"tool_{page}_{i}") for i in range(2)]
        answer(
            request_id, {"tools": entries, **({"nextCursor": str(page + 1)} if page < 2 else {})}
        )
    elif "same-cursor" in MODES:
        answer(request_id, {"tools": [describe("only")], "nextCursor": "0"})
    elif "odd-tools" in MODES:
        first = {**describe("twice"), "description": "the first"}
        names = ["__import__", "class", "a b", "\u202eevil", ""]
        listed: list[Any] = [first, describe("twice"), *map(describe, names)]
        answer(request_id, {"tools": [*listed, {"inputSchema": 1}, 7]})
    elif "no-tools" in MODES:
        send({"id": request_id, "error": {"code": -32601, "message": "Method not found"}})
    else:
        hints = {"ttlMs": int(os.environ["TTL_MS"])} if "TTL_MS" in os.environ else {}
        answer(request_id, {"tools": [describe(name) for name in CALLS], **hints})


def initialize(request_id: Any, params: dict[str, Any]) -> None:
    if "silent" in MODES:
        return
    if "fail-once" in MODES:
        marker = Path(os.environ["FAIL_ONCE"])
        if not marker.exists():
            marker.write_text("failed")
            print("not today", file=sys.stderr, flush=True)
            sys.exit(5)
    if "newer-only" in MODES:
        error = {"code": -32022, "message": "no handshake", "data": {"supported": ["2026-07-28"]}}
        send({"id": request_id, "error": error})
        return
    if "no-handshake" in MODES:
        send({"id": request_id, "error": {"code": -32601, "message": "Method not found"}})
        return
    answer(
        request_id,
        {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "raw", "version": "1.2"},
        },
    )


def handle(message: dict[str, Any]) -> None:
    method, request_id = message.get("method"), message.get("id")
    params = message.get("params") or {}
    if method == "initialize":
        initialize(request_id, params)
    elif method == "server/discover" and "neither" in MODES:
        send({"id": request_id, "error": {"code": -32600, "message": "Nor this"}})
    elif method == "server/discover":
        answer(
            request_id,
            {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {"listChanged": "announcing" in MODES}},
                "ttlMs": 0,
                "cacheScope": "private",
            },
        )
    elif method == "subscriptions/listen":
        meta = {"io.modelcontextprotocol/subscriptionId": request_id}
        told = {"_meta": meta, "notifications": params.get("notifications") or {}}
        send({"method": "notifications/subscriptions/acknowledged", "params": told})
        Path(os.environ["LISTENED"]).write_text("yes")
    elif method == "tools/list":
        list_tools(request_id, params.get("cursor"))
    elif method == "tools/call" and params["name"] == "meta":
        answer(request_id, {"content": [], "structuredContent": params.get("_meta") or {}})
    elif method == "tools/call" and "inputResponses" in params:
        told = {name: params[name] for name in params.keys() - {"_meta"}}
        answer(request_id, {"content": [], "structuredContent": told})
    elif method == "tools/call":
        CALLS[params["name"]](request_id, params.get("arguments") or {})
    elif method == "notifications/cancelled" and "CANCELLED" in os.environ:
        Path(os.environ["CANCELLED"]).write_text(str(params.get("reason")))


def main() -> None:
    if "PID_FILE" in os.environ:
        with Path(os.environ["PID_FILE"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if "exit" in MODES:
        print("cannot find my configuration", file=sys.stderr, flush=True)
        sys.exit(3)
    if "stubborn" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    first = True
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if first and "strict" in MODES and message.get("method") != "initialize":
            sys.exit(9)
        first = False
        handle(message)
    if "stubborn" in MODES:
        time.sleep(3600)


if __name__ == "__main__":
    main()
