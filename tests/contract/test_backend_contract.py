"""What every `Backend` promises, tried on the fake and on every real engine.

Mandated by design.md's laws 2, 3 and 5: a run leaves nothing, a program's end is a report and not
an error, and every buffer has a bound.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bridge.errors import ChannelClosedError, SandboxError
from bridge.model import MEBIBYTE, Limits
from bridge.sandbox.backend import DistantSandbox
from tests.contract.programs import BUSY, ECHO, FOREVER, READY_THEN, read_exactly, ready, spec
from tests.contract.rig import EngineSet, Rig, rig_on
from tests.raised import raises_code
from tests.sandbox.process.rig import read_all


@pytest.mark.every_case
async def test_what_is_sent_comes_back(rig: Rig) -> None:
    async with rig.backend.launch(spec(ECHO)) as sandbox:
        for line in (b"one\n", b"two, half a line", b" and its end\n"):
            await sandbox.send(line)
            assert await read_exactly(sandbox, len(line)) == line


async def test_twenty_megabytes_go_both_ways(rig: Rig) -> None:
    data = bytes(range(256)) * (20 * MEBIBYTE // 256)
    async with rig.backend.launch(spec(ECHO)) as sandbox:
        async with anyio.create_task_group() as group:
            group.start_soon(sandbox.send, data)
            received = await read_exactly(sandbox, len(data))
        assert received == data


async def test_a_flood_that_no_one_reads_stays_in_the_sandbox(rig: Rig) -> None:
    program = READY_THEN + (
        # Told to start, so that none of the flood comes along with the first line.
        "sys.stdin.readline()\n"
        "for n in range(1, 9): os.write(2, b'e'); sys.stdout.write('x' * (8 << 20))"
    )
    async with ready(rig, program) as sandbox:
        await sandbox.send(b"go\n")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # The program can only have written what fits the buffers on the way.
        with anyio.move_on_after(1):
            await sandbox.wait()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert after - before < 16 * 1024, "kilobytes of output piled up in the host"
        assert len(await read_all(sandbox)) == 64 * MEBIBYTE


async def test_a_flood_on_stderr_neither_blocks_nor_grows(rig: Rig) -> None:
    program = (
        "import os\n"
        "for _ in range(640): os.write(2, b'e' * (1 << 16))\n"
        "os.write(2, b'THE END, no text: \\xff\\xfe!')\n"
        "print('done')"
    )
    async with rig.backend.launch(spec(program)) as sandbox:
        assert await read_all(sandbox) == b"done\n"
        said = sandbox.diagnostics()
        assert "THE END, no text: " in said
        assert said.endswith("!")
        assert len(said) <= 64 * 1024


DIES = """
import os, signal
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSEGV)
_, status = os.waitpid(child, 0)
number = os.WTERMSIG(status)
signal.signal(number, signal.SIG_DFL)
os._exit(128 + number) if os.getpid() == 1 else os.kill(os.getpid(), number)
"""
"""The first process of a pid namespace takes no deadly signal from itself, so a child dies and the
parent, like the supervisor, ends the way engines report it."""


@pytest.mark.parametrize(
    ("program", "code", "signal"),
    [*((f"import os; os._exit({code})", code, None) for code in (0, 3, 97)), (DIES, None, 11)],
    ids=["0", "3", "97", "signal"],
)
async def test_an_exit_code_or_a_signal_is_reported(
    rig: Rig, program: str, code: int | None, signal: int | None
) -> None:
    async with rig.backend.launch(spec(program)) as sandbox:
        assert await read_all(sandbox) == b""
        report = await sandbox.wait()
        assert (report.exit_code, report.signal) == (code, signal)


@pytest.mark.parametrize("program", [FOREVER, BUSY], ids=["asleep", "busy"])
async def test_kill_ends_the_process_and_its_stream(rig: Rig, program: str) -> None:
    async with ready(rig, program) as sandbox:
        await sandbox.kill()
        assert await read_all(sandbox) == b""
        assert (await sandbox.wait()).signal == 9
        await sandbox.kill()


async def test_kill_ends_children_too(rig: Rig) -> None:
    program = "import os\nos.fork()\nos.fork()\n" + FOREVER
    async with rig.backend.launch(spec(program)) as sandbox:
        assert (await read_exactly(sandbox, 24)).count(b"ready\n") == 4
        await sandbox.kill()
        await read_all(sandbox)
        await sandbox.wait()


async def test_children_end_with_the_first_process(rig: Rig) -> None:
    program = "import os, time\nif not os.fork():\n    time.sleep(3600)\nprint('bye')\n"
    async with rig.backend.launch(spec(program)) as sandbox:
        assert await read_all(sandbox) == b"bye\n"
        assert (await sandbox.wait()).exit_code == 0


async def test_sending_to_a_process_that_has_ended_says_so(rig: Rig) -> None:
    async with rig.backend.launch(spec("pass")) as sandbox:
        await read_all(sandbox)
        await sandbox.wait()
        with pytest.raises(ChannelClosedError):
            await sandbox.send(b"x" * (64 * MEBIBYTE))


async def test_a_send_that_waits_ends_when_the_process_does(rig: Rig) -> None:
    async with ready(rig) as sandbox, anyio.create_task_group() as group:

        async def send() -> None:
            with pytest.raises(ChannelClosedError):
                await sandbox.send(b"x" * (64 * MEBIBYTE))

        group.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        await sandbox.kill()
        await read_all(sandbox)


@pytest.mark.parametrize("how", ["kill_from_outside", "remove_from_outside"])
async def test_death_from_outside_is_noticed(rig: Rig, how: str) -> None:
    async with ready(rig) as sandbox:
        await anyio.to_thread.run_sync(getattr(rig.engine, how), sandbox)
        if how == "remove_from_outside" and isinstance(sandbox, DistantSandbox):
            with raises_code("sandbox_lost", match="deleted"):
                await read_all(sandbox)
            return
        assert await read_all(sandbox) == b""
        report = await sandbox.wait()
        assert report.signal == 9 or "removed" in report.detail


async def test_memory_beyond_the_limit_is_reported_as_such(rig: Rig) -> None:
    if not rig.engine.applies_limits:
        # Best effort there, and `isolation.weaker` says so; the guest limits itself.
        async with ready(rig) as sandbox:
            assert any(
                "memory" in text or "everything" in text for text in sandbox.isolation.weaker
            )
        return
    limits = replace(Limits(), memory_bytes=64 * MEBIBYTE)
    hog = "blocks = []\nwhile True: blocks.append(bytearray(b'x') * (1 << 20))\n"
    child = "import os, time\nif os.fork():\n    os.wait(); time.sleep(0.2); os._exit(9)\n"
    for program, end in ((child + hog, "exit_code"), (hog, "signal")):
        async with rig.backend.launch(spec(program, limits=limits)) as sandbox:
            await read_all(sandbox)
            report = await sandbox.wait()
            assert getattr(report, end) == 9
            assert report.oom_killed in rig.engine.oom_reports


async def test_the_environment_is_what_was_asked_for(rig: Rig) -> None:
    added = {"PATH", "HOME", "HOSTNAME", "TERM", "container", "LC_CTYPE", "GREETING"}
    program = "import os\nfor name in os.environ: print(name)\nprint(os.environ['GREETING'])"
    async with rig.backend.launch(spec(program)) as sandbox:
        *names, greeting = (await read_all(sandbox)).decode().split()
        assert greeting == "hello"
        assert set(names) - added <= rig.engine.image_environment()


async def test_two_sandboxes_at_once_do_not_mix(rig: Rig) -> None:
    async with rig.backend.launch(spec(ECHO)) as first, rig.backend.launch(spec(ECHO)) as second:
        assert first.id != second.id
        await first.send(b"first")
        await second.send(b"second")
        assert await read_exactly(second, 6) == b"second"
        assert await read_exactly(first, 5) == b"first"


async def test_a_failed_launch_is_an_error_and_the_next_one_works(rig: Rig) -> None:
    missing = replace(spec(ECHO), argv=("no-such-command",))
    with pytest.raises(SandboxError, match="no-such-command"):
        async with rig.backend.launch(missing):
            pass
    assert rig.engine.ours() == []
    async with ready(rig):
        pass


async def test_an_error_of_the_caller_passes_through(rig: Rig) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ready(rig):
            raise ZeroDivisionError
    assert rig.engine.ours() == []


async def test_the_probe_succeeds_and_says_what_is_in_force(rig: Rig) -> None:
    probe = await rig.backend.probe()
    assert probe.ok, (probe.summary, probe.remedy)
    assert probe.isolation is not None
    assert probe.isolation.backend == rig.backend.name


async def test_nothing_of_ours_is_reaped_while_we_live(rig: Rig) -> None:
    async with ready(rig) as sandbox:
        await rig.backend.reap()
        await sandbox.kill()
        assert (await sandbox.wait()).signal == 9


async def test_closing_twice_is_harmless(engine: str, engines: EngineSet, tmp_path: Path) -> None:
    async with rig_on(engines.get(engine), tmp_path / "run") as rig:
        await rig.backend.aclose()
        await rig.backend.aclose()
