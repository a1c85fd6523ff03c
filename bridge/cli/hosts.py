"""`hosts`: the state of each SSH host."""

from __future__ import annotations

from types import SimpleNamespace

from bridge.cli.output import visible, write_err, write_json, write_table
from bridge.errors import NoSandboxError, SandboxError, SettingsError
from bridge.sandbox.probe import failed_probe
from bridge.sandbox.ssh.backend import Host, SshBackend
from bridge.settings import Settings, config_path

_HEADINGS = ("HOST", "DESTINATION", "STATE", "IN USE", "ANSWERS", "ENGINE")


async def hosts(arguments: SimpleNamespace, settings: Settings) -> int:
    """Try each host and print its state; exit 3 if none can be used.

    Raises:
        SettingsError: There are no hosts.
    """
    if not settings.ssh_hosts:
        message = f"{config_path(settings.environ)} has no hosts."
        raise SettingsError(message, remedy="Add [[ssh.hosts]] with a `destination` there.")
    async with SshBackend(settings, pull=False) as backend:
        await backend.connect()
        found = [await _state(host) for host in backend.hosts]
    if arguments.json:
        write_json(found, indent=2)
    else:
        write_table(_HEADINGS, [_row(one) for one in found])
        for one in found:
            if one["problem"]:
                write_err(visible(f"{one['name']}: {one['problem']} {one['remedy']}\n"))
    return 0 if any(one["up"] for one in found) else NoSandboxError.exit_status


async def _state(host: Host) -> dict[str, object]:
    """Return a host's state; its slots in use are those of all bridges."""
    used, link, probe = 0, host.link, host.probe
    try:
        used = 0 if host.backend is None else await host.backend.count()
    except SandboxError as error:
        probe = failed_probe(host.spec.name, error)
    failed = probe if probe is not None and not probe.ok else None
    return {
        "name": host.spec.name,
        "destination": host.spec.destination,
        "up": host.usable and failed is None,
        "slots": host.spec.slots,
        "used": used,
        "latency_ms": round(link.latency * 1000, 2) if link is not None else None,
        "engine": probe.summary if probe and not failed else host.spec.engine,
        "problem": failed.summary if failed else "",
        "code": failed.error_code if failed else "",
        "remedy": failed.remedy if failed else "",
    }


def _row(one: dict[str, object]) -> tuple[str, ...]:
    up = ("up", f"{one['used']} of {one['slots']}", f"{one['latency_ms']} ms")
    state = up if one["up"] else ("down", f"of {one['slots']}", "")
    return str(one["name"]), str(one["destination"]), *state, str(one["engine"])
