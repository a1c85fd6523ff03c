"""With each layer deliberately broken in turn, nothing ever runs unsandboxed.

Every program here tries to write a canary to a directory of the host that every user may write to.
The canary stays absent. The outcome is a typed error, or a result from another backend or from
the remaining layers.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.cli.doctor import doctor
from bridge.errors import BridgeError
from bridge.model import RunRequest, RunResult
from bridge.runs import open_engine
from bridge.sandbox.backend import Backend
from bridge.sandbox.process import landlock
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.landlock_backend import LandlockBackend
from bridge.sandbox.selection import probe_all, select_backend
from bridge.settings import Settings, load
from tests.contract.rig import ordinary_user, usable_python
from tests.engine_rig import ListFinder, always_choose
from tests.raised import raises_code
from tests.sandbox.process.rig import PATIENCE, spec

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's"),
    pytest.mark.guarantee("no-fail-open"),
]

REAL = shutil.which("bwrap") or "/usr/bin/bwrap"


@dataclass(frozen=True, kw_only=True)
class Ground:
    path: Path

    @property
    def canary(self) -> Path:
        return self.path / "open" / "canary"

    @property
    def code(self) -> str:
        return f"open({str(self.canary)!r}, 'w').write('out')"

    @property
    def engines(self) -> dict[str, str]:
        names = {"DOCKER_HOST": "docker", "CONTAINER_HOST": "podman"}
        return {key: f"unix://{self.path}/{name}.sock" for key, name in names.items()}

    def stand_in(self, text: str, name: str = "bwrap") -> str:
        made = self.path / name
        made.write_text(text)
        made.chmod(0o755)
        return str(made)

    def settings(self, **flags: str) -> Settings:
        environ = {"HOME": str(self.path), "PATH": str(self.path), **self.engines}
        return load({"state_dir": str(self.path / "state"), "warm": "0", **flags}, environ)


@pytest.fixture
def ground() -> Iterator[Ground]:
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made.chmod(0o755)
    # Where a program of any user could write.
    (made / "open").mkdir()
    (made / "open").chmod(0o777)
    try:
        yield Ground(path=made)
        assert not (made / "open" / "canary").exists(), "a program ran unsandboxed"
    finally:
        shutil.rmtree(made)


async def outcome(
    ground: Ground, settings: Settings, choose: Callable[[Any], Awaitable[Backend]] = select_backend
) -> BridgeError | RunResult:
    with anyio.fail_after(PATIENCE):
        async with open_engine(settings, finder=ListFinder(), choose_backend=choose) as engine:
            try:
                return await engine.run(RunRequest(code=ground.code))
            except BridgeError as error:
                return error


async def on(ground: Ground, backend: Backend) -> BridgeError | RunResult:
    return await outcome(ground, ground.settings(), always_choose(backend))


def refusal_text(found: BridgeError | RunResult, code: str) -> str:
    assert isinstance(found, BridgeError), found
    assert found.code == code, found
    assert found.remedy
    return str(found)


def kept_in(found: BridgeError | RunResult) -> RunResult:
    assert isinstance(found, RunResult), found
    assert (found.status, found.reason) == ("error", "exception"), found
    assert "FileNotFoundError" in found.error or "PermissionError" in found.error
    return found


RUNS_IT_PLAINLY = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""

CHEATS = """#!/usr/bin/python3 -IS
import json, marshal, os, sys
words = sys.argv[1:]
options = b""
while data := os.read(int(words[words.index("--args") + 1]), 65536):
    options += data
options = options.split(b"\\0")
info = int(options[options.index(b"--json-status-fd") + 1])
command = words[words.index("--") + 1:]
plan = json.loads(marshal.loads(os.read(int(command[-1]), 1 << 20))[1])
pid = os.fork()
if not pid:
    os.write(plan["status"], b"ok")
    os.close(plan["status"])
    os.execve(command[0], [command[0], "-I", "-S", "-c", plan["text"]], {"PATH": "/usr/bin"})
os.close(plan["status"])
os.write(info, json.dumps({"child-pid": pid}).encode())
status = os.waitpid(pid, 0)[1]
os.write(info, json.dumps({"exit-code": os.waitstatus_to_exitcode(status) % 256}).encode())
"""

REWRITES = """#!/usr/bin/python3 -IS
import os, sys
words = sys.argv[1:]
place = words.index("--args") + 1
options = b""
while data := os.read(int(words[place]), 65536):
    options += data
options = options.split(b"\\0")[:-1]
{change}
reader, writer = os.pipe()
os.set_inheritable(reader, True)
if not os.fork():
    os.write(writer, b"".join(word + b"\\0" for word in options))
    os._exit(0)
os.wait()
os.close(writer)
words[place] = str(reader)
os.execv({real!r}, [{real!r}, *words])
"""

SHARES_THE_NETWORK = "options[options.index(b'--die-with-parent'):0] = [b'--share-net']"
LEAVES_THE_ROOT_WRITABLE = (
    "where = len(options) - 1 - options[::-1].index(b'--remount-ro')\ndel options[where:where + 2]"
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "engine_not_found"),
        ("#!/bin/sh\nexit 1\n", "launch_failed"),
        ("#!/bin/sh\nexit 0\n", "launch_failed"),
        (RUNS_IT_PLAINLY, "launch_failed"),
        (CHEATS, "isolation_broken"),
    ],
    ids=["absent", "fails", "succeeds", "runs its command plainly", "cheats"],
)
async def test_a_broken_bubblewrap_runs_nothing(
    ground: Ground, text: str | None, code: str
) -> None:
    name = ground.stand_in(text) if text else "/no/bwrap"
    async with BubblewrapBackend(environ=os.environ, bwrap=name) as backend:
        refusal_text(await on(ground, backend), code)
    words = refusal_text(await outcome(ground, ground.settings()), "no_sandbox")
    for rung in ("podman:", "docker:", "bubblewrap:"):
        assert rung in words
    assert "seatbelt:" not in words, "it is another system's"
    assert "landlock:" not in words, "nothing falls back to the weaker tier"


async def test_the_cheat_is_one(ground: Ground) -> None:
    """The control: without the look from inside, it would have run the program out here."""
    cheat = ground.stand_in(CHEATS)
    async with (
        BubblewrapBackend(environ=os.environ, bwrap=cheat) as backend,
        backend.launch(spec(ground.code)) as sandbox,
    ):
        assert (await sandbox.wait()).exit_code == 0
    assert ground.canary.exists()
    ground.canary.unlink()


@pytest.mark.parametrize(
    ("change", "layer"),
    [(SHARES_THE_NETWORK, "no-network"), (LEAVES_THE_ROOT_WRITABLE, "read-only-root")],
)
async def test_one_layer_less_is_noticed(ground: Ground, change: str, layer: str) -> None:
    if layer == "no-network" and len(socket.if_nameindex()) < 2:
        pytest.skip("this host has no network to share")
    text = REWRITES.format(change=change, real=REAL)
    async with BubblewrapBackend(environ=os.environ, bwrap=ground.stand_in(text)) as backend:
        probe = await backend.probe()
        assert (probe.ok, probe.error_code) == (False, "isolation_broken")
        assert f"it lacks {layer}." in probe.summary
        assert layer in refusal_text(await on(ground, backend), "isolation_broken")


async def test_without_libseccomp_nothing_runs(ground: Ground) -> None:
    none = "libseccomp-not-there.so"
    async with BubblewrapBackend(environ=os.environ, seccomp=none) as namespaces:
        assert "libseccomp" in refusal_text(await on(ground, namespaces), "engine_not_found")
    async with LandlockBackend(environ=os.environ) as tier:
        tier.seccomp = none
        assert "libseccomp" in refusal_text(await on(ground, tier), "engine_not_found")


async def test_filters_that_the_kernel_refuses_run_nothing(ground: Ground) -> None:
    for kind in (BubblewrapBackend, LandlockBackend):
        async with kind(environ=os.environ) as backend:
            backend._found = replace(await backend._look_around(), filters=(b"\0" * 8,))
            error = await on(ground, backend)
        assert isinstance(error, BridgeError), error
        assert (error.code, "system call filter" in error.message) == ("launch_failed", True)


async def test_filters_that_let_everything_through_are_noticed(ground: Ground) -> None:
    allow = b"\x06\0\0\0\0\0\xff\x7f"
    async with BubblewrapBackend(environ=os.environ) as backend:
        backend._found = replace(await backend._look_around(), filters=(allow,))
        assert "own-seccomp" in refusal_text(await on(ground, backend), "isolation_broken")


async def test_without_landlock_namespaces_hold_and_the_tier_runs_nothing(ground: Ground) -> None:
    async with BubblewrapBackend(environ=os.environ) as backend:
        found = await backend._look_around()
        backend._found = replace(found, around=replace(found.around, landlock_abi=0))
        result = kept_in(await on(ground, backend))
        assert result.isolation is not None
        assert any(text.startswith("landlock:") for text in result.isolation.weaker)
        assert "landlock" not in result.isolation.layers
    async with LandlockBackend(environ=os.environ) as tier:
        tier.version = lambda: 0
        refusal_text(await on(ground, tier), "engine_not_found")


async def test_the_tier_with_rules_that_allow_everything_is_noticed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LandlockBackend(environ=os.environ) as backend:
        monkeypatch.setattr(landlock, "ruleset", lambda *_: None)
        assert "landlock" in refusal_text(await on(ground, backend), "isolation_broken")


HTTP = b"HTTP/1.1 %b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
NONSENSE, REFUSES = b"\x00\xff nonsense\r\n\r\n", HTTP % b"500 No"
PROMISES = HTTP % b"200 OK\r\nApi-Version: 1.41"


@contextmanager
def serving(path: Path, answer: bytes) -> Iterator[None]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):
                self.request.recv(65536)
                self.wfile.write(answer)

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("answer", [NONSENSE, REFUSES, PROMISES])
async def test_an_engine_that_answers_nonsense_runs_nothing(ground: Ground, answer: bytes) -> None:
    ground.stand_in(f'#!/bin/sh\nexec {REAL} "$@"\n')
    with serving(ground.path / "docker.sock", answer):
        refusal_text(await outcome(ground, ground.settings(runtime="docker")), "no_sandbox")
        result = kept_in(await outcome(ground, ground.settings()))
    assert result.isolation is not None
    assert result.isolation.backend == "bubblewrap"


async def test_a_socket_that_no_one_listens_at_runs_nothing(ground: Ground) -> None:
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(ground.path / "docker.sock"))
    (ground.path / "podman.sock").write_text("")
    for runtime in ("docker", "podman"):
        words = refusal_text(await outcome(ground, ground.settings(runtime=runtime)), "no_sandbox")
        assert f"{runtime}:" in words


@pytest.mark.docker
@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"image": "localhost/mcp-code-bridge/not-there:0"}, "not-there"),
        ({"oci_runtime": "no-such-runtime"}, "no-such-runtime"),
    ],
)
async def test_an_engine_without_the_image_or_the_runtime_runs_nothing(
    ground: Ground, flags: dict[str, str], word: str
) -> None:
    real = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    settings = ground.settings(runtime="docker", **flags)
    settings = replace(settings, environ={**settings.environ, "DOCKER_HOST": real})
    assert word in refusal_text(await outcome(ground, settings), "no_sandbox")


async def test_a_machine_without_an_engine_runs_code_in_bubblewrap(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    ground.stand_in(f'#!/bin/sh\nexec {REAL} "$@"\n')
    assert await doctor(ground.settings()) == 0
    told = capsys.readouterr().out
    assert "Programs run in: bubblewrap\n" in told
    assert "off   seatbelt: Only macOS has Seatbelt." in told
    assert "landlock: " in told, "as a layer"
    assert "weaker tier" not in told
    probes = {probe.backend: probe for probe in await probe_all(ground.settings())}
    assert probes.keys() == {"podman", "docker", "bubblewrap", "seatbelt"}
    assert [name for name, probe in probes.items() if probe.ok] == ["bubblewrap"]
    with raises_code("no_sandbox"):
        await select_backend(replace(ground.settings(), runtime_order=("docker", "seatbelt")))


@pytest.mark.rootless
def test_an_ordinary_user_who_may_not_use_the_engines_gets_bubblewrap(ground: Ground) -> None:
    with (
        serving(ground.path / "docker.sock", PROMISES),
        serving(ground.path / "podman.sock", PROMISES),
        ordinary_user() as (become, environ, directory),
    ):
        for name in ("docker.sock", "podman.sock"):
            (ground.path / name).chmod(0 if os.getuid() else 0o600)
        python = [*become, *usable_python(become, environ), "-m", "bridge"]
        environ |= ground.engines
        environ |= dict.fromkeys(("XDG_STATE_HOME", "XDG_CONFIG_HOME"), str(directory))

        def command(*words: str) -> subprocess.CompletedProcess[str]:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE}
            options |= {"env": environ, "cwd": "/", "capture_output": True, "text": True}
            return subprocess.run([*python, *words], check=False, **options)

        told = command("doctor", "--json")
        assert told.stdout, told.stderr
        document = json.loads(told.stdout)
        probes = {probe["backend"]: probe for probe in document["backends"]}
        assert (told.returncode, document["chosen"]) == (0, "bubblewrap"), told.stderr
        assert probes["docker"]["error_code"] == "engine_permission"
        ran = command("run", "-c", f"print('ran')\n{ground.code}")
        assert (ran.returncode, "ran" in ran.stdout) == (1, True), ran.stderr
