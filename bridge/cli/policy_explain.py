"""`policy explain`: the decision on one call, and how it comes about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from bridge.cli import completion
from bridge.cli.engine import open_engine
from bridge.cli.options import AsJson, Server, arg
from bridge.cli.output import visible, write_json, write_out, write_warning
from bridge.cli.status import waiting
from bridge.errors import UsageError
from bridge.gate.decision import CHANGED, CallFacts, Decision, strictest
from bridge.gate.pins import Pins
from bridge.gate.pipeline import GET_PROMPT, READ_RESOURCE
from bridge.gate.policy import OPEN, Step
from bridge.gate.question import because
from bridge.model import Action, Effect, Json, Tool, short_digest
from bridge.settings import Settings, store_of
from bridge.settings.globs import any_matcher, literal
from bridge.settings.policy import FlowRule
from bridge.settings.policy_edit import rule_for, toml_value

if TYPE_CHECKING:
    from bridge.runs import Engine


@dataclass(frozen=True, kw_only=True)
class _Explanation:
    """All there is to say on a call.

    Attributes:
        base: What rules and defaults say.
        final: What is decided with the pin; flow rules depend on the run.
        change: What of the tool changed since it was allowed.
        flows: Those that may have a say, by what has been read before.
        start: Whether the server is started for it.
    """

    call: CallFacts
    start: Decision
    base: Decision
    final: Decision
    steps: Sequence[Step]
    change: str
    flows: Sequence[FlowRule]
    known: bool


async def explain(
    settings: Settings,
    *,
    server: Server,
    tool: Annotated[str, arg("TOOL", "its name or alias", completion.tools)],
    arguments: Annotated[list[str] | None, arg("ARGS", "a JSON object, or KEY=VALUE words")] = None,
    as_json: AsJson = False,
) -> int:
    """Explain the decision on one call.

    Shows the rule that decides, and the lines of config.toml that would change the decision.

    Examples:
        policy explain github create_issue repo=o/r

    Raises:
        UsageError: There is no such server or tool, or the arguments are no JSON object.
    """
    given = _given(arguments or ())
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
        arguments=given,
        definition=definition,
        server_definition=spec.definition,
        own=not spec.written,
    )
    effect: Effect | None = "read" if requested else None
    base, change = policy.decide(call, effect), ""
    if policy.spec.present and policy.spec.pin and definition is not None:
        change = Pins(store_of(settings), policy.pins_fully).change(definition, spec.definition)
    asks = Decision(action="ask", rule=CHANGED, reason=change) if change else None
    found = _Explanation(
        call=call,
        start=start,
        base=base,
        final=strictest(base, asks if base.action != "deny" else None),
        steps=policy.explain(call, effect),
        change=change,
        flows=[
            flow
            for flow in (policy.spec.flows if policy.spec.present else ())
            if flow.to & base.labels or (flow.to_servers and any_matcher(flow.to_servers)(name))
        ],
        known=requested or definition is not None,
    )
    if as_json:
        write_json(_document(found), indent=2)
    else:
        write_out(visible("\n".join(_lines(found)) + "\n"))
    return 0


def _given(words: Sequence[str]) -> dict[str, Json]:
    """Return the arguments that were written as a JSON object, or as KEY=VALUE words."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            found = json.loads(words[0])
        except (ValueError, RecursionError) as error:
            raise UsageError(f"ARGS: {words[0]!r:.200} is no JSON object: {error}.") from None
        assert isinstance(found, dict)
        return found
    given: dict[str, Json] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise UsageError(f"ARGS: {word!r:.200} is neither KEY=VALUE nor a JSON object.")
        try:
            given[key] = json.loads(value)
        except (ValueError, RecursionError):
            # What is no JSON is a text, as most values are.
            given[key] = value
    return given


async def _definition(engine: Engine, server: str, tool: str) -> Tool | None:
    """Return a tool by its name or alias; None if its server cannot be asked."""
    with waiting(f"asking {server} for its tools"):
        errors = await engine.servers.load_unknown([server], patient=True)
    for error in errors.values():
        write_warning(f"{server}: {error} The explanation assumes that it has this tool.")
        return None
    # Which raises what there is to say if there is none.
    docs = await engine.guide.tool_docs(server, tool, "summary")
    return engine.servers.inventory.tool(server, docs["tool"])


def _lines(found: _Explanation) -> list[str]:
    call, final = found.call, found.final
    shown = ", ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items()
    )
    lines = [f"{call}({shown:.1000}) -> {final.action}", _line("decided by", final.rule)]
    if final.reason:
        lines.append(_line("because", final.reason))
    words = {"allow": "allowed", "ask": "asked about", "deny": "denied"}
    start = f"{words[found.start.action]} ({because(found.start)})"
    lines.append(_line("server", f"{short_digest(call.server_definition)}: its start is {start}"))
    effects = [step for step in found.steps if step.about == "effect"]
    lines += [_line("effect", f"{step.name}: {step.why}") for step in effects]
    labels = [f"{step.name} ({step.why})" for step in found.steps if step.about == "label"]
    lines.append(_line("labels", "; ".join(labels) or "none"))
    lines += [
        _line("rule", f"{step.name!r} ({step.action}) {_verdict(step)}: {step.why}")
        for step in found.steps
        if step.about == "rule"
    ]
    if found.final.rule != OPEN:
        lines.append(_line("definition", _pin_state(found)))
        for rule in found.flows:
            read = " and ".join(
                [*sorted(rule.after), *(f"servers {g}" for g in rule.after_servers)]
            )
            when = f"{rule.name!r} ({rule.action}) decides once a run has read from {read}"
            lines.append(_line("flow rules", when))
    lines += ["", *_remedy(found)]
    return lines


def _line(head: str, text: str) -> str:
    return f"  {head + ':':<12} {text}"


def _verdict(step: Step) -> str:
    if step.applies:
        return "decides"
    return "is not reached" if step.why.endswith(" decided") else "does not match"


def _pin_state(found: _Explanation) -> str:
    if found.change:
        return f"changed since it was allowed: {found.change}"
    if not found.known:
        return "not known, since the server could not be asked"
    if found.call.definition is None:
        return "none: such requests are the protocol's"
    return "unchanged"


def _remedy(found: _Explanation) -> list[str]:
    """Return what to write for another decision on calls of this tool."""
    call, final = found.call, found.final
    if final.rule == OPEN:
        return ["There is no [policy]. Run `mcp-code-bridge policy init` to create one."]
    deciding = next((s for s in found.steps if s.about == "rule" and s.applies), None)
    wanted: Action = "ask" if final.action == "allow" else "allow"
    lines = [f"To {wanted} this call, add to config.toml:"]
    if deciding is not None:
        lines[0] = f"To {wanted} this call, add to config.toml before the rule {deciding.name!r}:"
    lines += [f"  {line}" for line in rule_for(f"{wanted} {call}", call.server, call.tool, wanted)]
    if final.rule == CHANGED:
        lines = ['Answer "always" once when asked: the definition is remembered as it is now.']
    elif deciding is None and any(
        s.why.startswith("unknown") for s in found.steps if s.about == "effect"
    ):
        server, tool = toml_value(literal(call.server)), toml_value(literal(call.tool))
        lines += [
            "or say what the tool does, and leave the decision to the default for that:",
            f"  [policy.servers.{server}.tools.{tool}]",
            '  effect = "read"  # or "write", or "destructive"',
        ]
    return lines


def _document(found: _Explanation) -> Mapping[str, Json]:
    call, final = found.call, found.final
    return {
        "server": call.server,
        "tool": call.tool,
        "definition": call.server_definition,
        "start": {"action": found.start.action, "rule": found.start.rule},
        "action": final.action,
        "rule": final.rule,
        "reason": final.reason,
        "effect": found.base.effect,
        "labels": sorted(found.base.labels),
        "changed": found.change,
        "steps": [asdict(step) for step in found.steps],
        "flow": [
            {
                "name": rule.name,
                "action": rule.action,
                "after": sorted(rule.after),
                "afterServers": list(rule.after_servers),
            }
            for rule in found.flows
        ],
    }
