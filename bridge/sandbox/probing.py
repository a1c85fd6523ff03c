"""What every backend's probe has in common: the program it runs, and the report when it fails.

The program looks around itself as the guest does, so that a backend is believed only when what it
put in force is not contradicted from inside.
"""

from __future__ import annotations

import json

from bridge.errors import BridgeError
from bridge.model import Isolation, Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.bundle import INTERPRETER, guest_modules
from bridge.sandbox.layers import insist, verified

_SENT = "probe"

_ANSWER = """
import json, sys

def look(text, function):
    names = {"__name__": "probe"}
    exec(compile(text, "<probe>", "exec", dont_inherit=True), names)
    return names[function]()

heard = sys.stdin.readline().strip()
facts = {**look(FACTS, "isolation_facts"), "denials": look(DENIALS, "denials")}
sys.stdout.write(json.dumps({"heard": heard, "facts": facts}) + "\\n")
"""

MAX_ANSWER_BYTES = 1024 * 1024
"""Of what the probe's program says; a few kilobytes, unless it is something else."""


def probe_spec(limits: Limits) -> LaunchSpec:
    """Return what to start: a program that says back what it is told, and where it finds itself."""
    modules = guest_modules()
    facts, denials = modules["bridge.guest.facts"], modules["bridge.guest.denials"]
    program = f"FACTS = {facts!r}\nDENIALS = {denials!r}\n{_ANSWER}"
    return LaunchSpec(run_id="probe", argv=(*INTERPRETER, program), env={}, limits=limits)


async def complaint(sandbox: Sandbox) -> str:
    """Speak with the probe's program; see `examined`, of which this is the first half."""
    return (await examined(sandbox))[0]


async def examined(sandbox: Sandbox) -> tuple[str, Isolation]:
    """Speak with the probe's program.

    Returns:
        What is known instead of an answer, empty if there is one; and what isolation was seen.

    Raises:
        SandboxError: It answers, and sees that a layer which must hold does not.
    """
    await sandbox.send(_SENT.encode() + b"\n")
    heard = b""
    while b"\n" not in heard and len(heard) < MAX_ANSWER_BYTES:
        data = await sandbox.receive()
        if not data:
            break
        heard += data
    try:
        answer = json.loads(heard)
        facts = answer["facts"] if answer["heard"] == _SENT else None
    except (ValueError, KeyError, TypeError):
        facts = None
    if isinstance(facts, dict):
        insist(sandbox.isolation, facts)
        return "", verified(sandbox.isolation, facts)
    await sandbox.kill()
    report = await sandbox.wait()
    said = sandbox.diagnostics() or report.detail or f"exit code {report.exit_code}"
    return said, sandbox.isolation


def failed_probe(backend: str, error: BridgeError) -> Probe:
    """Return the report of a probe that `error` stopped."""
    return Probe(
        backend=backend,
        ok=False,
        summary=error.message,
        error_code=error.code,
        remedy=error.remedy,
    )
