"""The parts of the ledger that need real containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
import pytest

from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.container.command_runner import CommandResult, SystemRunner
from tests.contract.rig import EngineShelf
from tests.e2e.rig import User, document_of
from tests.waiting import until

PATIENCE_SECONDS = 120.0

HOLD_ON = """
import os, signal, subprocess
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("before")
while True:
    pass
"""

WRITE = r"""
import os, sys
from pathlib import Path
written = []
for place in ("/workspace", "/tmp"):
    for name in ("sitecustomize.py", "leftover.py"):
        Path(place, name).write_text("print('leftover')")
        written.append(str(Path(place, name)))
sys.stderr.write("Extracting [==>]\nTrying to pull x...\nCopying blob 1\n\nend\n")
print("\n()\né漢\U0001f600")
[os.getuid(), written]
"""

LOOK = """
import os
[os.listdir(place) for place in ("/workspace", "/tmp")]
"""


async def test_a_program_out_of_time_leaves_no_container_while_the_bridge_lives(
    user: User,
) -> None:
    """It goes with the run, not when the bridge ends or the program likes to."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client(MCP_BRIDGE_WARM="0") as client:
            result = await client.call_tool("run_python", {"code": HOLD_ON, "timeout": 1})
            document = document_of(result)
            assert (document["status"], document["stdout"]) == ("timeout", ["before"])
            await until(lambda: not user.containers())
            again = await client.call_tool("run_python", {"code": "1 + 1"})
            assert document_of(again)["result"] == 2


async def test_a_program_writes_where_it_is_told_and_nothing_of_it_lasts(user: User) -> None:
    """As the unprivileged user; and what it prints arrives as written, stderr too."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") as client:
            first = document_of(await client.call_tool("run_python", {"code": WRITE}))
            second = document_of(await client.call_tool("run_python", {"code": LOOK}))
    assert first["status"] == "success", first
    assert first["result"][0] == 65534
    assert len(first["result"][1]) == 4
    assert first["stdout"] == ["", "()", "é漢\U0001f600"]
    assert first["stderr"] == [
        "Extracting [==>]",
        "Trying to pull x...",
        "Copying blob 1",
        "",
        "end",
    ]
    assert second["result"] == [["out"], []]


class CountingRunner(SystemRunner):
    """Runs command lines, and remembers them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env=env)
        self.told: list[Sequence[str]] = []

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        on_line: Callable[[str], None] | None = None,
    ) -> CommandResult:
        self.told.append(tuple(argv))
        return await super().__call__(argv, timeout=timeout, on_line=on_line)


@pytest.mark.podman
async def test_a_run_on_podman_starts_no_podman_command(
    engines: EngineShelf, tmp_path: Path
) -> None:
    """The first may try things out; then all goes over one socket, and no machine is looked for."""
    engine = engines.get("podman")
    # Without the tests' own service, so that the bridge starts one as it does for a user.
    environ = {name: text for name, text in engine.environ.items() if name != "CONTAINER_HOST"}
    runner = CountingRunner(environ)
    backend = ContainerBackend(
        "podman",
        image=engine.image,
        runtime_dir=tmp_path / "run",
        environ=environ,
        run=runner,
    )
    spec = LaunchSpec(run_id="count", argv=("python3", "-c", "pass"), env={}, limits=Limits())
    told: list[int] = []
    with anyio.fail_after(PATIENCE_SECONDS):
        async with backend:
            for _ in range(3):
                async with backend.launch(spec) as sandbox:
                    assert (await sandbox.wait()).exit_code == 0
                told.append(len(runner.told))
    assert len(set(told)) == 1, runner.told
    assert not [argv for argv in runner.told if "machine" in argv]
