"""Remembers tools and servers as they were first allowed, and describes changes.

A tool belongs to its server's definition. Its schemas and annotations are compared exactly. Changed
texts are only recorded unless the policy says `pin = "full"`: some servers write a time zone or a
set into them. The document has digests and names, but no text of a server. If it is damaged, every
tool counts as changed until a person removes it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

from bridge.model import Json, Tool, short_digest
from bridge.store import Store, adapter

logger = logging.getLogger(__name__)

MAX_TOOLS = 3000  # A server can list any number of tools.

MAX_DEFINITIONS = 4
"""The latest definitions of one tool. Two projects may use two versions of a server."""

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""The annotations of tools in the protocol. Their values are remembered."""

_KIND = "pins"


class Digests(NamedTuple):
    """Digests of a tool's schemas and annotations without texts, of its texts, and of both."""

    schema: str
    text: str
    whole: str


def tool_digests(tool: Tool) -> Digests:
    known = _known_digests.get(id(tool))
    if known is not None and known[0]() is tool:
        return known[1]
    parts = [tool.title, tool.description, tool.input_schema, tool.output_schema, tool.annotations]
    texts: list[Json] = [tool.title, tool.description]
    schema = [_bare(part, texts) for part in (tool.input_schema, tool.output_schema)]
    digests = Digests(
        schema=f"sha256:{_hash([*schema, tool.annotations])}",
        text=_short_hash(_words(texts)),
        whole=f"sha256:{_hash(parts)}",
    )
    key = id(tool)
    _known_digests[key] = (weakref.ref(tool, lambda _: _known_digests.pop(key, None)), digests)
    return digests


_known_digests: dict[int, tuple[weakref.ref[Tool], Digests]] = {}
"""By the identity of living tools, since a definition never changes. Digests of a large one take
longer than all other steps of a call."""

_TEXTS = frozenset({"title", "description", "examples", "$comment"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords of schemas: those with texts for people, and those with schemas by name."""


def _bare(schema: Json, texts: list[Json], *, named: bool = False) -> Json:
    """Return a schema without its texts, which go to `texts`, and with sorted sets."""
    if isinstance(schema, list):
        return [_bare(part, texts) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Json] = {}
    for key, value in schema.items():
        if named:
            found[key] = _bare(value, texts)
        elif key in _TEXTS:
            texts.append(value)
        elif key == "default" or key == "const":
            # Some servers join a set to a text here.
            found[key] = _words([value]) if isinstance(value, str) else value
        elif key in {"required", "enum", "type"} and isinstance(value, list):
            found[key] = sorted(value, key=repr)
        else:
            found[key] = _bare(value, texts, named=key in _NAMED)
    return found


def _words(texts: list[Json]) -> list[str]:
    return sorted(word for text in texts for word in re.findall(r"\w+|[^\w\s]", str(text)))


def _hash(value: Json) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _short_hash(value: Json) -> str:
    # Only descriptions of changes need it.
    return _hash(value)[:10]


_Facts = Mapping[str, tuple[str, str]]
"""Names of a tool's parts to a description (a type, a hint's value) and a digest."""


@dataclass(frozen=True)
class _Pin:
    """A tool's definition, with the facts that describe a change of it."""

    digest: str
    schema: str
    texts: tuple[str, ...]
    facts: _Facts


@dataclass(frozen=True)
class _New:
    """An allowed definition. `always` allows it next to other definitions of the tool."""

    pin: _Pin
    always: bool


_Starts = dict[str, dict[str, bool]]
"""Server names to digests of definitions, and whether a person always allows them."""


@dataclass(frozen=True)
class _Stored:
    """The stored document."""

    form: Literal[2]
    # Allowed definitions, latest last, by digest of the server's definition and by tool.
    servers: dict[str, dict[str, tuple[_Pin, ...]]]
    starts: _Starts

    @property
    def count(self) -> int:
        return sum(map(len, self.servers.values()))


_EMPTY = _Stored(2, {}, {})


class Pins:
    """The remembered tools and servers. `fully` returns whether changed texts count."""

    def __init__(
        self, store: Store | None = None, fully: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._kept = store
        self.fully = fully
        # A shared store has one state: see `refresh`.
        self._state: tuple[int, ...] | None = None
        self._stored = _EMPTY
        self._damage = ""
        self._unstored: dict[tuple[str, str], _New] = {}
        self._unstored_servers: _Starts = {}

    def change(self, tool: Tool, server_definition: str = "") -> str:
        """Describe the change of a tool since it was first allowed; empty if there is none."""
        if self._kept is None or self._known(tool, server_definition):
            return ""
        self._refresh_now()
        if self._known(tool, server_definition):
            return ""
        if self._damage:
            return self._damage
        if before := self._before(tool, server_definition):
            return _difference(before[-1].facts, _facts(tool))
        if self._stored.count >= MAX_TOOLS:
            return f"the limit of {MAX_TOOLS:,} remembered tools does not include this one"
        return ""

    async def keep(self, tool: Tool, server_definition: str = "", *, always: bool = False) -> str:
        """Remember an allowed definition, and return a note on a changed text."""
        pin = self._known(tool, server_definition)
        schema, text, whole = tool_digests(tool)
        if self._kept is None or (pin is not None and text in pin.texts):
            return ""
        if pin is None and not always and self.change(tool, server_definition):
            return ""
        pin = self._known(tool, server_definition)
        texts = () if pin is None else pin.texts
        # Set before the disk is written, so that other calls do not wait.
        new = _Pin(whole, schema, (*texts, text)[-MAX_DEFINITIONS:], _facts(tool))
        key = server_definition or tool.server, tool.name
        unstored = self._unstored.get(key)
        # A changed text must not store a definition that another bridge asks about.
        always = always or pin in self._before(tool, server_definition)
        always = always or (unstored is not None and unstored.pin is pin and unstored.always)
        self._unstored[key] = _New(new, always)
        if not self._damage:
            await self._store()
        return "its description changed" if texts and text not in texts else ""

    def server_change(self, server: str, definition: str) -> str:
        """Describe how a server's definition differs from allowed ones; empty if it does not."""
        known = self._starts(server)
        if definition in known or not (known or self._damage):
            return ""
        if self._damage:
            return self._damage
        were = ", ".join(short_digest(digest) for digest in list(known)[-5:])
        return f"it is another definition ({short_digest(definition)}) than was known ({were})"

    def is_approved(self, server: str, definition: str) -> bool:
        return self._starts(server).get(definition, False)

    def _starts(self, server: str) -> dict[str, bool]:
        if self._kept is None:
            return {}
        self._refresh_now()
        return self._stored.starts.get(server, {}) | self._unstored_servers.get(server, {})

    async def keep_server(self, server: str, definition: str, *, always: bool = False) -> None:
        """Remember the definition of a starting server, or a person's permanent approval."""
        if self._kept is None or self.is_approved(server, definition):
            return
        if not always and (self._starts(server) or self._damage):
            return
        self._unstored_servers.setdefault(server, {})[definition] = always
        if not self._damage:
            await self._store()

    def _before(self, tool: Tool, server_definition: str) -> tuple[_Pin, ...]:
        return self._stored.servers.get(server_definition or tool.server, {}).get(tool.name, ())

    def _known(self, tool: Tool, server_definition: str) -> _Pin | None:
        digests, full = tool_digests(tool), self.fully(tool.server)
        pins = self._before(tool, server_definition)
        unstored = self._unstored.get((server_definition or tool.server, tool.name))
        for pin in (*pins, unstored.pin) if unstored is not None else pins:
            if pin.digest == digests.whole or (not full and pin.schema == digests.schema):
                return pin
        return None

    async def refresh(self, tool: Tool | None = None, server_definition: str = "") -> None:
        """Read the store in a thread if it may have changed and the tool is not known.

        Other methods run on the event loop, so that only this one reads a shared store.
        """
        if self._kept is None or (tool is not None and self._known(tool, server_definition)):
            return
        state = self._kept.state()
        if state != self._state or self._kept.shared:
            self._stored, self._damage = await self._kept.run(_read, self._kept)
            self._state = state

    def _refresh_now(self) -> None:
        assert self._kept is not None
        state = self._kept.state()
        if state != self._state:
            self._stored, self._damage = _read(self._kept)
            self._state = state

    async def _store(self) -> None:
        """Store the new definitions. The next call retries after an error."""
        assert self._kept is not None
        news = dict(self._unstored)
        servers = {name: dict(found) for name, found in self._unstored_servers.items()}
        stored = await self._kept.run(_add, self._kept, news, servers)
        if stored is None:
            return
        self._stored = stored
        for name, found in servers.items():
            if self._unstored_servers.get(name) == found:
                del self._unstored_servers[name]
        for key, new in news.items():
            if self._unstored.get(key) is new:
                del self._unstored[key]


def _add(store: Store, news: Mapping[tuple[str, str], _New], starts: _Starts) -> _Stored | None:
    """Add to the stored pins and return all, or None after an error. Blocks."""
    try:
        # A loss after a power cut would make every tool new.
        with store.writing(durable=True) as kept:
            stored = _merge(_parse_document(kept.get(_KIND, "", "")), news, starts)
            # pydantic cannot write lone surrogates, which a server may put into a tool's name.
            kept.put(_KIND, "", "", json.dumps(asdict(stored), separators=(",", ":")).encode())
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("tools that are allowed cannot be remembered: %s", error)
        return None
    return stored


def _facts(tool: Tool) -> _Facts:
    schema = dict(tool.input_schema)
    properties = schema.pop("properties", None)
    parts: dict[str, Json] = {
        "its title": tool.title,
        "its description": tool.description,
        "its input schema": schema,
        "its output schema": tool.output_schema,
        "its annotations": {k: v for k, v in tool.annotations.items() if k not in HINTS},
    }
    said: dict[str, str] = {}
    for name in HINTS:
        hint = parts[name] = tool.annotations.get(name)
        said[name] = "not given" if hint is None else json.dumps(hint)[:100]
    # A tool with more parameters has one digest for all.
    if not isinstance(properties, dict) or len(properties) > 60:
        parts["its list of parameters"] = properties
    else:
        for name, found in properties.items():
            parts[key := f"its parameter {name[:100]!r}"] = found
            said[key] = _type(found)
    return {name: (said.get(name, ""), _short_hash(part)) for name, part in parts.items()}


def _type(schema: Json) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):
        kind = " or ".join(one for one in kind if isinstance(one, str))
    return kind[:100] if isinstance(kind, str) else ""


def _difference(before: _Facts, now: _Facts) -> str:
    found = []
    for name in {**before, **now}:
        was, is_now = before.get(name), now.get(name)
        if was is None or is_now is None:
            found.append(f"{name} is {'new' if was is None else 'gone'}")
        elif was[0] != is_now[0]:
            found.append(f"{name} was {was[0] or 'of no type'} and is {is_now[0] or 'of no type'}")
        elif was[1] != is_now[1]:
            found.append(f"{name} changed")
    more = [f"and {len(found) - 5} more"] if len(found) > 5 else []
    return "; ".join([*found[:5], *more]) or "it changed"


def _read(store: Store) -> tuple[_Stored, str]:
    """Return the stored pins, and an explanation if they cannot be read. Blocks."""
    try:
        with store.reading() as kept:
            return _parse_document(kept.get(_KIND, "", "")), ""
    except (OSError, ValueError, RecursionError) as error:
        logger.warning(
            "the allowed tools in %s cannot be read (%s): every tool counts as changed",
            store.place,
            error,
        )
    place = (
        "the database that MCP_BRIDGE_STORE names cannot be read"
        if store.shared
        else "store.db in the bridge's state directory cannot be read; once that file is removed "
        "all tools count as new"
    )
    return _EMPTY, f"its allowed definition is unknown, because {place}"


def _parse_document(data: bytes | None) -> _Stored:
    return _EMPTY if data is None else adapter(_Stored).validate_python(json.loads(data))


def _merge(stored: _Stored, news: Mapping[tuple[str, str], _New], starts: _Starts) -> _Stored:
    """Return both. Where another bridge was first, only permanent approvals are added."""
    servers = {name: dict(tools) for name, tools in stored.servers.items()}
    merged = replace(stored, servers=servers, starts=dict(stored.starts))
    for name, definitions in starts.items():
        for definition, always in definitions.items():
            before = merged.starts.get(name, {})
            if before and not always:
                continue
            others = {digest: said for digest, said in before.items() if digest != definition}
            # Projects put their directories into a server's arguments.
            merged.starts[name] = dict(list({**others, definition: always}.items())[-20:])
    for (server, tool), new in news.items():
        pins = servers.get(server, {}).get(tool, ())
        if pins and not new.always:
            continue
        if not pins and merged.count >= MAX_TOOLS:
            logger.warning("%d tools are remembered; no room for %s.%s", MAX_TOOLS, server, tool)
            continue
        # Replaces the definition that differs in its texts only.
        earlier = new.pin.schema, new.pin.texts[:-1]
        others_of_it = [
            old
            for old in pins
            if old.digest != new.pin.digest
            and (old.schema, old.texts[1 - MAX_DEFINITIONS :]) != earlier
        ]
        servers.setdefault(server, {})[tool] = tuple([*others_of_it, new.pin][-MAX_DEFINITIONS:])
    return merged
