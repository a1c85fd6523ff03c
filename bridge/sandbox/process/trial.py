"""The probe of the backends in this package: launch, speak, report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import anyio

from bridge.errors import BridgeError, LaunchError
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.probing import examined, failed_probe, probe_spec

logger = logging.getLogger(__name__)

PROBE_SECONDS = 60.0
"""For a sandbox to start and answer: a tenth of a second, more from a cold disk."""


async def try_out(
    name: str,
    launch: Callable[[LaunchSpec], AbstractAsyncContextManager[Sandbox]],
    describe: Callable[[Sandbox], Probe],
    limits: Limits,
) -> Probe:
    """Run something in a sandbox; see `Backend.probe`."""
    try:
        with anyio.fail_after(PROBE_SECONDS):
            async with launch(probe_spec(limits)) as sandbox:
                said, isolation = await examined(sandbox)
                if said:
                    message = f"The probe's program did not answer: {said[:500]}."
                    return failed_probe(name, LaunchError(message))
                return replace(describe(sandbox), isolation=isolation)
    except BridgeError as error:
        return failed_probe(name, error)
    except TimeoutError:
        message = f"{name} did not start a sandbox within {PROBE_SECONDS:g} s."
        return failed_probe(name, LaunchError(message))
    except Exception as error:
        logger.exception("probing %s failed in a way nobody foresaw", name)
        return failed_probe(name, LaunchError(f"Probing {name} failed: {error!r}."))
