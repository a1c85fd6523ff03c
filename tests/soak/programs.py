"""What a soak runs: programs that mean harm, and honest ones between them whose answers are known.

Each says how it may end. An attack that ends in another way is a finding, and so is an honest
program that does not get its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.model import RunResult

Ends = frozenset[str]

CALM = frozenset(("success",))
RAISED = frozenset(("exception",))
TIMEOUT = frozenset(("timeout",))
KILLED = frozenset(("crash", "oom", "exit", "exception", "timeout"))
"""Where the kernel decides who dies first."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program.

    Attributes:
        ends: What `success` or the reason may be.
        result: The value that an honest program has to come to.
        truncates: A stream that has to be cut short.
        interrupt: When the caller gives up: "call" once a tool call is under way, "early" at some
            moment of the run, the next one later than the last.
        session: Whether it runs in one of a few sessions.
    """

    name: str
    code: str
    ends: Ends
    timeout: float = 10.0
    result: Any = None
    truncates: str = ""
    interrupt: str = ""
    session: bool = False

    def complaint(self, result: RunResult) -> str:
        """Say what is wrong with how it ended; empty when nothing is."""
        end = result.reason or result.status
        if end not in self.ends:
            return f"ended as {end}, not {'/'.join(sorted(self.ends))}: {result.summary[:300]}"
        if self.result is not None and result.result != self.result:
            return f"came to {result.result!r:.100}, not {self.result!r:.100}"
        if self.truncates and not result.truncated.get(self.truncates):
            return f"kept all of {self.truncates}"
        return ""


_CHANNEL = """
import os, socket, stat
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            channel = socket.socket(fileno=int(name))
            break
    except OSError:
        pass
"""
"""Finds the worker's own end of the channel, as code that forges frames would."""

HONEST = (
    Case(
        name="a sum",
        code="import math\nprint('x' * 10_000)\nmath.factorial(5)",
        ends=CALM,
        result=120,
    ),
    Case(name="a call", code="(await mcp_workshop.add(a=40, b=2))['sum']", ends=CALM, result=42),
    Case(
        name="twenty calls",
        code=(
            "import asyncio\n"
            "found = await asyncio.gather(*(mcp_workshop.echo(n=n) for n in range(20)))\n"
            "sum(one['n'] for one in found)"
        ),
        ends=CALM,
        result=190,
    ),
    Case(
        name="files",
        code=(
            "from pathlib import Path\n"
            "before = len(list(Path('/workspace').iterdir()))\n"
            "Path('/workspace/mark').write_text('x'); Path('/tmp/mark').write_text('x')\n"
            "[before, 1]"
        ),
        ends=CALM,
        # There is an empty directory for what is to come back.
        result=[1, 1],
    ),
)

ATTACKS = (
    Case(
        name="fork bomb",
        code="import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        ends=KILLED,
        timeout=1,
    ),
    Case(
        name="memory bomb",
        code="kept = []\nwhile True: kept.append(b'x' * 9_999_999)",
        ends=frozenset(("oom", "crash")),
    ),
    Case(
        name="100 MB of output",
        code="import sys\nfor _ in range(100): sys.stdout.write('x' * 1_000_000)",
        ends=CALM,
        timeout=30,
        truncates="stdout",
    ),
    Case(
        name="lines without end",
        code="while True: print()",
        ends=TIMEOUT,
        timeout=1,
        truncates="stdout",
    ),
    Case(
        name="two ends",
        code=_CHANNEL
        + 'channel.sendall(b\'{"type":"done","outcome":"ok","exit_code":0}\\n\' * 2)\n'
        + "import time; time.sleep(60)",
        ends=frozenset(("crash",)),
    ),
    Case(
        name="one id twice",
        code=_CHANNEL
        + 'line = b\'{"type":"call","id":7,"method":"call_tool","params":{"server":'
        + '"workshop","tool":"meet","arguments":{"count":1000000}}}\\n\'\n'
        + "channel.sendall(line * 2)\nimport time; time.sleep(60)\nmcp_workshop",
        ends=frozenset(("crash",)),
    ),
    Case(
        name="a frame of many values",
        code=_CHANNEL
        + 'head = b\'{"type":"call","id":7,"method":"m","params":{"a":[\'\n'
        + "channel.sendall(head + b'{},' * 5_000_000 + b'1]}}\\n')\n"
        + "import time; time.sleep(60)",
        ends=frozenset(("crash",)),
    ),
    Case(
        name="half a frame",
        code=_CHANNEL + 'channel.sendall(b\'{"type":"call",\' * 1000)\nimport os; os._exit(0)',
        ends=frozenset(("exit", "success", "crash")),
    ),
    Case(
        name="call flood",
        code=(
            "import asyncio, os\n"
            "flood = [asyncio.ensure_future(mcp_workshop.meet(count=10**6)) for _ in range(3000)]\n"
            "await asyncio.sleep(0.2)\nos._exit(0)"
        ),
        ends=frozenset(("exit", "success", "crash", "timeout")),
        timeout=2,
    ),
    Case(
        name="calls given up",
        code=(
            "import asyncio\n"
            "for n in range(50):\n"
            "    late = asyncio.ensure_future(mcp_workshop.meet(count=10**6))\n"
            "    await asyncio.sleep(0)\n    late.cancel()\n"
            "(await mcp_workshop.add(a=1, b=1))['sum']"
        ),
        ends=CALM,
        result=2,
    ),
    Case(
        name="large answers",
        code="len(await mcp_workshop.big(size=9_000_000))",
        ends=CALM,
        result=9_000_000,
        timeout=20,
    ),
    Case(
        name="a call cancelled",
        code="await mcp_workshop.slow(started={started!r}, cancelled={cancelled!r})",
        ends=frozenset(),
        interrupt="call",
        timeout=30,
    ),
    Case(
        name="a run cancelled",
        code="while True: pass",
        ends=frozenset(),
        interrupt="early",
        timeout=30,
    ),
    Case(name="abrupt exit", code="import os\nos._exit(3)", ends=frozenset(("exit",))),
    Case(
        name="kill the parent",
        code="import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(60)",
        ends=KILLED,
        timeout=2,
    ),
    Case(
        name="kill everybody",
        code="import os, time\ntry: os.kill(1, 9)\nexcept OSError: pass\nos.kill(-1, 9)\n"
        "time.sleep(60)",
        ends=KILLED,
        timeout=2,
    ),
    Case(name="busy for ever", code="while True: pass", ends=TIMEOUT, timeout=1),
    Case(
        name="deaf to signals",
        code="import signal, time\nfor n in range(1, 65):\n    try: "
        "signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "time.sleep(60)",
        ends=TIMEOUT,
        timeout=1,
    ),
    Case(
        name="stopped",
        code="import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        ends=TIMEOUT,
        timeout=1,
    ),
    Case(name="recursion", code="def dig(): return dig()\ndig()", ends=RAISED),
    Case(
        name="recursion in C",
        code="import sys\nsys.setrecursionlimit(10**9)\ndef dig(n): return dig(n) and dig(n)\n"
        "class A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x",
        ends=KILLED,
    ),
    Case(
        name="zombies",
        code="import os\nfor _ in range(40):\n    try:\n        if not os.fork(): os._exit(0)\n"
        "    except OSError: pass\n'done'",
        ends=CALM,
        result="done",
    ),
    Case(
        name="a daemon",
        code="import os, time\nif not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        "    time.sleep(1000)\n'done'",
        ends=CALM,
        result="done",
    ),
    Case(
        name="threads left running",
        code="import threading, time\nfor _ in range(30):\n    "
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n'done'",
        ends=CALM,
        result="done",
    ),
    Case(
        name="descriptors",
        code="import os\nkept = []\nwhile True: kept.append(os.dup(2))",
        ends=RAISED,
    ),
    Case(
        name="a deleted file that grows",
        code="import os\nfile = open('/tmp/x', 'wb')\nos.unlink('/tmp/x')\n"
        "while True: file.write(b'x' * 4_000_000)",
        ends=frozenset(("exception", "oom")),
    ),
    Case(
        name="all descriptors closed",
        code="import os\nos.closerange(0, 4096)\n1",
        ends=frozenset(("success", "exit", "crash", "exception")),
        timeout=3,
    ),
    *(
        Case(
            name=f"signal {name}",
            code=f"import os, signal\nos.kill(os.getpid(), signal.{name})",
            ends=frozenset(("crash",)),
        )
        for name in ("SIGSEGV", "SIGABRT", "SIGUSR1", "SIGTERM", "SIGKILL")
    ),
    Case(name="a result too large", code="'x' * 5_000_000", ends=CALM, truncates="result"),
    Case(
        name="a result too deep",
        code="deep = []\nfor _ in range(900): deep = [deep]\ndeep",
        ends=CALM,
    ),
    Case(name="a long complaint", code="raise ValueError('x' * 5_000_000)", ends=RAISED),
    Case(name="the server crashes", code="await mcp_doomed.crash()", ends=RAISED),
    Case(name="no program", code="def (", ends=RAISED),
)


DAY = (
    *HONEST,
    Case(
        name="a session",
        code="turns = globals().get('turns', 0) + 1\nheld = bytes(20_000)\nturns > 0",
        ends=CALM,
        result=True,
        session=True,
    ),
    Case(
        name="a file that stays",
        code="import os\nfrom pathlib import Path\n"
        "Path('out/data.bin').write_bytes(os.urandom(20_000))",
        ends=CALM,
        result=20_000,
    ),
    Case(
        name="output that is kept",
        code="import os\nfor _ in range(600): print(os.urandom(50).hex())",
        ends=CALM,
        truncates="stdout",
    ),
    Case(
        name="a memory",
        code="from mcp import runtime\nimport os\n"
        "await runtime.save_memory(f'note {os.urandom(1)[0] % 10}', os.urandom(500).hex())\n1",
        ends=CALM,
        result=1,
    ),
    Case(name="a mistake", code="{}['missing']", ends=RAISED),
)
"""What an agent runs on an ordinary day."""


def day_case(number: int) -> Case:
    """Return the program of the `number`th run of an ordinary day."""
    return DAY[number % len(DAY)]


def case(number: int) -> Case:
    """Return the program of the `number`th run: an attack, and every third time an honest one."""
    honest, attack = divmod(number, 3)
    if attack == 2:
        return HONEST[honest % len(HONEST)]
    return ATTACKS[(2 * honest + attack) % len(ATTACKS)]
