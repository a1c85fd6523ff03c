"""The programs of a soak: attacks, and honest programs with known results between them.

Each lists its possible endings. Any other ending is a finding.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from bridge.model import RunResult

Ends = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program.

    Attributes:
        ends: Possible statuses or reasons; several where the kernel decides what dies first.
        truncates: A stream that must be cut.
        interrupt: When the caller cancels: "call" during a tool call, "early" at any moment.
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
        end = result.reason or result.status
        if end not in self.ends:
            return f"ended as {end}, not {'/'.join(sorted(self.ends))}: {result.summary[:300]}"
        if self.result is not None and result.result != self.result:
            return f"came to {result.result!r:.100}, not {self.result!r:.100}"
        if self.truncates and not result.truncated.get(self.truncates):
            return f"kept all of {self.truncates}"
        return ""


CHANNEL = """
import os, socket, stat
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            channel = socket.socket(fileno=int(name))
            break
    except OSError:
        pass
"""


def cases(text: str) -> tuple[Case, ...]:
    """Return the programs of a text, each below a line `## name: ends; option=value, ...`."""
    found = []
    for part in text.split("\n## ")[1:]:
        head, _, code = part.partition("\n")
        about, _, options = head.partition("; ")
        name, _, ends = about.partition(": ")
        options = re.sub(r"(\w+)=", r'"\1":', options)
        given = ast.literal_eval(f"{{{options}}}")
        code = code.replace("CHANNEL", CHANNEL)
        found.append(Case(name=name, code=code, ends=frozenset(ends.split()), **given))
    return tuple(found)


HONEST = cases(r"""
## a sum: success; result=120
import math
print('x' * 10_000)
math.factorial(5)
## a call: success; result=42
(await mcp_workshop.add(a=40, b=2))['sum']
## twenty calls: success; result=190
import asyncio
found = await asyncio.gather(*(mcp_workshop.echo(n=n) for n in range(20)))
sum(one['n'] for one in found)
## files: success; result=[1, 1]
from pathlib import Path
before = len(list(Path('/workspace').iterdir()))
Path('/workspace/mark').write_text('x'); Path('/tmp/mark').write_text('x')
[before, 1]
""")

ATTACKS = cases(r"""
## fork bomb: crash exception exit oom timeout; timeout=1
import os
while True:
    try: os.fork()
    except OSError: pass
## memory bomb: crash oom
kept = []
while True: kept.append(b'x' * 9_999_999)
## 100 MB of output: success; timeout=30, truncates='stdout'
import sys
for _ in range(100): sys.stdout.write('x' * 1_000_000)
## lines without end: timeout; timeout=1, truncates='stdout'
while True: print()
## two ends: crash
CHANNEL
channel.sendall(b'{"type":"done","outcome":"ok","exit_code":0}\n' * 2)
import time; time.sleep(60)
## one id twice: crash
CHANNEL
line = b'{"type":"call","id":7,"method":"call_tool","params":{"server":"workshop",'
line += b'"tool":"meet","arguments":{"count":1000000}}}\n'
channel.sendall(line * 2)
import time; time.sleep(60)
mcp_workshop
## a frame of many values: crash
CHANNEL
head = b'{"type":"call","id":7,"method":"m","params":{"a":['
channel.sendall(head + b'{},' * 5_000_000 + b'1]}}\n')
import time; time.sleep(60)
## half a frame: crash exit success
CHANNEL
channel.sendall(b'{"type":"call",' * 1000)
import os; os._exit(0)
## call flood: crash exit success timeout; timeout=2
import asyncio, os
flood = [asyncio.ensure_future(mcp_workshop.meet(count=10**6)) for _ in range(3000)]
await asyncio.sleep(0.2)
os._exit(0)
## calls given up: success; result=2
import asyncio
for n in range(50):
    late = asyncio.ensure_future(mcp_workshop.meet(count=10**6))
    await asyncio.sleep(0)
    late.cancel()
(await mcp_workshop.add(a=1, b=1))['sum']
## large answers: success; timeout=20, result=9000000
len(await mcp_workshop.big(size=9_000_000))
## a call cancelled: cancelled; timeout=30, interrupt='call'
await mcp_workshop.slow(started={started!r}, cancelled={cancelled!r})
## a run cancelled: cancelled; timeout=30, interrupt='early'
while True: pass
## abrupt exit: exit
import os
os._exit(3)
## kill the parent: crash exception exit oom timeout; timeout=2
import os, time
os.kill(os.getppid(), 9)
time.sleep(60)
## kill everybody: crash exception exit oom timeout; timeout=2
import os, time
try: os.kill(1, 9)
except OSError: pass
os.kill(-1, 9)
time.sleep(60)
## busy for ever: timeout; timeout=1
while True: pass
## deaf to signals: timeout; timeout=1
import signal, time
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
time.sleep(60)
## stopped: timeout; timeout=1
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)
## recursion: exception
def dig(): return dig()
dig()
## recursion in C: crash exception exit oom timeout
import sys
sys.setrecursionlimit(10**9)
def dig(n): return dig(n) and dig(n)
class A:
    def __getattr__(self, name): return getattr(self, name)
A().x
## zombies: success; result='done'
import os
for _ in range(40):
    try:
        if not os.fork(): os._exit(0)
    except OSError: pass
'done'
## a daemon: success; result='done'
import os, time
if not os.fork():
    os.setsid()
    if os.fork(): os._exit(0)
    time.sleep(1000)
'done'
## threads left running: success; result='done'
import threading, time
for _ in range(30):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
'done'
## descriptors: exception
import os
kept = []
while True: kept.append(os.dup(2))
## a deleted file that grows: exception oom
import os
file = open('/tmp/x', 'wb')
os.unlink('/tmp/x')
while True: file.write(b'x' * 4_000_000)
## all descriptors closed: crash exception exit success; timeout=3
import os
os.closerange(0, 4096)
1
## a result too large: success; truncates='result'
'x' * 5_000_000
## a result too deep: success
deep = []
for _ in range(900): deep = [deep]
deep
## a long complaint: exception
raise ValueError('x' * 5_000_000)
## the server crashes: exception
await mcp_doomed.crash()
## no program: exception
def (
## signal SIGSEGV: crash
import os, signal
os.kill(os.getpid(), signal.SIGSEGV)
## signal SIGKILL: crash
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
""")

DAY = HONEST + cases(r"""
## a session: success; result=True, session=True
turns = globals().get('turns', 0) + 1
held = bytes(20_000)
turns > 0
## a file that stays: success; result=20000
import os
from pathlib import Path
Path('out/data.bin').write_bytes(os.urandom(20_000))
## output that is kept: success; truncates='stdout'
import os
for _ in range(600): print(os.urandom(50).hex())
## a memory: success; result=1
from mcp import runtime
import os
await runtime.save_memory(f'note {os.urandom(1)[0] % 10}', os.urandom(500).hex())
1
## a mistake: exception
{}['missing']
""")


def day_case(number: int) -> Case:
    return DAY[number % len(DAY)]


def case(number: int) -> Case:
    """Return an attack, or an honest program for every third run."""
    honest, attack = divmod(number, 3)
    if attack == 2:
        return HONEST[honest % len(HONEST)]
    return ATTACKS[(2 * honest + attack) % len(ATTACKS)]
