"""The questions of servers to the user or the user's model, and the form in which clients get them.

Each line of a server's words begins with its name, with hidden characters escaped. Field names,
choices and defaults return to the server unchanged, so a question with hidden ones is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn
from urllib.parse import quote, urlsplit, urlunsplit

from bridge.errors import AuditError, CannotAskError
from bridge.event_loop import offload
from bridge.gate.audit.log import RunAudit
from bridge.gate.journal import canonical, digest
from bridge.gate.question import form, one_line, safe_name
from bridge.model import Action, Json
from bridge.settings.policy import Asking, PolicySpec, matcher
from bridge.text import visible

# Limits on a server's question.
MAX_NAME_CHARS = 100  # Of a field's name.
MAX_TEXT_CHARS = 1000  # Of a title, description, choice or default.

_SHOWN = frozenset({"title", "description"})  # Parts of a form that clients only show.


@dataclass(eq=False)
class ServerQuestions:
    """The policy on questions of one run's servers, and the count of refused ones."""

    policy: PolicySpec = field(default_factory=PolicySpec)
    audit: RunAudit | None = None
    run_id: str = ""
    refused: int = 0

    def decide(self, server: str, asking: Asking) -> Action:
        policy = self.policy
        own = next((each for each in policy.servers if matcher(each.servers)(server)), None)
        said = None if own is None else getattr(own, asking)
        action: Action = said or getattr(policy, asking)
        if action == "deny":
            message = f"The user's policy denies {asking} to the server {safe_name(server)}."
            raise CannotAskError(message, server=server)
        return action

    async def passed_on(
        self, server: str, asking: Asking, params: Mapping[str, Json]
    ) -> dict[str, Json]:
        change = elicitation if asking == "elicitation" else sampling_request
        return await offload(params, partial(change, server, self.run_id, params))

    async def record(
        self, server: str, asking: Asking, params: Mapping[str, Json], outcome: str, why: str = ""
    ) -> None:
        """Record a question and its outcome, before its server gets the answer."""
        if outcome == "refused":
            self.refused += 1
        # The log has twenty refused questions, and their number in the run's last record.
        if self.audit is None or self.refused > 20:
            return
        whole = await offload(params, lambda: digest(canonical(params).encode("ascii")))
        facts: dict[str, Json] = {
            "server": server,
            "what": asking,
            "question": whole if params else "",
            "head": one_line(_head(params), 100),
            "outcome": outcome,
            "why": one_line(why, MAX_TEXT_CHARS),
        }
        try:
            await self.audit.record_event("question", facts)
        except AuditError as error:
            message = f"The question cannot be recorded: {error.message}"
            raise CannotAskError(message, server=server) from None


def may_sample(server: str, params: Mapping[str, Json]) -> dict[str, Json]:
    listed = params.get("messages")
    lines = [
        f"Let server {safe_name(server)} ask your model?",
        f"    messages: {len(listed) if isinstance(listed, list) else 0}",
        f"    the last: {one_line(_head(params), MAX_TEXT_CHARS)}",
    ]
    return form("\n".join(lines), {"call": "Once", "run": "This run, any question", "no": "No"})


def elicitation(server: str, run_id: str, params: Mapping[str, Json]) -> dict[str, Json]:
    """Return a server's question to the user, safe to show. Pure."""
    name = safe_name(server)
    message = str(params.get("message") or "")
    _bound(server, "The question's message", len(message), "characters", 4000)
    lines = [line for line in message.replace("\r\n", "\n").split("\n") if line.strip()]
    _bound(server, "The question's message", len(lines), "lines", 40)
    shown = [f"[{name}] {one_line(line, len(line))}" for line in lines or ["(no text)"]]
    asked = {key: value for key, value in params.items() if key not in ("requestedSchema", "url")}
    if params.get("mode") == "url":
        url, host = _address(server, params.get("url"))
        shown.append(f"It is about an address of the host {host}: {url}")
        asked["url"] = url
    elif "requestedSchema" in params:
        schema = params["requestedSchema"]
        fields = schema.get("properties") if isinstance(schema, Mapping) else None
        _bound(server, "The form", len(fields) if isinstance(fields, Mapping) else 0, "fields", 50)
        asked["requestedSchema"] = _part(server, schema, "", 8)
    in_run = f" in run {run_id[:8]}" if run_id else ""
    shown.append(f"(The server {name} asks this{in_run}; mcp-code-bridge passes it on.)")
    return {**asked, "message": "\n".join(shown)}


def sampling_request(server: str, run_id: str, params: Mapping[str, Json]) -> dict[str, Json]:
    """Return a server's request to the user's model, with its origin. Pure."""
    for what, most in (("messages", 100), ("tools", 64)):
        listed = params.get(what)
        _bound(server, "The request", len(listed) if isinstance(listed, list) else 0, what, most)
    tokens = params.get("maxTokens")
    if isinstance(tokens, int | float):
        _bound(server, "The request", tokens, "tokens", 65_536)
    in_run = f", in run {run_id[:8]}" if run_id else ""
    origin = f"(The MCP server {safe_name(server)} asks this through mcp-code-bridge{in_run}.)"
    # To the client all servers are one: this would add context of other servers.
    asked = {key: _clean(value) for key, value in params.items() if key != "includeContext"}
    prompt = str(asked.get("systemPrompt") or "")
    return {**asked, "systemPrompt": f"{origin}\n{prompt}".rstrip("\n")}


def _refuse(server: str, problem: str) -> NoReturn:
    raise CannotAskError(f"{problem}.", server=server)


def _bound(server: str, what: str, size: float, unit: str, most: int) -> None:
    if size > most:
        _refuse(server, f"{what} has {size:,} {unit}; at most {most:,}")


def _address(server: str, url: Json) -> tuple[str, str]:
    """Return an address and its host in ASCII, so that neither looks like another."""
    text = str(url or "")
    _bound(server, "The address", len(text), "characters", 2000)
    try:
        parts = urlsplit(text)
        host, port = (parts.hostname or "").encode("idna").decode("ascii"), parts.port
    except (ValueError, UnicodeError):
        _refuse(server, f"The address {one_line(text, MAX_NAME_CHARS)} cannot be read")
    if parts.scheme not in ("http", "https") or not host:
        _refuse(server, f"{one_line(text, MAX_NAME_CHARS)} is no http or https address")
    if "@" in parts.netloc or "\\" in text or not text.isprintable() or " " in text:
        what = "a user's name, a backslash, or what is blank or hidden"
        _refuse(server, f"The address {one_line(text, MAX_NAME_CHARS)} has {what} in it")
    if text.isascii():
        return text, host
    netloc = host if port is None else f"{host}:{port}"
    rest = (quote(part, safe="%/?&=+:;,~!$'()*#@") for part in parts[2:])
    return urlunsplit((parts.scheme, netloc, *rest)), host


def _part(server: str, value: Json, key: str, depth: int) -> Json:
    """Return a part of a form; `key` is its name."""
    if isinstance(value, str):
        _bound(server, "A text of the form", len(value), "characters", MAX_TEXT_CHARS)
        shown = one_line(value, MAX_TEXT_CHARS)
        if shown != value and key not in _SHOWN:
            _refuse(server, f"The form has {shown!r}, with characters that cannot be shown")
        return shown
    if not isinstance(value, Mapping | list):
        return value
    if depth == 0:
        _refuse(server, "The form is nested more than 8 levels deep")
    _bound(server, "A part of the form", len(value), "members", 200)
    if isinstance(value, list):
        inside = "title" if key == "enumNames" else key
        return [_part(server, item, inside, depth - 1) for item in value]
    for name in value:
        if len(name) > MAX_NAME_CHARS or one_line(name, MAX_NAME_CHARS) != name:
            shown = f"{one_line(name, MAX_NAME_CHARS)!r}"
            _refuse(server, f"The form has the name {shown}, which is too long or cannot be shown")
    return {name: _part(server, item, name, depth - 1) for name, item in value.items()}


def _clean(value: Json) -> Json:
    """Return a text for a model, with hidden characters escaped and few blank lines."""
    if isinstance(value, str):
        return re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", visible(value.replace("\r\n", "\n")))
    if isinstance(value, Mapping):
        return {visible(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _head(params: Mapping[str, Json]) -> str:
    listed = params.get("messages")
    if not isinstance(listed, list):
        return str(params.get("message") or "")[: MAX_TEXT_CHARS + 1]
    last = listed[-1] if listed else None
    content = last.get("content") if isinstance(last, Mapping) else None
    blocks: Sequence[Json] = content if isinstance(content, list) else [content]
    texts = [str(block.get("text") or "") for block in blocks if isinstance(block, Mapping)]
    return next((text[: MAX_TEXT_CHARS + 1] for text in texts if text), "")
