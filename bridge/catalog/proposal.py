"""A first policy, proposed from what is configured. Pure.

Owns what a tool is taken to do, and which labels it gets, by its name and by what its server says
of it; and the text of the proposal. Both can be wrong, and a server can lie: of two readings the
stricter one is proposed, every line says why it stands there, and nothing of it is in force until
somebody puts it into the settings file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bridge.catalog.prose import one_line
from bridge.catalog.words import words
from bridge.model import Effect, Tool
from bridge.settings import globs
from bridge.settings.policy import EXFILTRATION, PRIVATE_DATA, UNTRUSTED_INPUT
from bridge.settings.policy_edit import toml_value
from bridge.text import valid_text

MAX_TOOLS = 500
"""Of one server that get a line; no server in use has as many, and the file has to be read."""

MAX_SERVERS = 200

_SHOWN_NAMES = 3
_NAME_CHARS = 60
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LEAST_GROUP = 3

_READING = frozenset(
    """
    browse check compare count crawl describe diff download fetch find get grep head help inspect
    list log lookup navigate peek ping query read resolve retrieve scrape search show stat stats
    status tail tree view watch
    """.split()  # noqa: SIM905 - as words they can be read
)
_DESTROYING = frozenset(
    """
    delete destroy drop erase force kill prune purge remove reset revoke terminate truncate
    uninstall wipe
    """.split()  # noqa: SIM905 - as words they can be read
)
_CHANGING = frozenset(
    """
    add append apply approve archive assign cancel checkout close comment commit convert copy create
    deploy disable edit enable execute forward insert install invite make merge modify move patch
    pay post publish push put rename reply run save send set share start stop submit transfer update
    upload write
    """.split()  # noqa: SIM905 - as words they can be read
)

_FROM_ANYBODY = frozenset(
    """
    article articles browse comment comments crawl discussion email emails feed fetch inbox issue
    issues mail mails message messages news page pages pr pull request requests review reviews rss
    scrape thread threads ticket tickets tweet url web website
    """.split()  # noqa: SIM905 - as words they can be read
)
_PRIVATE = frozenset(
    """
    calendar contact contacts customer customers database db directory document documents drive
    email emails event events file files filesystem inbox invoice mail mails message messages mysql
    notes oracle patient payroll postgres query record records redis row rows salary schema secret
    secrets sql sqlite table tables
    """.split()  # noqa: SIM905 - as words they can be read
)
_OUTGOING = frozenset(
    """
    comment email forward http invite mail notify pay post publish push reply request send share
    submit transfer tweet upload webhook
    """.split()  # noqa: SIM905 - as words they can be read
)
_FETCHING = frozenset(
    ["browse", "crawl", "fetch", "http", "navigate", "scrape", "url", "web", "website"]
)
_OF_READS = (UNTRUSTED_INPUT, PRIVATE_DATA)
_LOCAL = frozenset(["file", "files", "filesystem", "fs", "local", "memory", "sqlite"])
"""Of servers: what these create stays on the machine."""


@dataclass(frozen=True, kw_only=True)
class _Proposal:
    """What is proposed for a tool.

    Attributes:
        why: Of the effect.
        because: Label to why.
    """

    effect: Effect
    why: str
    because: tuple[tuple[str, str], ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for label, _ in self.because)


def propose(servers: Mapping[str, Sequence[Tool]], silent: Mapping[str, str]) -> str:
    """Return the text of a policy, to be reviewed by a person.

    Args:
        servers: Their tools, as far as they said which they have.
        silent: Servers that did not, with the reason.
    """
    parts = [_HEAD, *(_server(*item) for item in list(servers.items())[:MAX_SERVERS])]
    if len(servers) > MAX_SERVERS:
        parts.append(f"# {len(servers) - MAX_SERVERS:,} more servers are left out.\n")
    for name, reason in list(silent.items())[:MAX_SERVERS]:
        why = one_line(reason, 160)
        parts.append(
            f"# {_shown(name)} is left out, as it did not say which tools it has: {why}\n"
            "# What it can do is decided by the default for untrusted tools.\n"
        )
    return "\n".join(parts)


_HEAD = """\
# Proposed by `mcp-code-bridge policy init`, from the names of tools and from what servers say of
# them. Either may be wrong, and a server can lie: check each line, and change what is not so.
# A tool that matches no line is decided by the default for untrusted tools.

[policy]
pin = true  # ask again about a tool whose description or schema changed since it was allowed

[policy.defaults]
read = "allow"
write = "ask"
destructive = "ask"
untrusted = "ask"  # tools of which nobody whom this file believes says what they do
"""


def _server(name: str, tools: Sequence[Tool]) -> str:
    if not _writable(name):
        return f"# {_shown(name)} is left out: a settings file cannot have its name.\n"
    count = f"{len(tools):,} tool{'' if len(tools) == 1 else 's'}"
    key = globs.literal(name)
    key = key if _BARE.fullmatch(key) else toml_value(key)
    lines = [
        f"[policy.servers.{key}]  # {count}",
        "trust = false  # true believes all that it says of its own tools, now and later",
    ]
    read: dict[str, None] = {}
    for glob, proposal, covered in _grouped(name, tools[:MAX_TOOLS]):
        lines.append("")
        lines.append(f"[policy.servers.{key}.tools.{toml_value(glob)}]{_covering(glob, covered)}")
        lines.append(f'effect = "{proposal.effect}"  # proposed because {proposal.why}; check')
        if proposal.because:
            lines.append(f"labels = {_listed(proposal.labels)}")
            lines += [f"#   {label}: because {why}; check" for label, why in proposal.because]
        if proposal.effect == "read":
            read.update(dict.fromkeys(label for label in proposal.labels if label in _OF_READS))
    if read:
        # What tools return can often be had as a resource or in a prompt, too.
        for request in ("resources/read", "prompts/get"):
            lines += ["", f'[policy.servers.{key}.tools."{request}"]']
            lines.append(f"labels = {_listed(read)}  # proposed because its tools have them; check")
    unwritten = max(0, len(tools) - MAX_TOOLS)
    unwritten += sum(not _writable(tool.name) for tool in tools[:MAX_TOOLS])
    if unwritten:
        lines.append(f"# {unwritten:,} more tools have no line of their own.")
    return "\n".join(lines) + "\n"


def _listed(labels: Iterable[str]) -> str:
    return f"[{', '.join(map(toml_value, labels))}]"


def _covering(glob: str, covered: Sequence[str]) -> str:
    if globs.is_plain(glob) or (len(covered) == 1 and glob == globs.literal(covered[0])):
        return ""
    shown = ", ".join(map(_shown, covered[:_SHOWN_NAMES]))
    more = len(covered) - _SHOWN_NAMES
    return f"  # {shown}{f' and {more:,} more' if more > 0 else ''}, and any to come"


def _grouped(server: str, tools: Sequence[Tool]) -> Iterator[tuple[str, _Proposal, list[str]]]:
    """Yield globs with what is proposed for the tools they match; those of one tool come first."""
    proposals = {tool.name: _propose(server, tool) for tool in tools if _writable(tool.name)}
    families: defaultdict[tuple[str, Effect, tuple[str, ...]], list[str]] = defaultdict(list)
    for name, proposal in proposals.items():
        head, joint, _ = name.partition("_")
        if joint and head.isalnum():
            families[head + joint, proposal.effect, proposal.labels].append(name)
    grouped: dict[str, list[str]] = {}
    for (head, _, _), names in families.items():
        mates = [name for name in proposals if name.startswith(head)]
        if len(names) >= _LEAST_GROUP and len(mates) == len(names):
            # A glob that fits tools of another kind as well would speak for more to come, too.
            grouped[head] = names
    taken = {name for names in grouped.values() for name in names}
    for name, proposal in proposals.items():
        if name not in taken:
            yield globs.literal(name), proposal, [name]
    for head, names in grouped.items():
        yield f"{globs.literal(head)}*", proposals[names[0]], names


# --- one tool ------------------------------------------------------------------------------------


def _propose(server: str, tool: Tool) -> _Proposal:
    effect, why = _effect(tool)
    return _Proposal(effect=effect, why=why, because=tuple(_labels(server, tool, effect)))


def _effect(tool: Tool) -> tuple[Effect, str]:
    said, named = _annotated(tool), _named(tool.name)
    if said is None and named is None:
        return "write", "nothing says what it does"
    if said is None:
        assert named is not None
        effect, word = named
        return effect, f"of {word!r} in its name"
    if named is None or _SEVERITY[said] >= _SEVERITY[named[0]]:
        return said, f"its server says so ({_hints(tool)})"
    return named[0], f"of {named[1]!r} in its name, though its server says {said!r}"


_SEVERITY: Mapping[Effect, int] = {"read": 0, "write": 1, "destructive": 2}


def _annotated(tool: Tool) -> Effect | None:
    """Return what annotations say; None if they say nothing that decides."""
    if tool.annotations.get("readOnlyHint") is True:
        return "read"
    destructive = tool.annotations.get("destructiveHint")
    if destructive is True:
        return "destructive"
    return "write" if destructive is False else None


def _hints(tool: Tool) -> str:
    told = [
        f"{hint} {str(tool.annotations[hint]).lower()}"
        for hint in ("readOnlyHint", "destructiveHint")
        if isinstance(tool.annotations.get(hint), bool)
    ]
    return ", ".join(told)


def _named(name: str) -> tuple[Effect, str] | None:
    """Return what the words of a name say, and the word that says it; the strictest counts.

    Of reads only the first words count: `get_file` reads, and `start_search` starts something.
    """
    found = words(name[:200])
    kinds: tuple[tuple[Effect, frozenset[str], Sequence[str]], ...] = (
        ("destructive", _DESTROYING, found),
        ("write", _CHANGING, found[:2]),
        ("read", _READING, found[:2]),
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
        word = _first([*own, *whose], _FROM_ANYBODY)
        if word:
            yield UNTRUSTED_INPUT, f"what {word!r} returns may be written by anybody"
        elif is_open:
            yield UNTRUSTED_INPUT, "its server says openWorldHint true"
        word = _first([*own, *whose], _PRIVATE)
        if word:
            yield PRIVATE_DATA, f"what {word!r} returns may be yours alone"
        word = _first([*own, *whose], _FETCHING)
        if word:
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
    return one_line(name, _NAME_CHARS) or "(a name that cannot be shown)"


def _writable(name: str) -> bool:
    """Tell whether a file can have a glob of this name alone."""
    return 0 < len(globs.literal(name)) <= globs.MAX_GLOB_CHARS and valid_text(name) == name
