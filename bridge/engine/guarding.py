"""The static guard's part in a run: when a program is read, and what comes of it.

Owns the modes. "off" reads nothing. "advise" lets every program run and puts what was found into
its result. "enforce" refuses what is denied, and what cannot be read, before anything is started
for it; an error while reading stops the run as well.
"""

from __future__ import annotations

import dataclasses

import anyio.to_thread

from bridge.catalog.guard import Scan, check, parse
from bridge.model import RunResult
from bridge.settings import GuardMode

MAX_TOLD = 10
"""Findings in the text of a refusal; the structured list has more."""


async def inspected(code: str, mode: GuardMode) -> Scan:
    """Return what the guard makes of a program; nothing if it is off."""
    if mode == "off":
        return Scan()
    tree = parse(code)
    if isinstance(tree, Scan):
        return tree
    # A long program's tree takes a second to walk, in which other runs go on.
    return await anyio.to_thread.run_sync(check, tree, abandon_on_cancel=True)


def refused(run_id: str, scan: Scan, timeout: float) -> RunResult:
    """Return the result of a program that was not started."""
    denials = [found for found in scan.findings if found.severity == "deny"]
    told = [str(found) for found in denials[:MAX_TOLD]]
    untold = len(denials) - len(told) + scan.omitted
    if untold:
        told.append(f"... and {untold} more")
    if scan.read:
        summary = f"The static guard does not allow the program: {denials[0]}."
        remedy = (
            "Nothing was started. Change what is named here and run the program again. The guard "
            "is enforced by the user's settings (MCP_BRIDGE_GUARD, or a strict profile)."
        )
    else:
        summary = f"The program cannot be read: {denials[0]}."
        remedy = "Nothing was started. Mend the program and run it again."
    return RunResult(
        run_id=run_id,
        status="validation_error",
        reason="policy" if scan.read else "validation",
        summary=summary,
        error="\n".join((*told, remedy)),
        timeout_seconds=timeout,
        findings=scan.findings,
        findings_omitted=scan.omitted,
    )


def advised(result: RunResult, scan: Scan) -> RunResult:
    """Return a run's result with what the guard found beforehand."""
    return dataclasses.replace(result, findings=scan.findings, findings_omitted=scan.omitted)
