"""A stand-in for a command line tool: tells what it can see and do. Run inside and, as a control,
outside.

Reads {"read": [...], "list": [...], "write": [...], "execute": [...], "connect": PORT,
"families": [...], "names": [...]} on stdin and prints each outcome.
"""

# ruff: noqa: PTH123, PTH109, PTH208

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial


def attempt(what: Callable[[], object]) -> object:
    try:
        return what()
    except Exception as error:  # the report is what this is for
        return f"{type(error).__name__}: {error}"


def read(path: str) -> object:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str) -> object:
    with open(path, "w", encoding="utf-8") as file:
        file.write("written")
    return True


def execute(path: str) -> object:
    subprocess.run([path], check=False, stdin=subprocess.DEVNULL, capture_output=True)
    return True


def connect(port: int) -> object:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def family(number: int) -> object:
    kind = socket.SOCK_RAW if number in (16, 17) else socket.SOCK_STREAM
    socket.socket(number, kind).close()
    return True


def resolve(name: str) -> object:
    return bool(socket.getaddrinfo(name, 80))


def main() -> None:
    asked = json.loads(sys.stdin.read() or "{}")
    found: dict[str, object] = {
        "argv": sys.argv[1:],
        "env": dict(os.environ),
        "digests": {k: hashlib.sha256(v.encode()).hexdigest() for k, v in os.environ.items()},
        "cwd": os.getcwd(),
        "here": sorted(os.listdir(".")),
        "uid": os.getuid(),
        "pids": [name for name in os.listdir("/proc") if name.isdigit()],
        "connect": attempt(partial(connect, asked["connect"])) if "connect" in asked else None,
    }
    for key, act in (
        ("read", read),
        ("list", os.listdir),
        ("write", write),
        ("execute", execute),
        ("names", resolve),
        ("families", family),
    ):
        found[key] = {str(item): attempt(partial(act, item)) for item in asked.get(key, [])}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
