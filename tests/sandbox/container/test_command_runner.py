"""The real runner, on real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from bridge.sandbox.container import command_runner as machine_command
from bridge.sandbox.container.command_runner import SystemRunner

DEADLINE = 120.0


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


@asynccontextmanager
async def held_pipe() -> AsyncIterator[list[str]]:
    """Give words that have a command hold a pipe; at the end nothing holds it."""
    read, write = os.pipe()
    yield ["/bin/sh", "-c", f'exec "$@" 3>/proc/{os.getpid()}/fd/{write}', "sh"]
    os.close(write)
    await anyio.wait_readable(read)
    assert os.read(read, 1) == b""
    os.close(read)


async def test_a_commands_streams_and_exit_code_are_returned() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    result = await SystemRunner()(python(code), timeout=DEADLINE)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert (result.ok, result.timed_out, result.missing) == (False, False, False)
    result = await SystemRunner()(["no-such-command-anywhere"], timeout=DEADLINE)
    assert (result.exit_code, result.missing) == (None, True)


async def test_a_command_out_of_time_is_ended_with_its_children() -> None:
    # The grandchild holds the pipe's other end for as long as it lives.
    code = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '600'], close_fds=False)\n"
        "print('started', flush=True); time.sleep(600)\n"
    )
    async with held_pipe() as words:
        result = await SystemRunner()([*words, *python(code)], timeout=2.0)
    assert (result.exit_code, result.timed_out) == (None, True)


async def test_a_helper_left_running_does_not_hold_the_result_up() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
    )
    result = await SystemRunner()(python(code), timeout=DEADLINE)
    assert result.ok
    os.kill(int(result.stdout), 0)
    os.kill(int(result.stdout), 9)


async def test_a_cancelled_command_is_ended() -> None:
    async with held_pipe() as words, anyio.create_task_group() as tasks:

        def cancel(line: str) -> None:
            assert line == "up"
            tasks.cancel_scope.cancel()

        async def run() -> None:
            code = "import time; print('up', flush=True); time.sleep(600)"
            await SystemRunner()([*words, *python(code)], timeout=600, on_line=cancel)

        tasks.start_soon(run)


async def test_progress_comes_line_by_line_and_bounded() -> None:
    lines: list[str] = []
    code = "print('one'); print('10%\\r20%\\rdone'); print('x' * 10_000); print('last', end='')"
    await SystemRunner()(python(code), timeout=DEADLINE, on_line=lines.append)
    assert lines[:4] == ["one", "10%", "20%", "done"]
    assert max(len(line) for line in lines) <= machine_command.LINE_BYTES
    assert lines[-1] == "last"


async def test_output_that_is_not_utf8_is_replaced() -> None:
    code = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe'); sys.stderr.buffer.write(b'\\xc3')"
    result = await SystemRunner()(python(code), timeout=DEADLINE)
    assert (result.stdout, result.stderr) == ("��", "�")
