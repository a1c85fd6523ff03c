"""`policy`: explains decisions, checks the policy and programs, and proposes rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread

from bridge.catalog.policy_proposal import propose, server_table
from bridge.catalog.program.expected_calls import (
    GET_PROMPT,
    READ_RESOURCE,
    ExpectedCall,
    expected_calls,
)
from bridge.catalog.program.references import NameTable
from bridge.cli.options import AsJson, Code, Server, Yes, arg, complete_tools, flag
from bridge.cli.output import (
    open_engine,
    visible,
    waiting,
    write_err,
    write_json,
    write_out,
    write_warning,
)
from bridge.cli.terminal import Person
from bridge.errors import UsageError
from bridge.gate.pins import Pins
from bridge.gate.policy import (
    CHANGED,
    OPEN,
    UNLISTED,
    CallFacts,
    Decision,
    FlowState,
    Outlook,
    Policy,
    Step,
    outlook,
    strictest,
)
from bridge.gate.question import because
from bridge.model import Action, Effect, Finding, Json, Tool, short_digest
from bridge.settings import Settings, parsers, store_of
from bridge.settings.policy import FlowRule, PolicySpec, literal, matcher
from bridge.settings.policy_edit import append_policy, rule_for, toml_value
from bridge.text import clip, counted

if TYPE_CHECKING:
    from bridge.runs import Engine

DENIED = 1  # The exit status if one of a program's calls would be denied.

NO_POLICY = (
    "There is no policy: every call is allowed. `mcp-code-bridge policy init` creates one.\n"
)


async def explain(
    settings: Settings,
    *,
    server: Server,
    tool: Annotated[str, arg("TOOL", "its name or alias", complete_tools)],
    arguments: Annotated[list[str] | None, arg("ARGS", "a JSON object, or KEY=VALUE words")] = None,
    as_json: AsJson = False,
) -> int:
    """Shows the rule that decides, and the lines of config.toml that would change the decision.

    Examples:
        policy explain github create_issue repo=o/r
    """
    async with open_engine(settings) as engine:
        name = engine.servers.resolve(server)
        spec = engine.servers.pool.spec(name)
        start = engine.gate.starts.decide(spec)
        requested = tool in (READ_RESOURCE, GET_PROMPT)
        definition = None if requested else await _definition(engine, name, tool)
        policy = engine.gate.policy()
    call = CallFacts(
        server=name,
        tool=definition.name if definition is not None else tool,
        arguments=_parse_arguments(arguments or ()),
        definition=definition,
        server_definition=spec.definition,
        own=not spec.written,
    )
    effect: Effect | None = "read" if requested else None
    base, change = policy.decide(call, effect), ""
    if policy.spec.present and policy.spec.pin and definition is not None:
        change = Pins(store_of(settings), policy.pins_fully).change(definition, spec.definition)
    asked = Decision(action="ask", rule=CHANGED, reason=change) if change else None
    final = strictest(base, asked)
    # These decide if an earlier call of the run has read what they name.
    rules = policy.spec.flows if policy.spec.present else ()
    flows = [rule for rule in rules if matcher(*rule.to_servers)(name) or rule.to & base.labels]
    steps = policy.explain(call, effect)
    if as_json:
        document = {
            "server": name,
            "tool": call.tool,
            "definition": spec.definition,
            "start": {"action": start.action, "rule": start.rule},
            **{key: getattr(final, key) for key in ("action", "rule", "reason")},
            "effect": base.effect,
            "labels": sorted(base.labels),
            "changed": change,
            "steps": list(map(asdict, steps)),
            "flow": list(map(_flow_json, flows)),
        }
        write_json(document, indent=2)
        return 0
    lines = [*_lines(call, start, final, steps, change), *map(_flow_line, flows)]
    write_out(visible("\n".join([*lines, "", *_remedy(call, final, steps)]) + "\n"))
    return 0


def _flow_json(rule: FlowRule) -> dict[str, Json]:
    after = {"after": sorted(rule.after), "afterServers": list(rule.after_servers)}
    return {"name": rule.name, "action": rule.action, **after}


def _flow_line(rule: FlowRule) -> str:
    read = " and ".join([*sorted(rule.after), *(f"servers {glob}" for glob in rule.after_servers)])
    when = f"{rule.name!r} ({rule.action}) decides once a run has read from {read}"
    return _line("flow rules", when)


def _parse_arguments(words: Sequence[str]) -> dict[str, Json]:
    given: dict[str, Json] = {}
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            given = json.loads(words[0])
        except (ValueError, RecursionError) as error:
            raise UsageError(f"ARGS: {words[0]!r:.200} is not a JSON object: {error}.") from None
        return given
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UsageError(f"ARGS: {word!r:.200} is neither KEY=VALUE nor a JSON object.")
        try:
            given[key] = json.loads(value)
        except (ValueError, RecursionError):
            # Most values are plain text.
            given[key] = value
    return given


async def _definition(engine: Engine, server: str, tool: str) -> Tool | None:
    with waiting(f"asking {server} for its tools"):
        errors = await engine.servers.load_unknown([server], patient=True)
    for error in errors.values():
        write_warning(f"{server}: {error} The explanation assumes that it has this tool.")
        return None
    # Raises an error with suggestions if there is no such tool.
    docs = await engine.guide.tool_docs(server, tool, "summary")
    return engine.servers.inventory.tool(server, docs["tool"])


def _lines(
    call: CallFacts, start: Decision, final: Decision, steps: Sequence[Step], change: str
) -> Iterator[str]:
    arguments = ", ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items()
    )
    yield f"{call}({arguments:.1000}) -> {final.action}"
    yield _line("decided by", final.rule)
    if final.reason:
        yield _line("because", final.reason)
    words = {"allow": "allowed", "ask": "asked about", "deny": "denied"}
    begins = f"{words[start.action]} ({because(start)})"
    yield _line("server", f"{short_digest(call.server_definition)}: its start is {begins}")
    for step in (each for each in steps if each.about == "effect"):
        yield _line("effect", f"{step.name}: {step.why}")
    labels = [f"{step.name} ({step.why})" for step in steps if step.about == "label"]
    yield _line("labels", "; ".join(labels) or "none")
    for step in (each for each in steps if each.about == "rule"):
        verdict = "is not reached" if step.why.endswith(" decided") else "does not match"
        verdict = "decides" if step.applies else verdict
        yield _line("rule", f"{step.name!r} ({step.action}) {verdict}: {step.why}")
    if call.tool in (READ_RESOURCE, GET_PROMPT):
        change = "none: this is a request of the protocol"
    elif call.definition is None:
        change = "unknown, because the server could not be asked"
    else:
        change = f"changed since it was allowed: {change}" if change else "unchanged"
    if final.rule != OPEN:
        yield _line("definition", change)


def _line(head: str, text: str) -> str:
    return f"  {head + ':':<12} {text}"


def _remedy(call: CallFacts, final: Decision, steps: Sequence[Step]) -> list[str]:
    if final.rule == OPEN:
        return ["There is no [policy]. Run `mcp-code-bridge policy init` to create one."]
    deciding = next((s for s in steps if s.about == "rule" and s.applies), None)
    wanted: Action = "ask" if final.action == "allow" else "allow"
    lines = [f"To {wanted} this call, add to config.toml:"]
    if deciding is not None:
        lines[0] = f"To {wanted} this call, add to config.toml before the rule {deciding.name!r}:"
    lines += [f"  {line}" for line in rule_for(f"{wanted} {call}", call.server, call.tool, wanted)]
    if final.rule == CHANGED:
        lines = ['Answer "always" when asked: the bridge then remembers the present definition.']
    elif deciding is None and any(
        s.why.startswith("unknown") for s in steps if s.about == "effect"
    ):
        server, tool = toml_value(literal(call.server)), toml_value(literal(call.tool))
        lines += [
            "or state the tool's effect, so that the default for this effect decides:",
            f"  [policy.servers.{server}.tools.{tool}]",
            '  effect = "read"  # or "write", or "destructive"',
        ]
    return lines


async def check(
    settings: Settings,
    *,
    file: Annotated[str | None, arg("FILE", "a program, or - for stdin")] = None,
    code: Code = None,
    as_json: AsJson = False,
) -> int:
    """Without a program it checks the policy file alone. With one it shows the decision on each
    call that it finds in the program's text. The exit status is 1 if one of them would be denied.

    Examples:
        policy check report.py
    """
    if code is not None and file is not None:
        raise UsageError("Give the program as FILE or with -c, not both.")
    if file is not None:
        from bridge.cli.run import read_program

        code = await read_program(file)
    if code is None and not settings.policy.present:
        return _say_fine(settings, as_json=as_json)
    async with open_engine(settings) as engine:
        if code is None:
            return _say_fine(settings, as_json=as_json, servers=engine.servers.names())
        return await _check_program(engine, code, as_json=as_json)


def _say_fine(settings: Settings, *, as_json: bool, servers: Sequence[str] = ()) -> int:
    spec = settings.policy
    idle = unused_parts(spec, servers) if spec.present else []
    counts = {"rules": len(spec.rules), "servers": len(spec.servers), "flow": len(spec.flows)}
    if as_json:
        place = str(spec.path) if spec.path is not None else None
        write_json({"present": spec.present, "path": place, **counts, "idle": idle})
    elif not spec.present:
        write_out(NO_POLICY)
    else:
        parts = ", ".join(map(counted, counts.values(), ("rule", "server", "flow rule")))
        write_out(visible(f"policy OK: {parts} ({spec.path})\n"))
        for text in idle:
            write_warning(visible(text, keep=""))
    return 0


def unused_parts(spec: PolicySpec, servers: Sequence[str]) -> list[str]:
    """Report unknown servers in a policy: a rule with a misspelt name would deny nothing."""
    named = [(f"the rule {rule.name!r}", rule.servers) for rule in spec.rules]
    named += [("[policy.servers]", (each.servers,)) for each in spec.servers]
    named += [
        (f"the flow rule {flow.name!r}", (*flow.after_servers, *flow.to_servers))
        for flow in spec.flows
    ]
    named += [("[policy.budgets] per_minute", (glob,)) for glob, _ in spec.budgets.per_minute]
    named += [("[policy.privacy] servers", spec.privacy.servers)]
    named += [("[policy.privacy] reveal_to", spec.privacy.reveal_to)]
    idle: dict[str, None] = {}
    for whose, glob in ((whose, glob) for whose, globs in named for glob in globs):
        # "*" means all servers, even if there are none.
        if glob != "*" and not any(map(matcher(glob), servers)):
            near = parsers.nearest(glob, servers)
            guess = f" Did you mean {near!r}?" if near else ""
            idle[f"{whose} names unknown server {glob!r}.{guess}"] = None
    return list(idle)


async def _check_program(engine: Engine, code: str, *, as_json: bool) -> int:
    from bridge.runs.admission import read

    servers = engine.servers
    reading = read(code, NameTable(servers.inventory.entries()), "off")
    if isinstance(reading.survey, Finding):
        raise UsageError(f"The program cannot be read: {reading.survey}.")
    if reading.references.unknown:
        unknown = "; ".join(reading.references.unknown.values())
        raise UsageError(servers.unknown_server_text(unknown))
    with waiting("asking the program's servers for their tools"):
        errors = await servers.load_unknown(reading.references.servers, patient=True)
    survey = expected_calls(reading.survey, servers.inventory.entries())
    policy = engine.gate.policy()
    judged = _judge(policy, survey.calls, lambda name: servers.inventory.tools(name) is not None)
    denied = sum(strictest(o.decision, flow).action == "deny" for _, o, flow in judged)
    if as_json:
        document = {
            "calls": [_call_json(*each) for each in judged],
            "open": [{"line": at.line, "server": at.server, "why": at.why} for at in survey.open],
            "unreachable": {name: str(error) for name, error in errors.items()},
            "denied": denied,
        }
        write_json(document, indent=2)
        return DENIED if denied else 0
    lines = [line for each in judged for line in _call_lines(*each)]
    for at in survey.open:
        whose = "any tool of any server" if at.server is None else f"any tool of {at.server}"
        lines.append(f"line {at.line}: {whose}, known only when it runs: {at.why}")
    write_out(visible("\n".join(lines or ["No call of a tool is seen in the program."]) + "\n"))
    if not policy.spec.present:
        write_err(NO_POLICY)
    for name, error in errors.items():
        write_warning(f"{name}: {error} What its tools do is unknown.")
    return DENIED if denied else 0


def _judge(
    policy: Policy, calls: Sequence[ExpectedCall], lists: Callable[[str], bool]
) -> list[tuple[ExpectedCall, Outlook, Decision | None]]:
    """Return each call with its outlook and the decision of a flow rule."""
    flow = policy.flow
    forecasts = []
    for call in calls:
        facts = CallFacts(
            server=call.server, tool=call.tool, arguments=call.arguments, definition=call.definition
        )
        effect: Effect | None = "read" if call.tool in {READ_RESOURCE, GET_PROMPT} else None
        forecast = outlook(policy, facts, unseen=call.unseen, open=call.open, effect=effect)
        unlisted = effect is None and call.definition is None and lists(call.server)
        if unlisted and policy.spec.present:
            # The gate denies unlisted tools.
            forecast = Outlook(decision=Decision(action="deny", rule=UNLISTED))
        forecasts.append((call, facts, forecast))
    judged = []
    for call, facts, forecast in forecasts:
        verdict = None
        if policy.spec.present and forecast.decision.action != "deny":
            # A denied call reads nothing, so no flow rule depends on it.
            before = FlowState()
            for other, its, earlier in forecasts:
                if earlier.decision.action != "deny" and call.may_follow(other):
                    before.add_call(its.server, its.tool, earlier.decision.labels)
            verdict = flow.decide(before, facts.server, forecast.decision.labels)
        judged.append((call, forecast, verdict))
    return judged


def _call_lines(call: ExpectedCall, forecast: Outlook, flow: Decision | None) -> Iterator[str]:
    def names(of: Sequence[str]) -> str:
        return ", ".join(clip(name, 80) for name in of) or "other calls"

    own = forecast.decision
    yield f"line {call.line}: {call.server}.{call.tool} -> {own.action} ({own.rule})"
    for other, on in forecast.possible:
        yield f"    or {other.action} ({other.rule}), by {names(on)}: not seen here"
    if flow is not None:
        yield f"    {flow.action} ({flow.rule}) if made after {names(flow.led)}"


def _call_json(call: ExpectedCall, forecast: Outlook, flow: Decision | None) -> dict[str, Json]:
    return {
        "line": call.line,
        "server": call.server,
        "tool": call.tool,
        **_decision_json(forecast.decision),
        "unseen": [*call.unseen, *(["*"] if call.open else [])],
        "possible": [
            {**_decision_json(possible.decision), "on": list(possible.on)}
            for possible in forecast.possible
        ],
        "flow": None if flow is None else _decision_json(flow),
    }


def _decision_json(decision: Decision) -> dict[str, Json]:
    return {**asdict(decision), "labels": sorted(decision.labels)}


async def init(
    settings: Settings,
    *,
    printed: Annotated[bool, flag("--print", "print it, and write nothing")] = False,
) -> int:
    """Asks the servers for their tools, and adds a policy to config.toml.

    Examples:
        policy init --print
    """
    path = settings.policy.path
    if not printed and settings.policy.present:
        message = f"{path} already has a [policy]; left unchanged."
        raise UsageError(message, remedy="Use `policy init --print` to see a new one.")
    async with open_engine(settings) as engine:
        names = engine.servers.names()
        with waiting(f"asking {', '.join(names)} for their tools"):
            errors = await engine.servers.load_unknown(names, patient=True)
        listed = {name: engine.servers.inventory.tools(name) for name in names}
    tools = {name: of for name, of in listed.items() if of is not None and name not in errors}
    silent = {name: visible(error.message, keep="") for name, error in errors.items()}
    for name, error in errors.items():
        write_warning(f"{name}: {error}")
    text = propose(tools, silent)
    if printed or path is None:
        write_out(text)
        return 0
    await anyio.to_thread.run_sync(append_policy, path, text)
    write_err(
        visible(
            f"Written to {path}. Review it before you rely on it: it is based on the names and the "
            "descriptions that the servers give. `mcp-code-bridge policy explain SERVER TOOL` "
            "shows the decision on a tool.\n"
        )
    )
    return 0


async def add(settings: Settings, *, server: Server, yes: Yes = False) -> int:
    """Shows them, asks, and adds them to config.toml.

    Examples:
        policy add github
    """
    path, policy = settings.policy.path, settings.policy
    if not policy.present or path is None:
        raise UsageError("There is no policy to add to.", remedy="`policy init` creates one.")
    async with open_engine(settings) as engine:
        name = engine.servers.resolve(server)
        if any(table.servers == literal(name) for table in policy.servers):
            message = f"{path} already has a table [policy.servers] for {name}."
            raise UsageError(message, remedy="Edit it there.")
        for error in (await engine.servers.load_unknown([name], patient=True)).values():
            raise error
        text = server_table(name, engine.servers.inventory.tools(name) or ())
    write_out(visible(text))
    if not await Person().agrees(f"Add this to {path}?", yes=yes, nothing="Nothing was written"):
        return 1
    await anyio.to_thread.run_sync(append_policy, path, f"\n{text}")
    write_err(visible(f"Added to {path}.\n"))
    return 0
