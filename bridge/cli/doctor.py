"""`doctor`: what works on this machine, found out by trying it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bridge.cli.output import visible, write_out
from bridge.discovery.find import discover
from bridge.engine.servers import context_for
from bridge.errors import WrongSystemError
from bridge.sandbox.backend import Probe
from bridge.sandbox.choose import survey
from bridge.settings import Settings


async def doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    """Try each backend and read the configuration; exit 1 if nothing can run code."""
    probes = await survey(settings)
    found = discover(context_for(settings, str(Path.cwd()), sys.platform))
    chosen = next((probe.backend for probe in probes if probe.ok), "")
    if arguments.json:
        document = {
            "chosen": chosen or None,
            "backends": [asdict(probe) for probe in probes],
            "servers": [spec.name for spec in found.servers],
            "warnings": [str(warning) for warning in found.warnings],
        }
        write_out(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    else:
        for probe in probes:
            write_out(visible(_describe(probe)))
        names = ", ".join(spec.name for spec in found.servers) or "none"
        write_out(visible(f"Servers: {names}. `servers` tells where each was found.\n"))
        for warning in found.warnings:
            write_out(visible(f"warning: {warning}\n"))
        if chosen:
            write_out(f"Programs run in: {chosen}\n")
        else:
            write_out("Nothing here can run programs in isolation, so the bridge refuses to.\n")
    return 0 if chosen else 1


def _describe(probe: Probe) -> str:
    lines = [f"{_mark(probe)}  {probe.backend}: {probe.summary}"]
    lines.extend(f"      {name}: {text}" for name, text in probe.details.items())
    if probe.isolation is not None:
        seen = probe.isolation.verified
        lines.append(f"      layers seen from inside: {', '.join(seen) or 'none'}")
        asked = [layer for layer in probe.isolation.layers if layer not in seen]
        if asked:
            lines.append(f"      layers asked for, out of sight inside: {', '.join(asked)}")
        lines.extend(f"      weaker: {text}" for text in probe.isolation.weaker)
    if probe.remedy:
        lines.append(f"      remedy: {probe.remedy}")
    return "\n".join(lines) + "\n"


def _mark(probe: Probe) -> str:
    if probe.ok:
        return "ok  "
    # What is for another system is not broken here.
    return "n/a " if probe.error_code == WrongSystemError.code else "FAIL"
