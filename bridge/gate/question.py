"""The questions that ask a person for an approval, and the reading of their answers. Pure.

Owns the wording and the form. What comes from a program or a server cannot pass for anything else:
names and values stand on lines of their own, quoted and cut, with characters that hide, reverse or
break text written out. The lines are indented, so that clients do not render them as Markdown.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from bridge.gate.canonical import arguments_digest
from bridge.gate.decision import CHANGED, CallFacts, Decision
from bridge.model import Effect, Json, Plan, ServerSpec
from bridge.text import escape_look_alikes, is_hidden, look_alikes

Holds = Literal["call", "run", "session", "always"]  # What an approval applies to.
MAX_ARGUMENTS = 25  # Arguments of a call that are shown; some more are named.

MAX_VALUES_CHARS = 2400
"""Characters of all arguments: some thirty lines, as many as a person reads before an answer."""

LEAST_VALUE_CHARS = 120  # Characters of one argument, however many there are.
MAX_NAME_CHARS = 80  # Characters of the name of a server, tool or argument.
MAX_REASON_CHARS = 400  # Characters of a rule's name or reason.
MAX_LED = 8  # Earlier calls and kept things that are named as the reason.
MAX_DEPTH = 6  # Levels of an argument that are shown.
MAX_ITEMS = 30  # Items of each list and object that are shown.
MAX_KINDS = 12  # Tools named in the counts of a plan.

MAX_PLAN_LINES = 60
MAX_PLAN_CHARS = 6000
"""Of a plan's list. Clients show little; the run that made the plan returned all of it."""

DIGEST_CHARS = 16  # Characters of the digest of a call's arguments; the audit log has all of it.

UNLISTED = " (the tool describes no such argument)"

EFFECTS: Mapping[Effect, str] = {
    "read": "reads only",
    "write": "changes something",
    "destructive": "may overwrite or delete something",
}

_INDENT = "    "
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")
_GAP = re.compile(r" {9,}")


def question(
    call: CallFacts, asks: Sequence[Decision], choices: Sequence[Holds], arguments: Json
) -> dict[str, Json]:
    """Return the parameters of the question whether a call may be made.

    Args:
        asks: The decisions that ask, the policy's own first.
        choices: What an approval may apply to.
        arguments: Without secrets.
    """
    name = named(call)
    lines = [f"mcp-code-bridge: may a program call {name}?", ""]
    lines.append(f"{_INDENT}it {EFFECTS[asks[0].effect]}, as far as the policy knows")
    for ask in asks:
        lines.append(f"{_INDENT}asked because of: {because(ask)}")
        if ask.led:
            lines.append(f"{_INDENT}what came before: {_led(ask)}")
        if ask.rule == CHANGED and name == str(call):
            # Not in the question: it is the server's text, and long.
            lines.append(f"{_INDENT}as it is now: `mcp-code-bridge tools {name}` shows it")
    lines += ["", *argument_lines(call, arguments)]
    titles = {
        "call": "Yes, this one call",
        "run": f"Yes, and every other call of {name} in this run, with whatever arguments",
        "session": f"Yes, and every call of {name} until the bridge ends (at most 12 hours)",
        "always": f"Yes, always: {_always(name, asks)}",
    }
    return form("\n".join(lines), {**{key: titles[key] for key in choices}, "no": "No"})


def start_question(
    spec: ServerSpec, decision: Decision, choices: Sequence[str]
) -> dict[str, Json] | None:
    """Return the parameters of the question whether a server may be started or connected to.

    None if it is too long to be shown whole: a person must see all that they approve. The values
    of variables and headers are not shown: they are not part of a definition.

    Args:
        choices: "once", and "always" if the person may choose that.
    """
    name = safe_name(spec.name)
    verb = "start" if spec.transport == "stdio" else "be connected to"
    lines = [f"mcp-code-bridge: may the server {name} {verb}?", ""]
    lines.append(f"{_INDENT}asked because of: {because(decision)}")
    facts = server_lines(spec)
    if sum(map(len, facts)) > MAX_PLAN_CHARS:
        return None
    lines += [f"{_INDENT}{line}" for line in facts]
    titles = {"once": "Yes, this once", "always": "Yes, always, as it is defined now"}
    return form("\n".join(lines), {**{key: titles[key] for key in choices}, "no": "No"})


def server_lines(spec: ServerSpec) -> list[str]:
    """Return a server's whole definition, one fact a line, with hidden characters written out."""
    facts: Mapping[str, Sequence[str]] = {
        "command": [spec.command],
        "arguments": spec.args,
        "directory": [spec.cwd or ""],
        "url": [spec.url],
        "variables": sorted(spec.env),
        "headers": sorted(spec.headers),
        "definition": [spec.definition],
        "defined in": [str(spec.source)],
    }
    return [
        f"{name}: {' '.join(map(_whole, values))}" for name, values in facts.items() if any(values)
    ]


def _whole(text: str) -> str:
    # What is written out takes ten characters at most, and twice the room is what there is.
    return f'"{_written(text, 5 * len(text) + 1)}"'


def plan_question(plan: Plan, shown: str, whole: Sequence[int]) -> dict[str, Json]:
    """Return the parameters of the question whether a plan may be carried out.

    Args:
        shown: The list of its calls; where it has to be cut, the calls are counted by tool as well.
        whole: For each call of which nothing is cut there, the number of its last line.
    """
    total = len(plan.calls)
    calls = "one call" if total == 1 else f"{total:,} calls"
    listed, more = visible_lines(shown, MAX_PLAN_LINES, MAX_PLAN_CHARS)
    unseen = total - sum(line <= len(listed) for line in whole)
    how, yes = "exactly as listed", "Yes, make it" if total == 1 else f"Yes, make all {total:,}"
    if unseen and total == 1:
        how, yes = "which is not shown whole", f"{yes}, though it is not shown whole"
    elif unseen:
        how = f"{unseen:,} of them not shown whole"
        yes = f"{yes}, also the {unseen:,} not shown whole"
    lines = [f"mcp-code-bridge: may {calls} of a plan be made, {how}?", ""]
    if more:
        lines += [*_counts(plan), ""]
    lines += [f"{_INDENT}{line}" for line in listed]
    if more:
        lines += ["", f"Cut: {more:,} more lines are in the result that the plan came with."]
    if unseen:
        lines += ["", "After a No, the program can plan fewer calls, or smaller ones, at a time."]
    return form("\n".join(lines), {"apply": yes, "no": "No"})


def _counts(plan: Plan) -> list[str]:
    counts = Counter(f"{safe_name(held.server)}.{safe_name(held.tool)}" for held in plan.calls)
    kinds = list(counts.items())
    lines = [f"{_INDENT}{count:,} × {name}" for name, count in kinds[:MAX_KINDS]]
    if len(kinds) > MAX_KINDS:
        rest = sum(count for _, count in kinds[MAX_KINDS:])
        lines.append(f"{_INDENT}{rest:,} of {len(kinds) - MAX_KINDS} other tools")
    return lines


def read_answer(answer: Mapping[str, Json], offered: Sequence[str], alone: str) -> str:
    """Return the decision in an `ElicitResult`: one of those offered, "no", or "" for none.

    Args:
        alone: What it means to accept without a decision, as clients let people who show no forms.
    """
    action = answer.get("action")
    if action == "decline":
        return "no"
    if action != "accept":
        return ""
    content = answer.get("content")
    decision = content.get("decision") if isinstance(content, Mapping) else None
    if decision is None:
        return alone
    return decision if isinstance(decision, str) and decision in offered else "no"


def named(call: CallFacts) -> str:
    """Return a call's server and tool, so that they can be shown."""
    return f"{safe_name(call.server)}.{safe_name(call.tool)}"


def safe_name(name: str, *, listed: bool = True) -> str:
    """Return a name that can be shown: as it is if it is plain, or else quoted and cut.

    Letters that may pass for others are written out.

    Args:
        listed: Whether a server lists it, so that it may be in any one script.
    """
    if len(name) <= MAX_NAME_CHARS and _PLAIN.fullmatch(name):
        return name
    # After that: in quotes a backslash would be doubled.
    return escape_look_alikes(quoted(name, MAX_NAME_CHARS), all_letters=not listed)


def because(ask: Decision) -> str:
    """Return what asks and why, on one line."""
    rule = one_line(ask.rule, MAX_REASON_CHARS)
    return f"{rule} ({one_line(ask.reason, MAX_REASON_CHARS)})" if ask.reason else rule


def led_by(asks: Sequence[Decision]) -> str:
    """Return what led to decisions, as a sentence to go on with; empty if nothing did."""
    return "".join(f" What came before: {_led(ask)}." for ask in asks if ask.led)


def _led(ask: Decision) -> str:
    found = ", ".join(
        name
        if len(name) <= MAX_NAME_CHARS and _PLAIN.fullmatch(name)
        else escape_look_alikes(quoted(name, 160))
        for name in ask.led[:MAX_LED]
    )
    more = len(ask.led) - MAX_LED
    return f"{found} and {more:,} more" if more > 0 else found


def argument_lines(call: CallFacts, arguments: Json) -> list[str]:
    """Return a call's arguments, one on each line; those that the tool describes first."""
    if not isinstance(arguments, Mapping) or not arguments:
        return [f"{_INDENT}without arguments"]
    known = () if call.definition is None else call.definition.input_schema.get("properties")
    described = [name for name in known if name in arguments] if isinstance(known, Mapping) else []
    names = list(dict.fromkeys([*described, *arguments]))
    listed = names[:MAX_ARGUMENTS]
    room = max(LEAST_VALUE_CHARS, MAX_VALUES_CHARS // len(listed))
    unlisted = call.unlisted(listed)
    lines = [
        f"{_INDENT}{safe_name(name, listed=name not in unlisted)}"
        f"{UNLISTED if name in unlisted else ''} = {shown(arguments[name], room)}"
        for name in listed
    ]
    if len(names) > len(listed):
        rest = names[len(listed) :]
        lines.append(f"{_INDENT}and {len(rest)} more arguments: {_listed(rest, MAX_LED)}")
    whole = arguments_digest(call.arguments).removeprefix("sha256:")[:DIGEST_CHARS]
    return [*lines, f"{_INDENT}sha256 of all arguments: {whole or 'nested too deeply for one'}"]


def shown(value: Json, room: int, depth: int = 0) -> str:
    """Return a value on one line, cut to about `room` characters, with what was left out."""
    if isinstance(value, str):
        return quoted(value, room)
    if isinstance(value, Mapping):
        if not value or depth >= MAX_DEPTH:
            return f"{{{len(value)} keys}}" if value else "{}"
        pairs = ((safe_name(str(key)), item) for key, item in value.items())
        return f"{{{_items(pairs, len(value), room, depth)}}}"
    if isinstance(value, list | tuple):
        if not value or depth >= MAX_DEPTH:
            return f"[{len(value)} items]" if value else "[]"
        return f"[{_items((('', item) for item in value), len(value), room, depth)}]"
    return _cut(json.dumps(value, default=str), room)


def quoted(text: str, room: int) -> str:
    """Return a text in quotes on one line, with its beginning and end if it is long."""
    if len(text) <= room:
        return f'"{_written(text, room)}"'
    tail = room // 4
    lines = text.count("\n") + 1
    size = f"{len(text):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")
    head = _written(text[: room - tail], room - tail)
    return f'"{head}" … "{_written(text[-tail:], tail)}" ({size}, shortened)'


def one_line(text: str, room: int) -> str:
    """Return a text on one line and not much longer, with nothing hidden in it."""
    cut = "" if len(text) <= room else "…"
    return f"{_written(text[:room], room, quotes=False)}{cut}"


def visible_lines(text: str, lines: int, characters: int) -> tuple[list[str], int]:
    """Return a text's first lines, with nothing hidden in them, and how many more there are."""
    split = text.split("\n")
    found: list[str] = []
    for line in split[:lines]:
        # All of it: what is written out takes ten characters at most.
        written = _written(line, 5 * len(line), quotes=False, gaps=False)
        # Text behind a wide gap might not be seen.
        written = re.sub(r" {60,}", lambda gap: f"[{len(gap.group())} spaces]", written)
        characters -= len(written)
        if characters < 0:
            break
        found.append(written)
    return found, len(split) - len(found)


def _written(text: str, room: int, *, quotes: bool = True, gaps: bool = True) -> str:
    """Return a text with what hides, turns, breaks or stacks written out; at most twice `room`."""
    found: list[str] = []
    marks, alike = 0, look_alikes(text)
    for place, character in enumerate(text):
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if character == "\n":
            found.append("\\n")
        elif quotes and character in '"\\':
            found.append(f"\\{character}")
        elif is_hidden(character) or marks > 2 or place in alike:
            found.append(character.encode("unicode_escape").decode("ascii"))
        else:
            found.append(character)
    written = "".join(found)
    if gaps:
        # Else what stands behind them would begin another line where lines are wrapped.
        written = _GAP.sub(lambda gap: f"[{len(gap.group())} spaces]", written)
    return written if len(written) <= 2 * room else f"{written[: 2 * room]}…"


def form(message: str, titles: Mapping[str, str]) -> dict[str, Json]:
    """Return the parameters of a question with a choice of answers, each with its title."""
    # Titles stand in `enumNames`: clients of either era take them, and older ones no `oneOf`.
    # There is no default, so that nothing is allowed by only pressing a key.
    decision = {
        "type": "string",
        "title": "Decision",
        "enum": list(titles),
        "enumNames": list(titles.values()),
    }
    schema = {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}
    return {"mode": "form", "message": message.rstrip("\n"), "requestedSchema": schema}


def _always(name: str, asks: Sequence[Decision]) -> str:
    if writes_rule(asks):
        return f"write a rule into the policy that allows {name} as it is defined now"
    return f"take {name} from now on as it is defined now"


def writes_rule(asks: Sequence[Decision]) -> bool:
    """Return whether "always" needs a rule, or only the tool's new definition to be remembered."""
    return any(ask.rule != CHANGED for ask in asks)


def _listed(names: Sequence[str], most: int) -> str:
    found = ", ".join(safe_name(name) for name in names[:most])
    return found if len(names) <= most else f"{found} and {len(names) - most:,} more"


def _items(pairs: Iterable[tuple[str, Json]], count: int, room: int, depth: int) -> str:
    found: list[str] = []
    for number, (name, item) in enumerate(pairs):
        if room <= 0 or number >= MAX_ITEMS:
            found.append(f"… {count - number:,} more")
            break
        share = max(40, room // (min(count, MAX_ITEMS) - number))
        text = shown(item, share, depth + 1)
        found.append(f"{name}: {text}" if name else text)
        room -= len(found[-1])
    return ", ".join(found)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[:room]}… ({len(text):,} characters)"
