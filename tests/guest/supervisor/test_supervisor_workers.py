"""The worker that waits for a program: what it has imported by then, and what that costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge.guest import imports
from bridge.guest.processes import cpu_clock

SOON = 120.0


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        os.sched_yield()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_the_end_of_the_waiting_worker_ends_the_sandbox(make_guest: Any) -> None:
    guest = make_guest()
    guest.hello()
    wait_until(lambda: children_of(guest.pid))
    os.kill(children_of(guest.pid)[0], signal.SIGKILL)
    assert guest.wait() == 70
    assert "waited for the program has ended" in guest.diagnostics()


def test_getting_ready_is_not_counted_as_the_programs_time(make_guest: Any) -> None:
    guest = make_guest()
    guest.hello()
    wait_until(lambda: children_of(guest.pid))
    worker = children_of(guest.pid)[0]
    wait_until(lambda: cpu_clock(worker) > 0.03)
    before = cpu_clock(worker)
    guest.start("import os\nsum(os.times()[:2])")
    finished = guest.finish()
    assert finished.exit.cpu_ms < (finished.value - before) * 1000 + 50


def test_steps_import_one_module_each_and_pass_over_what_is_absent() -> None:
    code = (
        "import sys\nsys.path.insert(0, %r)\nfrom bridge.guest import imports\n"
        "steps = imports.steps(['colorsys', 'no_such_module', 'sys', 'wave'])\n"
        "next(steps); assert 'colorsys' in sys.modules and 'wave' not in sys.modules\n"
        "next(steps); assert 'wave' in sys.modules\n"
        "assert list(steps) == []\n"
    )
    root = str(Path(imports.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code % root], check=True)
