"""What it costs a call to be decided on, recorded and redacted, with a large policy."""

from __future__ import annotations

import gc
import json
import secrets
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from benchmarks.bench import TOOL_SERVER, Bench
from benchmarks.bridge_client import Bridge, configure, open_bridge
from benchmarks.engines import Engine
from benchmarks.figures import median
from benchmarks.results import Measurement, compare_medians
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.journal import Journals
from bridge.gate.pins import Pins
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.policy import Flow, Policy
from bridge.gate.redaction import Redactor
from bridge.gate.services import GateContext, Rates, RunBudget
from bridge.model import Json, Tool
from bridge.settings.policy import parse_policy
from bridge.store import Store

RULES = 200
SECRETS = 20

CALLS = 1_000
"""In one block; blocks through the gate and without it take turns."""

BLOCKS = (9, 2)
WARM_UP = 200

RUN_CALLS = 200
RUNS = (7, 2)
PAUSE_SECONDS = 0.5
"""Between two runs, for the next sandbox."""

LOOP = f"""
import time
await mcp_bench.noop()
started = time.perf_counter()
for _ in range({RUN_CALLS}):
    await mcp_bench.noop()
(time.perf_counter() - started) * 1000 / {RUN_CALLS}
"""

_ARGUMENTS: dict[str, Json] = {
    "owner": "example",
    "repository": "bridge",
    "title": "The third page of the manual has a word too many",
    "labels": ["documentation", "small"],
    "draft": False,
}

_TOOL = Tool(
    server="bench",
    name="create_issue",
    description="Create an issue.",
    input_schema={
        "type": "object",
        "properties": {name: {"description": f"Its {name}."} for name in _ARGUMENTS},
    },
)


def policy_text() -> str:
    """Return a policy of 200 rules, of which none decides: each has to be held against the call.

    Half are about other servers, half about this one's arguments.
    """
    rules = [
        f"""
[[policy.rules]]
name = "rule {number}"
server = {'"other*"' if number % 2 else '["bench", "lean"]'}
tool = ["create_*", "noop", "delete_{number}"]
when = {{ owner = "somebody-{number}", title = {{ glob = "*secret {number}*" }} }}
action = "deny"
"""
        for number in range(RULES)
    ]
    head = '[policy.defaults]\nwrite = "allow"\ndestructive = "allow"\nuntrusted = "allow"\n'
    trust = '[policy.servers.bench]\ntrust = true\nlabels = ["private-data"]\n'
    return f"[policy]\n{head}{trust}{''.join(rules)}"


async def _call(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": '{"number": 7}'}], "isError": False}


async def _define(server: str, tool: str) -> Tool:
    return _TOOL


def _oversight(directory: Path, journals: Journals, run_id: str) -> GateContext:
    """Return a gate with all its parts in use."""
    policy = Policy(parse_policy(tomllib.loads(policy_text())["policy"], "policy"))
    known = {secrets.token_urlsafe(30): f"TOKEN_{number}" for number in range(SECRETS)}
    redactor = Redactor(known)
    return GateContext(
        define=_define,
        lists=lambda server: True,
        policy=policy,
        flow=Flow(policy.spec.flows),
        budget=RunBudget(policy.spec.budgets, Rates()),
        pins=Pins(Store(directory)),
        audit=RunAudit(AuditLog(directory / "audit"), run_id, mask=redactor.arguments),
        journal=journals.begin(run_id, "me"),
    )


async def added(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure calls of an async function through a gate and without, in turns, in this process."""
    directory = bench.place()
    directory.chmod(0o700)
    journals = Journals()
    through: list[float] = []
    direct: list[float] = []
    for block in range(bench.count(*BLOCKS)):
        oversight = _oversight(directory, journals, f"{block:032x}")
        gate = Gate(Grant(servers=None, calls=10 * CALLS), _call, oversight)
        with oversight.journal.recording():
            for number in range(WARM_UP):
                await gate.call("bench", "create_issue", {**_ARGUMENTS, "number": number})
            # Another block's leavings are not this one's cost.
            gc.collect()
            started = time.perf_counter()
            for number in range(CALLS):
                await gate.call("bench", "create_issue", {**_ARGUMENTS, "number": number})
            through.append((time.perf_counter() - started) / CALLS * 1e6)
        started = time.perf_counter()
        for number in range(CALLS):
            await _call("bench", "create_issue", {**_ARGUMENTS, "number": number})
        direct.append((time.perf_counter() - started) / CALLS * 1e6)
    floor = median(direct)
    return [
        Measurement(
            row="gate",
            figure=median(through) - floor,
            floor=floor,
            samples=tuple(one - floor for one in through),
            floor_samples=tuple(direct),
            detail=f"{RULES} rules, {SECRETS} secrets, audit and journal on",
        )
    ]


async def in_runs(bench: Bench, engine: Engine) -> list[Measurement]:
    """Measure the calls of whole runs with a policy and without, by two bridges in turns."""
    homes = [bench.place(), bench.place()]
    for home in homes:
        configure(home, {"bench": TOOL_SERVER})
        _add_secrets(home / "servers.json")
    config = homes[0] / "policy.toml"
    config.write_text(policy_text())
    samples: tuple[list[float], list[float]] = ([], [])
    async with (
        open_bridge(bench, engine, home=homes[0], MCP_BRIDGE_CONFIG=str(config)) as judged,
        open_bridge(bench, engine, home=homes[1], MCP_BRIDGE_AUDIT="off") as plain,
    ):
        for bridge in (judged, plain):
            await _per_call(bridge)
        for _ in range(bench.count(*RUNS)):
            for taken, bridge in zip(samples, (judged, plain), strict=True):
                await anyio.sleep(PAUSE_SECONDS)
                taken.append(await _per_call(bridge))
    with_policy, without = samples
    return [
        compare_medians(
            "gate-run",
            with_policy,
            without,
            detail=f"measured on {engine.name}; {RUN_CALLS} calls a run, {RULES} rules",
        )
    ]


def _add_secrets(path: Path) -> None:
    """Give the server of a configuration the secrets that are to be looked for."""
    document = json.loads(path.read_text())
    for entry in document["mcpServers"].values():
        entry["env"] = {f"API_TOKEN_{n}": secrets.token_urlsafe(30) for n in range(SECRETS)}
    path.write_text(json.dumps(document))


async def _per_call(bridge: Bridge) -> float:
    return float((await bridge.run(LOOP, timeout=60)).result)
