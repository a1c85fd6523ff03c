"""The probe that every backend runs: its program, its limits, and the report when it fails.

The program examines itself as the guest does. A backend is accepted only if the report contradicts
nothing that the backend requested.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import anyio

from bridge.errors import BridgeError, LaunchError, SandboxError
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.bundle import INTERPRETER, guest_modules
from bridge.sandbox.contents import contents_of
from bridge.sandbox.layers import require_mandatory_layers, verify_isolation

logger = logging.getLogger(__name__)

PROBE_SECONDS = 60.0
"""For a sandbox to start and answer: a tenth of a second, more from a cold disk."""

_SENT = "probe"

_ANSWER = """
import json, sys

heard = sys.stdin.readline().strip()
seen = {"__name__": "probe"}
exec(compile(FACTS, "<probe>", "exec", dont_inherit=True), seen)
attempts = {layer: call for layer, call in seen["ATTEMPTS"].items() if layer not in UNTRIED}
facts = {**seen["isolation_facts"](), "denials": seen["denials"](attempts)}
facts["packages"] = seen["distributions"]()
sys.stdout.write(json.dumps({"heard": heard, "facts": facts}) + "\\n")
"""

MAX_ANSWER_BYTES = 1024 * 1024  # Most of the probe's answer; 9,999 packages are half of it.


def probe_spec(limits: Limits) -> LaunchSpec:
    """Return the launch of the program, which echoes its input and examines itself."""
    return LaunchSpec(run_id="probe", argv=probe_argv(), env={}, limits=limits)


def probe_argv(*, untried: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the command of the probe's program."""
    facts = guest_modules()["bridge.guest.isolation_facts"]
    return (*INTERPRETER, f"FACTS = {facts!r}\nUNTRIED = {untried!r}\n{_ANSWER}")


async def receive_facts(sandbox: Sandbox) -> Mapping[str, Any] | None:
    """Return the program's report; None if it does not answer."""
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
    return facts if isinstance(facts, dict) else None


def failed_probe(backend: str, error: BridgeError) -> Probe:
    return Probe(
        backend=backend,
        ok=False,
        summary=f"{error.message} {error.host_detail}".rstrip(),
        error_code=error.code,
        remedy=error.remedy,
    )


async def run_probe(
    name: str,
    launch: Callable[[LaunchSpec], AbstractAsyncContextManager[Sandbox]],
    describe: Callable[[Sandbox], Probe],
    limits: Limits,
    *,
    no_answer_remedy: str | None = None,
    timeout_error: Callable[[str], SandboxError] = LaunchError,
) -> Probe:
    """Run something in a sandbox."""
    try:
        with anyio.fail_after(PROBE_SECONDS):
            async with launch(probe_spec(limits)) as sandbox:
                facts = await receive_facts(sandbox)
                if facts is None:
                    await sandbox.kill()
                    report = await sandbox.wait()
                    said = sandbox.diagnostics() or report.detail or f"exit code {report.exit_code}"
                    message = f"The probe's program did not answer: {said[:500]}."
                    return failed_probe(name, LaunchError(message, remedy=no_answer_remedy))
                require_mandatory_layers(sandbox.isolation, facts)
                isolation = verify_isolation(sandbox.isolation, facts)
                return replace(describe(sandbox), isolation=isolation, contents=contents_of(facts))
    except BridgeError as error:
        return failed_probe(name, error)
    except TimeoutError:
        message = f"{name} did not start a sandbox within {PROBE_SECONDS:g} s."
        return failed_probe(name, timeout_error(message))
    except Exception as error:
        logger.exception("probing %s failed unexpectedly", name)
        return failed_probe(name, LaunchError(f"Probing {name} failed: {error!r}."))
