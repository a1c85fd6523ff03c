"""`doctor`: what works on this machine, found out by trying it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from bridge.cli.output import write_out
from bridge.sandbox.backend import Probe
from bridge.sandbox.choose import survey
from bridge.settings import Settings


async def doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    """Try each backend; exit 1 if nothing can run code."""
    probes = await survey(settings)
    chosen = next((probe.backend for probe in probes if probe.ok), "")
    if arguments.json:
        document = {"chosen": chosen or None, "backends": [asdict(probe) for probe in probes]}
        write_out(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    else:
        for probe in probes:
            write_out(_describe(probe))
        if chosen:
            write_out(f"Programs run in: {chosen}\n")
        else:
            write_out("Nothing here can run programs in isolation, so the bridge refuses to.\n")
    return 0 if chosen else 1


def _describe(probe: Probe) -> str:
    lines = [f"{'ok  ' if probe.ok else 'FAIL'}  {probe.backend}: {probe.summary}"]
    lines.extend(f"      {name}: {text}" for name, text in probe.details.items())
    if probe.isolation is not None:
        lines.append(f"      layers: {', '.join(probe.isolation.layers)}")
        lines.extend(f"      weaker: {text}" for text in probe.isolation.weaker)
    if probe.remedy:
        lines.append(f"      remedy: {probe.remedy}")
    return "\n".join(lines) + "\n"
