"""Writes approval questions and reads their answers. Pure.

The first line has the call and the second the reason, because clients show few lines. Names and
values from programs and servers are quoted and cut, with hidden and reversing characters escaped.
"""

from __future__ import annotations

import json
import posixpath
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from bridge.gate.journal import arguments_digest
from bridge.gate.policy import CHANGED, DEFAULTS, CallFacts, Decision
from bridge.model import Effect, HeldCall, Json, Plan, ServerSpec
from bridge.text import escape_look_alikes, is_hidden, look_alikes, mark_gaps

Holds = Literal["call", "run", "session", "always"]  # The scope of an approval.

# Limits on texts of a program, a server or a plan in a question.
MAX_NAME_CHARS = 80  # Of a server, tool or argument.
MAX_PLAN_LINES = 60  # Of a plan, or of a project's definition of a server.
MAX_PLAN_CHARS = 6000  # Of a plan's list.
MAX_DEPTH = 6  # Levels of an argument.
MAX_ITEMS = 30  # Items of each list and object.

UNLISTED = " (the tool describes no such argument)"

WIDTH = 72  # Columns of a line: a terminal has 80, and clients indent questions.

EFFECTS: Mapping[Effect, str] = {
    "read": "read",
    "write": "write",
    "destructive": "destructive, may overwrite or delete",
}

ASKED: Mapping[str, str] = {
    DEFAULTS["read"]: "your policy asks before reads",
    DEFAULTS["write"]: "your policy asks before writes",
    DEFAULTS["destructive"]: "your policy asks before calls that may overwrite or delete data",
    DEFAULTS["untrusted"]: "your policy asks before calls with an unknown effect",
}
"""The defaults of a policy in words for the user."""

TITLES: Mapping[str, str] = {
    "call": "Once",
    "run": "This run, any arguments",
    "session": "12 hours",
    "always": "Always (adds a rule)",
    "no": "No",
}
"""The choices. Clients cut them after some 40 characters."""

_PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")
_MARKDOWN = re.compile(r"[*`<>&\\~]|\][(\[:]|(?<!\w)_|_(?!\w)")
"""Characters that Markdown does not show as they are."""


def question(
    call: CallFacts, asks: Sequence[Decision], choices: Sequence[Holds], arguments: Json
) -> dict[str, Json]:
    """Return the question about a call. `arguments` have no secrets."""
    name = call_name(call)
    lines = [f"Reason: {_reasons(asks)}"]
    if any(ask.rule == CHANGED for ask in asks) and name == str(call):
        # The definition itself is the server's text, and long.
        lines.append(f"`mcp-code-bridge tools {name}` shows its definition")
    values = arguments if isinstance(arguments, Mapping) else {}
    names, unlisted = _names(call, values)
    inline = [(_argument(key, unlisted), values[key]) for key in names]
    if unlisted:
        lines.append(f"The tool does not describe: {_list_names(unlisted)}")
    whole = ", ".join(f"{key}={shown(value, WIDTH * 4)}" for key, value in inline)
    lines.insert(0, f"Allow {name}({whole})?")
    if _is_whole({call.server: {call.tool: values}}) and fits(lines):
        text = _block([*lines, *_digest(call)])
    else:
        # The user must not allow more than the question shows.
        choices = [each for each in choices if each == "call"]
        lines[0] = f"Allow {name}({_heads(inline)})?"
        text = _block([*lines, *argument_lines(call, arguments)], code=True)
    changed = all(ask.rule == CHANGED for ask in asks)
    titles = {**TITLES, **({"always": "Always (accepts this definition)"} if changed else {})}
    return form(text, {key: titles[key] for key in (*choices, "no")})


def _block(lines: Sequence[str], *, code: bool = False) -> str:
    # Markdown does not change indented code.
    indent = "    " if code or any(map(_MARKDOWN.search, lines)) else ""
    return "\n".join(f"{indent}{line}" for line in lines)


def fits(lines: Sequence[str]) -> bool:
    """Return whether a client shows all lines in a terminal of 80 columns.

    Claude Code shows three lines of a question and hides the others.
    """
    columns = (
        "".join("xx" if unicodedata.east_asian_width(each) in "WF" else each for each in line)
        for line in lines
    )
    return sum(len(textwrap.wrap(line, WIDTH)) for line in columns) <= 3


def _reasons(asks: Sequence[Decision]) -> str:
    found = []
    for ask in asks:
        text = ASKED.get(ask.rule) or because(ask)
        found.append(f"{text}, after {_list_led(ask)}" if ask.led else text)
    effect = "" if asks[0].rule in ASKED else f". Effect: {EFFECTS[asks[0].effect]}"
    return f"{'; '.join(found)}{effect}"


def _heads(arguments: Sequence[tuple[str, Json]]) -> str:
    texts = []
    for name, value in arguments[:8]:
        text = f"{name}={shown(value, 80)}"
        texts.append(text if len(text) <= 80 else f"{name}={shown(value, 30)}")
    more = len(arguments) - 8
    return ", ".join([*texts, f"… {more:,} more"] if more > 0 else texts)


def _is_whole(value: Json, depth: int = -2) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return True
    names = value if isinstance(value, Mapping) else ()
    items = list(value.values()) if isinstance(value, Mapping) else value
    return (
        depth < MAX_DEPTH
        and len(value) <= MAX_ITEMS
        and all(len(str(name)) <= MAX_NAME_CHARS for name in names)
        and all(_is_whole(item, depth + 1) for item in items)
    )


def start_question(
    spec: ServerSpec, decision: Decision, choices: Sequence[str]
) -> dict[str, Json] | None:
    """Return the question about the start of a server, or None if it is too long to show whole.

    The values of variables and headers are not part of a definition.
    """
    name = safe_name(spec.name)
    facts = server_lines(spec)
    if sum(map(len, facts)) > MAX_PLAN_CHARS:
        return None
    words = " ".join(map(_whole, [spec.command, *spec.args] if spec.command else [spec.url]))
    verb = "Start" if spec.transport == "stdio" else "Connect to"
    head = [f"{verb} server {name}: {words}?", f"Reason: {because(decision)}"]
    if not fits(head):
        choices = [each for each in choices if each == "once"]
    titles = {"once": "Once", "always": "Always, until its definition changes"}
    text = _block([*head, *facts], code=True)
    return form(text, {**{key: titles[key] for key in choices}, "no": "No"})


def server_lines(spec: ServerSpec) -> list[str]:
    """Return a server's definition, one fact a line, with hidden characters escaped."""
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
    # An escape has at most ten characters, and the limit is twice the room.
    return f'"{_write_out(text, 5 * len(text) + 1)}"'


def plan_question(plan: Plan, shown: str, whole: Sequence[int]) -> dict[str, Json]:
    """Return the question about a plan.

    `whole` has, for each call that the list shows whole, the number of its last line.
    """
    total = len(plan.calls)
    listed, more = visible_lines(shown, MAX_PLAN_LINES, MAX_PLAN_CHARS)
    unseen = total - sum(line <= len(listed) for line in whole)
    lines = [f"Apply {'1 call' if total == 1 else f'{total:,} calls'}: {_subject(plan)}?"]
    rules = dict.fromkeys(held.rule for held in plan.calls if held.action == "ask")
    asked = "; ".join(ASKED.get(rule) or one_line(rule, WIDTH) for rule in rules)
    lines.append(f"Reason: {asked or 'the program ran as a plan, and changed nothing so far'}")
    yes = "Apply it" if total == 1 else f"Apply all {total:,}"
    if unseen:
        lines.append(f"Not shown whole: {unseen:,} of {total:,}")
        yes = f"{yes}, {unseen:,} not shown whole"
    lines += [f"  {line}" for line in listed]
    if more:
        lines.append(f"Cut: {more:,} more lines are in the result that the plan came with.")
    if unseen:
        lines.append("After a No, the program can plan fewer calls, or smaller ones, at a time.")
    return form(_block(lines, code=True), {"apply": yes, "no": "No"})


def _subject(plan: Plan) -> str:
    counts = Counter(map(call_name, plan.calls))
    if len(plan.calls) == 1:
        held = plan.calls[0]
        names = [(_argument(key, held.unlisted), held.arguments[key]) for key in held.arguments]
        return f"{next(iter(counts))}({_heads(names)})"
    worst = {call_name(held) for held in plan.calls if held.effect == "destructive"}
    ranked = sorted(counts, key=lambda each: (each not in worst, -counts[each]))
    kinds = [f"{counts[each]:,} × {each}" for each in ranked[:3]]
    if rest := ranked[3:]:
        kinds.append(f"{sum(counts[each] for each in rest):,} of {len(rest):,} other tools")
    under = _common_directory([held.arguments for held in plan.calls])
    text = ", ".join(kinds)
    return f"{text} under {under}" if under and not any(h.cut for h in plan.calls) else text


def _common_directory(arguments: Sequence[Json]) -> str:
    """Return the directory that holds every path among arguments; empty unless that is certain.

    A text with a slash may be a relative path, or have the result of a held call in it.
    """
    paths: list[str] = []
    pending: list[Json] = list(arguments)
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping | list | tuple):
            pending += value.values() if isinstance(value, Mapping) else value
        elif isinstance(value, str) and any(each in value for each in "/\\~‹"):
            if not (value.startswith("/") and _PLAIN.fullmatch(value)):
                return ""
            if posixpath.normpath(value) != value:
                return ""
            paths.append(posixpath.dirname(value))
    directory = posixpath.commonpath(paths) if len(paths) >= len(arguments) else "/"
    return "" if directory in ("/", "//") or len(directory) > MAX_NAME_CHARS else directory


def list_offered(asked: Mapping[str, Json]) -> Sequence[str]:
    schema: Json = asked["requestedSchema"]
    return list(schema["properties"]["decision"]["enum"])


def read_answer(answer: Mapping[str, Json], offered: Sequence[str], alone: str) -> str:
    """Return the decision in an `ElicitResult`: an offered one, "no", or "" for none.

    Clients without forms let users accept without a decision, which means `alone`.
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


AUTOMATIC_SECONDS = 0.15  # No person answers a question faster.

HEADLESS_SECONDS = 2.0
"""The limit for clients that are known to answer without a user, on a busy machine."""


class Headless(NamedTuple):
    """A client's non-interactive mode, which answers questions itself from this version on."""

    command: str
    since: tuple[int, ...]
    action: str


_HEADLESS: Mapping[str, Headless] = {
    "claude-code": Headless("claude -p", (2, 1), "cancel"),
    "codex-mcp-client": Headless("codex exec", (0, 169), "decline"),
    "copilot-cli": Headless("copilot -p", (1, 0), "decline"),
}
"""Modes by the prefix of the client's name. docs/clients.md has the measurements."""


def answered_by(client: str, action: object, seconds: float) -> str:
    """Return the program that answered a question, or an empty string if a person may have
    answered."""
    name, _, version = client.partition(" ")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    mode = next((mode for each, mode in _HEADLESS.items() if name.startswith(each)), None)
    if mode is not None and numbers >= mode.since and action == mode.action:
        return f"`{mode.command}`" if seconds < HEADLESS_SECONDS else ""
    return f"the client {client}".rstrip() if seconds < AUTOMATIC_SECONDS else ""


def was_asked(what: str, decision: str) -> str:
    """Return a sentence on a question that `read_answer` found not accepted."""
    said = "declined" if decision else "gave no answer"
    return f"The client was asked whether {what}, and {said}."


def call_name(call: CallFacts | HeldCall) -> str:
    return f"{safe_name(call.server)}.{safe_name(call.tool)}"


def safe_name(name: str, *, listed: bool = True, room: int = MAX_NAME_CHARS) -> str:
    """Return a name that a question can show: unchanged if plain, else quoted and cut.

    Look-alike letters are escaped. A name that a server lists may be in one script.
    """
    if len(name) <= MAX_NAME_CHARS and _PLAIN.fullmatch(name):
        return name
    # After quoting, which would double the backslashes.
    return escape_look_alikes(quote_text(name, room), all_letters=not listed)


def because(ask: Decision) -> str:
    rule = one_line(ask.rule, 400)
    return f"{rule} ({one_line(ask.reason, 400)})" if ask.reason else rule


def led_by(asks: Sequence[Decision]) -> str:
    """Return a sentence on the calls that led to decisions; empty if there are none."""
    return "".join(f" Earlier: {_list_led(ask)}." for ask in asks if ask.led)


def _list_led(ask: Decision) -> str:
    return _list_names(ask.led, room=160)


def argument_lines(call: CallFacts, arguments: Json) -> list[str]:
    """Return a call's arguments, one a line. Arguments that the tool describes come first."""
    if not isinstance(arguments, Mapping) or not arguments:
        return ["  without arguments"]
    names, unlisted = _names(call, arguments)
    listed = names[:25]
    room = max(120, 2400 // len(listed))
    lines = [
        f"  {_argument(name, unlisted)}{UNLISTED if name in unlisted else ''}"
        f" = {shown(arguments[name], room)}"
        for name in listed
    ]
    if rest := names[len(listed) :]:
        lines.append(f"  and {len(rest)} more arguments: {_list_names(rest)}")
    return [*lines, *_digest(call)]


def _names(call: CallFacts, arguments: Mapping[str, Json]) -> tuple[list[str], Sequence[str]]:
    """Return all argument names, described ones first, and the names that the tool does not
    describe."""
    known = call.schema.get("properties")
    described = [name for name in known if name in arguments] if isinstance(known, Mapping) else []
    return list(dict.fromkeys([*described, *arguments])), call.find_unlisted(arguments)


def _argument(name: str, unlisted: Sequence[str]) -> str:
    return safe_name(name, listed=name not in unlisted)


def _digest(call: CallFacts) -> list[str]:
    if not call.arguments:
        return []
    whole = arguments_digest(call.arguments).removeprefix("sha256:")[:16]
    return [f"Arguments digest: {whole or 'nested too deeply for one'}"]


def shown(value: Json, room: int, depth: int = 0) -> str:
    """Return a value on one line, cut to about `room` characters, with the size of the cut part."""
    if isinstance(value, str):
        return quote_text(value, room)
    if isinstance(value, Mapping):
        if not value or depth >= MAX_DEPTH:
            return f"{{{len(value)} keys}}" if value else "{}"
        pairs = ((safe_name(str(key)), item) for key, item in value.items())
        return f"{{{_items(pairs, len(value), room, depth)}}}"
    if isinstance(value, list | tuple):
        if not value or depth >= MAX_DEPTH:
            return f"[{len(value)} items]" if value else "[]"
        return f"[{_items((('', item) for item in value), len(value), room, depth)}]"
    text = json.dumps(value, default=str)
    return text if len(text) <= room else f"{text[:room]}… ({len(text):,} characters)"


def quote_text(text: str, room: int) -> str:
    """Return a text in quotes on one line. A long text keeps its beginning and end."""
    if len(text) <= room:
        return f'"{_write_out(text, room)}"'
    tail = room // 4
    lines = text.count("\n") + 1
    size = f"{len(text):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")
    head = _write_out(text[: room - tail], room - tail)
    return f'"{head}" … "{_write_out(text[-tail:], tail)}" ({size}, shortened)'


def one_line(text: str, room: int) -> str:
    """Return a text on one line of about `room` characters, with hidden characters escaped."""
    cut = "" if len(text) <= room else "…"
    return f"{_write_out(text[:room], room, quotes=False)}{cut}"


def visible_lines(text: str, lines: int, characters: int) -> tuple[list[str], int]:
    """Return a text's first lines, with hidden characters escaped, and the count of others."""
    split = text.split("\n")
    found: list[str] = []
    for line in split[:lines]:
        # The whole line: an escape has at most ten characters.
        written = _write_out(line, 5 * len(line), quotes=False, gaps=False)
        # A reader may overlook text behind a wide gap.
        written = mark_gaps(written, least=60)
        characters -= len(written)
        if characters < 0:
            break
        found.append(written)
    return found, len(split) - len(found)


def _write_out(text: str, room: int, *, quotes: bool = True, gaps: bool = True) -> str:
    """Return a text with hidden, reversing or stacking characters escaped; at most 2 × `room`."""
    found: list[str] = []
    marks, alike = 0, look_alikes(text)
    for place, character in enumerate(text):
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if character == "\n":
            found.append("\\n")
        elif quotes and character in '"\\':
            found.append(f"\\{character}")
        elif is_hidden(character) or marks > 2 or place in alike:
            found.append(character.encode("unicode_escape").decode("ascii"))
        else:
            found.append(character)
    written = "".join(found)
    written = mark_gaps(written) if gaps else written
    return written if len(written) <= 2 * room else f"{written[: 2 * room]}…"


def form(message: str, titles: Mapping[str, str]) -> dict[str, Json]:
    # All clients know `enumNames`, and older ones no `oneOf`. Without a default, one key does not
    # allow a call.
    decision = {
        "type": "string",
        "title": "Decision",
        "enum": list(titles),
        "enumNames": list(titles.values()),
    }
    schema = {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}
    return {"mode": "form", "message": message.rstrip("\n"), "requestedSchema": schema}


def _list_names(names: Sequence[str], room: int = MAX_NAME_CHARS) -> str:
    found = ", ".join(safe_name(name, room=room) for name in names[:8])
    return found if len(names) <= 8 else f"{found} and {len(names) - 8:,} more"


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
