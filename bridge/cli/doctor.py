"""`doctor`: what works on this machine, found out by trying it."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

from bridge.cli.doctor_offers import (
    check_packages,
    describe_directories,
    describe_packages,
    offers_document,
)
from bridge.cli.output import visible, write_err, write_json, write_out
from bridge.engine.command_plan import CommandCheck, check_commands
from bridge.engine.consenting import consents_of
from bridge.engine.servers import context_for
from bridge.errors import SettingsError, WrongSystemError
from bridge.model import MEBIBYTE, short_digest
from bridge.sandbox.backend import Probe
from bridge.sandbox.choose import survey
from bridge.sandbox.limits import limits_for
from bridge.settings import Settings
from bridge.text import counted


async def doctor(arguments: SimpleNamespace, settings: Settings) -> int:
    """Try each backend and read the configuration; exit 1 if nothing can run code.

    A command profile that cannot be used is told, and changes nothing of the exit status.
    """
    return await _report(arguments, settings, _describe_gate(settings))


async def _report(arguments: SimpleNamespace, settings: Settings, gate: str) -> int:
    probes = await survey(settings)
    context = context_for(settings, str(Path.cwd()), sys.platform)
    found = consents_of(settings).discover(context)
    commands = check_commands(settings, probes)
    packages = await check_packages(settings)
    chosen = next((probe.backend for probe in probes if probe.ok), "")
    if arguments.json:
        document = {
            "chosen": chosen or None,
            "backends": [asdict(probe) for probe in probes],
            "profile": _profile(settings),
            "gate": _gate(settings),
            "commands": [asdict(check) for check in commands],
            **offers_document(settings, packages),
            "servers": [spec.name for spec in found.servers],
            "definitions": {spec.name: spec.definition for spec in found.servers},
            "warnings": [str(warning) for warning in found.warnings],
        }
        write_json(document, indent=2)
    else:
        for probe in probes:
            write_out(visible(_describe(probe)))
        write_out(visible(_describe_profile(settings)))
        write_out(visible(gate))
        for check in commands:
            write_out(visible(_describe_command(check)))
        write_out(visible(describe_packages(packages)))
        write_out(visible(describe_directories(settings, root=os.geteuid() == 0)))
        names = ", ".join(
            f"{spec.name} ({short_digest(spec.definition)})" for spec in found.servers
        )
        names = names or "none"
        write_out(visible(f"Servers: {names}. `servers` tells where each was found.\n"))
        for warning in found.warnings:
            write_out(visible(f"warning: {warning}\n"))
        if chosen:
            write_out(f"Programs run in: {chosen}\n")
        else:
            write_out("Nothing here can run programs in isolation, so the bridge refuses to.\n")
    return 0 if chosen else 1


async def doctor_mistake(
    error: SettingsError, arguments: SimpleNamespace, settings: Settings
) -> int:
    """Try the backends as they are by default, for the settings have a mistake that was told."""
    write_err("What follows goes by the default settings; the bridge itself runs nothing.\n")
    await _report(arguments, settings, "policy: not known until that is corrected\n")
    return error.exit_status


def _profile(settings: Settings) -> dict[str, object]:
    """Return what the profile in force allows a run."""
    limits = limits_for(settings)
    return {
        "name": settings.profile,
        "timeout": limits.timeout,
        "longest_timeout": limits.longest_timeout,
        "memory_bytes": limits.memory_bytes,
        "cpus": limits.cpus,
        "guard": settings.guard,
        "listed_servers_only": settings.listed_servers_only,
    }


def _describe_profile(settings: Settings) -> str:
    limits = limits_for(settings)
    longer = limits.longest_timeout > limits.timeout
    terms = (
        f"{limits.timeout:g} s" + (f" (at most {limits.longest_timeout:g} s)" if longer else ""),
        f"{limits.memory_bytes / MEBIBYTE:g} MiB",
        f"{limits.cpus:g} CPUs" if limits.cpus is not None else "no limit of CPUs",
        f"guard {settings.guard}",
        "listed servers only" if settings.listed_servers_only else "all servers",
    )
    return f"profile: {settings.profile}: {', '.join(terms)}\n"


def _gate(settings: Settings) -> dict[str, object]:
    """Return what calls of tools go through."""
    policy = settings.policy
    return {
        "policy": policy.present,
        "start": policy.start if policy.present else "allow",
        "rules": len(policy.rules),
        "trusted": [server.servers for server in policy.servers if server.trust],
        "audit": settings.audit,
    }


def _describe_gate(settings: Settings) -> str:
    policy = settings.policy
    if policy.present:
        rules, servers = len(policy.rules), len(policy.servers)
        about = f"{counted(rules, 'rule')}, lines on {counted(servers, 'server')}"
        lines = [f"policy: {about}; `policy explain SERVER TOOL` says what holds for a call"]
        lines.append(f"      servers start: {policy.start}, unless their own lines say otherwise")
    else:
        lines = ["policy: none, so every call is allowed; `policy init` writes one to begin with"]
    lines.append(f"audit: {settings.audit}")
    return "\n".join(lines) + "\n"


def _describe_command(check: CommandCheck) -> str:
    lines = [f"commands: {check.name}: {'ok' if check.ok else 'FAIL'}: {check.summary}"]
    lines.extend(f"      note: {note}" for note in check.notes)
    if check.remedy:
        lines.append(f"      remedy: {check.remedy}")
    return "\n".join(lines) + "\n"


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
