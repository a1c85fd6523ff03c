"""What every backend's probe has in common: the program it runs, and the report when it fails."""

from __future__ import annotations

from bridge.errors import BridgeError
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox

_PROGRAM = "import sys; sys.stdout.write('heard ' + sys.stdin.readline())"
_SENT, _EXPECTED = b"probe\n", b"heard probe\n"


def probe_spec(limits: Limits) -> LaunchSpec:
    """Return what to start: a program that says back what it is told."""
    return LaunchSpec(
        run_id="probe", argv=("python3", "-I", "-S", "-c", _PROGRAM), env={}, limits=limits
    )


async def complaint(sandbox: Sandbox) -> str:
    """Speak with the probe's program; return empty if it answers, else what is known instead."""
    await sandbox.send(_SENT)
    heard = b""
    while len(heard) < len(_EXPECTED):
        data = await sandbox.receive()
        if not data:
            break
        heard += data
    if heard == _EXPECTED:
        return ""
    report = await sandbox.wait()
    return sandbox.diagnostics() or report.detail or f"exit code {report.exit_code}"


def failed_probe(backend: str, error: BridgeError) -> Probe:
    """Return the report of a probe that `error` stopped."""
    return Probe(
        backend=backend,
        ok=False,
        summary=error.message,
        error_code=error.code,
        remedy=error.remedy,
    )
