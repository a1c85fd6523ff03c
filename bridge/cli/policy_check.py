"""`policy check`: whether the policy is fine, and what it says of a program before that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

from bridge.catalog.program.expected_calls import (
    GET_PROMPT,
    READ_RESOURCE,
    ExpectedCall,
    ExpectedCalls,
    UnnamedCall,
    expected_calls,
)
from bridge.catalog.program.names import NameTable
from bridge.catalog.program.parsing import Unread
from bridge.catalog.prose import clip
from bridge.cli.engine import open_engine
from bridge.cli.options import AsJson, Code, arg
from bridge.cli.output import visible, write_err, write_json, write_out, write_warning
from bridge.cli.status import waiting
from bridge.errors import BridgeError, UsageError
from bridge.gate.decision import UNLISTED, CallFacts, Decision, strictest
from bridge.gate.flow import Flow
from bridge.gate.forecast import Outlook, flow_decision, outlook
from bridge.gate.policy import Policy
from bridge.model import Effect, Json
from bridge.settings import Settings
from bridge.settings.globs import matcher
from bridge.settings.policy import PolicySpec
from bridge.text import counted

DENIED = 1  # The exit status of a program some of whose calls would be.

NO_POLICY = (
    "There is no policy: every call is allowed. `mcp-code-bridge policy init` writes a first one.\n"
)

if TYPE_CHECKING:
    from bridge.runs import Engine


@dataclass(frozen=True, kw_only=True)
class _CallOutlook:
    """A call of a program with what would become of it."""

    call: ExpectedCall
    outlook: Outlook
    flow: Decision | None

    @property
    def final(self) -> Decision:
        """What is decided if no argument that is not seen changes it."""
        return strictest(self.outlook.decision, self.flow)


async def check(
    settings: Settings,
    *,
    file: Annotated[str | None, arg("FILE", "a program, or - for stdin")] = None,
    code: Code = None,
    as_json: AsJson = False,
) -> int:
    """Check the policy, and the calls of a program.

    Without a program it checks the policy file alone. With one it shows the decision on each call
    that it finds in the program's text. The exit status is 1 if one of them would be denied.

    Examples:
        policy check report.py
    """
    if code is not None and file is not None:
        raise UsageError("Give the program as FILE or with -c, not both.")
    if file is not None:
        # Imported here, as the next: with the engine.
        from bridge.cli.run import read_program

        code = read_program(file)
    if code is None and not settings.policy.present:
        _say_fine(settings, as_json=as_json)
        return 0
    async with open_engine(settings) as engine:
        if code is None:
            _say_fine(settings, as_json=as_json, servers=engine.servers.names())
            return 0
        return await _check_program(engine, code, as_json=as_json)


def _say_fine(settings: Settings, *, as_json: bool, servers: Sequence[str] = ()) -> None:
    spec = settings.policy
    idle = unused_parts(spec, servers) if spec.present else []
    counts = {"rules": len(spec.rules), "servers": len(spec.servers), "flow": len(spec.flows)}
    if as_json:
        place = str(spec.path) if spec.path is not None else None
        write_json({"present": spec.present, "path": place, **counts, "idle": idle})
    elif not spec.present:
        write_out(NO_POLICY)
    else:
        names = ("rule", "server", "flow rule")
        told = ", ".join(map(counted, counts.values(), names))
        write_out(visible(f"policy OK: {told} ({spec.path})\n"))
        for text in idle:
            write_warning(visible(text, keep=""))


def unused_parts(spec: PolicySpec, servers: Sequence[str]) -> list[str]:
    """Return what in a policy is about servers that there are not. Pure.

    Such a line parses, and does nothing: a misspelt name in a rule that denies.
    """
    named = [(f"the rule {rule.name!r}", rule.servers) for rule in spec.rules]
    named += [("[policy.servers]", (each.servers,)) for each in spec.servers]
    for flow in spec.flows:
        named.append((f"the flow rule {flow.name!r}", flow.after_servers))
        named.append((f"the flow rule {flow.name!r}", flow.to_servers))
    named += [("[policy.budgets] per_minute", (glob,)) for glob, _ in spec.budgets.per_minute]
    named += [("[policy.privacy] servers", spec.privacy.servers)]
    named += [("[policy.privacy] reveal_to", spec.privacy.reveal_to)]
    idle = dict.fromkeys(
        (whose, glob)
        for whose, globs in named
        for glob in globs
        # "*" is about all of them, however many there are.
        if glob != "*" and not any(map(matcher(glob), servers))
    )
    return [f"{whose} names unknown server {glob!r}.{_near(glob, servers)}" for whose, glob in idle]


def _near(name: str, servers: Sequence[str]) -> str:
    near = get_close_matches(name, servers, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


async def _check_program(engine: Engine, code: str, *, as_json: bool) -> int:
    from bridge.runs.reading import read

    servers = engine.servers
    reading = await read(code, NameTable(servers.inventory.entries()), "off")
    if isinstance(reading.survey, Unread):
        raise UsageError(f"The program cannot be read: {reading.survey.finding}.")
    if reading.references.unknown:
        unknown = "; ".join(reading.references.unknown.values())
        raise UsageError(servers.unknown_server_text(unknown))
    with waiting("asking the program's servers for their tools"):
        errors = await servers.load_unknown(reading.references.servers, patient=True)
    found = expected_calls(reading.survey, servers.entries())
    policy = engine.gate.policy()
    judged = _judge(policy, found.calls, lambda name: servers.inventory.tools(name) is not None)
    if as_json:
        write_json(
            {
                "calls": [_call_json(each) for each in judged],
                "open": [
                    {"line": place.line, "server": place.server, "why": place.why}
                    for place in found.open
                ],
                "unreachable": {name: str(error) for name, error in errors.items()},
                "denied": sum(each.final.action == "deny" for each in judged),
            },
            indent=2,
        )
    else:
        _write(judged, found, errors, present=policy.spec.present)
    return DENIED if any(each.final.action == "deny" for each in judged) else 0


def _judge(
    policy: Policy, calls: Sequence[ExpectedCall], lists: Callable[[str], bool]
) -> list[_CallOutlook]:
    flow = Flow(policy.spec.flows)
    outlooks = [_outlook(policy, call, lists) for call in calls]
    # What is denied is not read from, so nothing follows from it.
    made = [
        (call, _facts(call), outlook.decision.labels)
        for call, outlook in zip(calls, outlooks, strict=True)
        if outlook.decision.action != "deny"
    ]
    judged = []
    for call, found in zip(calls, outlooks, strict=True):
        verdict = None
        if policy.spec.present and found.decision.action != "deny":
            before = [(facts, its) for other, facts, its in made if call.may_follow(other)]
            verdict = flow_decision(flow, _facts(call), found.decision.labels, before)
        judged.append(_CallOutlook(call=call, outlook=found, flow=verdict))
    return judged


def _outlook(policy: Policy, call: ExpectedCall, lists: Callable[[str], bool]) -> Outlook:
    effect: Effect | None = "read" if call.tool in {READ_RESOURCE, GET_PROMPT} else None
    if effect is None and call.definition is None and policy.spec.present and lists(call.server):
        # As the gate decides on it.
        return Outlook(decision=Decision(action="deny", rule=UNLISTED))
    return outlook(policy, _facts(call), unseen=call.unseen, open=call.open, effect=effect)


def _facts(call: ExpectedCall) -> CallFacts:
    return CallFacts(
        server=call.server, tool=call.tool, arguments=call.arguments, definition=call.definition
    )


def _write(
    judged: Sequence[_CallOutlook],
    found: ExpectedCalls,
    errors: Mapping[str, BridgeError],
    *,
    present: bool,
) -> None:
    lines = [line for each in judged for line in _call_lines(each)]
    lines += [_open_line(place) for place in found.open]
    if not lines:
        lines.append("No call of a tool is seen in the program.")
    write_out(visible("\n".join(lines) + "\n"))
    if not present:
        write_err(NO_POLICY)
    for name, error in errors.items():
        write_warning(f"{name}: {error} What its tools do is unknown.")


def _call_lines(judged: _CallOutlook) -> list[str]:
    call, decision = judged.call, judged.outlook.decision
    lines = [f"line {call.line}: {call.server}.{call.tool} -> {_decision_text(decision)}"]
    lines += [
        f"    or {_decision_text(possible.decision)}, by {_listed(possible.on)}: not seen here"
        for possible in judged.outlook.possible
    ]
    if judged.flow is not None:
        lines.append(f"    {_decision_text(judged.flow)} if made after {_listed(judged.flow.led)}")
    return lines


def _decision_text(decision: Decision) -> str:
    return f"{decision.action} ({decision.rule})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(clip(name, 80) for name in names) or "other calls"


def _open_line(place: UnnamedCall) -> str:
    whose = "any tool of any server" if place.server is None else f"any tool of {place.server}"
    return f"line {place.line}: {whose}, known only when it runs: {place.why}"


def _call_json(judged: _CallOutlook) -> dict[str, Json]:
    call = judged.call
    return {
        "line": call.line,
        "server": call.server,
        "tool": call.tool,
        **_decision_json(judged.outlook.decision),
        "unseen": [*call.unseen, *(["*"] if call.open else [])],
        "possible": [
            {**_decision_json(possible.decision), "on": list(possible.on)}
            for possible in judged.outlook.possible
        ],
        "flow": None if judged.flow is None else _decision_json(judged.flow),
    }


def _decision_json(decision: Decision) -> dict[str, Json]:
    return {**asdict(decision), "labels": sorted(decision.labels)}
