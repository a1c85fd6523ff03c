"""Proposes a first policy from the names of tools and their servers' annotations. Pure.

Both may be wrong, so the proposal has the stricter of two effects and a reason in every line. It
applies once a person puts it into the settings file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bridge.catalog.search import words
from bridge.model import Effect, Tool
from bridge.settings.policy import (
    EXFILTRATION,
    MAX_GLOB_CHARS,
    PRIVATE_DATA,
    UNTRUSTED_INPUT,
    literal,
)
from bridge.settings.policy_edit import toml_key, toml_value
from bridge.text import one_line, valid_text, words_in

_REQUESTS = ("resources/read", "prompts/get")
"""The policy's names for requests of the protocol; a tool with such a name gets no line."""


_READING = words_in(
    """
    browse check compare count crawl describe diff download fetch find get grep head help inspect
    list log lookup navigate peek ping query read resolve retrieve scrape search show stat stats
    status tail tree view watch
    """
)
_DESTROYING = words_in(
    """
    delete destroy drop erase force kill prune purge remove reset revoke terminate truncate
    uninstall wipe
    """
)
_CHANGING = words_in(
    """
    add append apply approve archive assign cancel checkout close comment commit copy create
    deploy disable edit enable execute forward insert install invite make merge modify move patch
    pay post publish push put rename reply run save send set share start stop submit transfer update
    upload write
    """
)

_FROM_ANYBODY = words_in(
    """
    article articles browse comment comments crawl discussion email emails feed fetch inbox issue
    issues mail mails message messages news page pages pr pull request requests review reviews rss
    scrape thread threads ticket tickets tweet url web website
    """
)
_PRIVATE = words_in(
    """
    account accounts calendar contact contacts credential credentials customer customers database
    db directory document documents drive email emails env environment event events file files
    filesystem git inbox invoice mail mails memory message messages mysql note notes oracle password
    passwords patient payroll postgres query record records redis repo repository row rows salary
    schema secret secrets sql sqlite table tables token tokens vault
    """
)
_OUTGOING = words_in(
    """
    comment email forward http invite mail notify pay post publish push reply request send share
    submit transfer tweet upload webhook
    """
)
_FETCHING = words_in("browse crawl fetch http navigate scrape url web website")
_LOCAL = words_in("file files filesystem fs git local memory sqlite")
"""Words in the names of servers whose tools write only to this machine."""


def propose(servers: Mapping[str, Sequence[Tool]], silent: Mapping[str, str]) -> str:
    parts = [_HEAD, *(server_table(*item) for item in servers.items())]
    for name, reason in silent.items():
        why = one_line(reason, 160)
        parts.append(
            f"# {_shown(name)} is left out, as it did not say which tools it has: {why}\n"
            "# What it can do is decided by the default for untrusted tools.\n"
        )
    return "\n".join(parts)


_HEAD = """\
# Written by `mcp-code-bridge policy init`, from the names of tools and from what servers say of
# them. Either may be wrong, and a server can lie: check each line, and change what is not so.
# First of all those that read: they are allowed. A tool that has no line, because it is new, say,
# is decided by the default for untrusted tools. The label "private-data" is for tools that may
# return what is yours alone; the word in a name that suggests it stands beside it.

[policy]
pin = true  # ask again about a tool whose schemas or annotations changed since it was allowed

[policy.defaults]
read = "allow"
write = "ask"
destructive = "ask"
untrusted = "ask"  # tools that no server trusted by this file describes

# How much of it a program may do, also of what is allowed. Nothing here knows how much yours need:
# take the "#" away, and `mcp-code-bridge audit stats` shows what was needed until now.
#
# [policy.budgets]
# run_calls = 500                # calls of one run
# run_bytes = "50m"              # of what they return
# server_calls = 200             # calls to one server in one run
# per_minute = { "*" = 600 }     # calls to each server over all runs; { NAME = 60 } for one
"""


def server_table(name: str, tools: Sequence[Tool]) -> str:
    if not _writable(name):
        return f"# {_shown(name)} is left out: a settings file cannot have its name.\n"
    count = f"{len(tools):,} tool{'' if len(tools) == 1 else 's'}"
    key = _key(name)
    lines = [
        f"[policy.servers.{key}]  # {count}",
        "trust = false  # true believes all that it says of its own tools, now and later",
    ]
    named = [tool for tool in tools if _writable(tool.name) and tool.name not in _REQUESTS]
    if named:
        lines += ["", f"[policy.servers.{key}.tools]"]
    read: dict[str, None] = {}
    for tool in named:
        effect, why = _effect(tool)
        because = list(_labels(name, tool, effect))
        labels = f", labels = {_format_list(label for label, _ in because)}" if because else ""
        # No globs: they would allow tools that the server adds later.
        lines.append(f'{_key(tool.name)} = {{ effect = "{effect}"{labels} }}  # {why}')
        lines += [f"#   {label}: {reason}" for label, reason in because]
        if effect == "read":
            labelled = [one for one, _ in because if one in (UNTRUSTED_INPUT, PRIVATE_DATA)]
            read.update(dict.fromkeys(labelled))
    if read:
        # Resources and prompts often have the same content as tools' results.
        same = f"{{ labels = {_format_list(read)} }}  # as its tools have them"
        lines += [f'"{request}" = {same}' for request in _REQUESTS]
    if unwritten := len(tools) - len(named):
        lines.append(f"# {unwritten:,} more tools have no line of their own.")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return toml_key(literal(name))


def _format_list(labels: Iterable[str]) -> str:
    return f"[{', '.join(map(toml_value, labels))}]"


_SEVERITY: Mapping[Effect, int] = {"read": 0, "write": 1, "destructive": 2}


def _effect(tool: Tool) -> tuple[Effect, str]:
    said: tuple[Effect, str] | None = None
    if tool.says_it_reads:
        said = "read", "readOnlyHint true"
    elif (destructive := tool.annotations.get("destructiveHint")) is True:
        said = "destructive", "destructiveHint true"
    elif destructive is False:
        said = "write", "destructiveHint false"
    named = _effect_of_name(tool.name)
    if said is None:
        effect, word = named or ("write", "")
        return effect, f"{word!r} is in its name" if word else "nothing says what it does"
    effect, hint = said
    if named is None or _SEVERITY[effect] >= _SEVERITY[named[0]]:
        return effect, f"its server says so ({hint})"
    return named[0], f"{named[1]!r} is in its name, though its server says {effect!r}"


def _effect_of_name(name: str) -> tuple[Effect, str] | None:
    """Return the strictest effect that a word of a name suggests, and the word.

    For reads and writes only the first two words count: `start_search` is a write.
    """
    name_words = words(name[:200])
    kinds: tuple[tuple[Effect, frozenset[str], Sequence[str]], ...] = (
        ("destructive", _DESTROYING, name_words),
        ("write", _CHANGING, name_words[:2]),
        ("read", _READING, name_words[:2]),
    )
    for effect, telling, where in kinds:
        for word in where:
            if word in telling:
                return effect, word
    return None


def _labels(server: str, tool: Tool, effect: Effect) -> Iterator[tuple[str, str]]:
    own, whose = words(tool.name[:200]), words(server[:200])
    is_open = tool.annotations.get("openWorldHint") is True
    if effect == "read":
        if word := _first([*own, *whose], _FROM_ANYBODY):
            yield UNTRUSTED_INPUT, f"what {word!r} returns may be written by anybody"
        elif is_open:
            yield UNTRUSTED_INPUT, "its server says openWorldHint true"
        if word := _first([*own, *whose], _PRIVATE):
            yield PRIVATE_DATA, f"{word!r}"
        if word := _first([*own, *whose], _FETCHING):
            yield EXFILTRATION, f"an address that {word!r} is given can carry data out"
        return
    word = _first(own, _OUTGOING)
    if word is None and _first(whose, _LOCAL) is None:
        word = _first(own, frozenset({"create"}))
    if word:
        yield EXFILTRATION, f"what {word!r} is given may be seen by others"
    elif is_open:
        yield EXFILTRATION, "its server says openWorldHint true"


def _first(found: Iterable[str], telling: frozenset[str]) -> str | None:
    return next((word for word in found if word in telling), None)


def _shown(name: str) -> str:
    return one_line(name, 60) or "(a name that cannot be shown)"


def _writable(name: str) -> bool:
    short = 0 < len(literal(name)) <= MAX_GLOB_CHARS
    return short and "\0" not in name and valid_text(name) == name
