"""Hides secrets and personal data from programs, and puts them back for servers that may have them.

A mark stands for a secret of this machine. Only the server that returned a secret gets it back. A
token stands for personal data, which the policy reveals to some servers.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from operator import is_not
from typing import Any
from urllib.parse import quote

from bridge.errors import (
    BridgeError,
    CallDeniedError,
    InvalidRequestError,
    ToolCallError,
    UpstreamError,
)
from bridge.event_loop import estimated_size, offload
from bridge.gate.privacy_data import (
    PORTION,
    REMAINS,
    SHOWN,
    SIGNS,
    TOKENS,
    DetectedData,
    Kind,
    find,
    find_in_portions,
    make_token,
    plain_token,
)
from bridge.gate.redaction import MARK, Redactor, as_json
from bridge.model import Json, RunResult, Tool
from bridge.settings.policy import Privacy, matcher

MAX_VALUES = 100_000
"""Tokens of one owner, since a server can return any number of addresses. The least recently used
tokens are evicted first."""

MAX_OWNERS = 1000  # Callers over HTTP invent them.

MAX_SECONDS = 24 * 3600.0  # The life of a token after its last use.

MAX_DEPTH = 200  # Levels of a server's result; deeper parts are left out.

MAX_SEARCHED = 24 * 1024 * 1024
"""Characters of a server's result or of a call's arguments, where an object counts as 64. To search
that many takes seconds in a thread. Larger values are refused."""

_TOO_LARGE = "[too large to be searched for personal data]"

_DEEPER = "[nested too deeply to be searched for personal data]"

_BASE64 = re.compile(r"[A-Za-z0-9+/_=\s-]+")

NOT_SHOWN = "[left out: it could not be searched for secrets]"

_OWN_WORDS = frozenset(
    (
        *("run_id", "plan_id", "session_id", "uri", "digest", "audit"),
        *("status", "reason", "code", "state", "severity", "source", "effect", "action"),
        *("isolation", "usage", "provenance"),
    )
)
"""Fields of a result without text of a program or server."""

_TOOL_FIELDS = ("name", "title", "description", "input_schema", "output_schema", "annotations")


async def redact_outcome(work: Awaitable[RunResult], redactor: Redactor) -> RunResult:
    """Return a run's result, or raise its error, without secrets."""
    try:
        result = await work
    except BridgeError as error:
        error.remedy = redactor.text(error.remedy)
        data = clear_value(getattr(error, "data", None), redactor)
        _replace_texts(error, redactor.text(error.message), redactor.text(error.host_detail), data)
        raise
    return await offload(result.result, partial(clear_result, result, redactor))


def _replace_texts(error: BridgeError, message: str, host_detail: str, data: Json) -> None:
    # In place, since other code may hold the error.
    error.message, error.host_detail, error.args = message, host_detail, (message,)
    if isinstance(error, ToolCallError):
        error.data = data


def clear_result(value: Any, redactor: Redactor) -> Any:
    """Return a result, or a part of one, without secrets; the same object if it has none."""
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, tuple):
        items = tuple(clear_result(item, redactor) for item in value)
        return items if any(map(is_not, items, value)) else value
    if isinstance(value, (dict, list)):
        return clear_value(value, redactor)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for name in (each.name for each in fields(value) if each.name not in _OWN_WORDS):
        before = getattr(value, name)
        if (after := clear_result(before, redactor)) is not before:
            changes[name] = after
    return replace(value, **changes) if changes else value


def clear_value(value: Json, redactor: Redactor) -> Json:
    """Return a JSON value without secrets. Other values are left out."""
    try:
        return redactor.value(value)
    except (ValueError, TypeError):
        return NOT_SHOWN


def clear_tools(tools: tuple[Tool, ...], redactor: Redactor) -> tuple[Tool, ...]:
    """Return tools without secrets in their descriptions.

    A tool with a secret in its name is left out, since another name could not be called.
    """
    found = []
    for tool in tools:
        before = [getattr(tool, name) for name in _TOOL_FIELDS]
        # A schema may be nested too deeply.
        with suppress(ValueError, TypeError):
            after = redactor.value(before)
            if after is before:
                found.append(tool)
            elif after[0] == tool.name:
                found.append(replace(tool, **dict(zip(_TOOL_FIELDS, after, strict=True))))
    return tools if found == list(tools) else tuple(found)


@contextmanager
def clear_logs(redactor: Redactor) -> Iterator[None]:
    """Redact the bridge's log while this is open, because clients store and show it."""
    formatter = logging.Formatter()

    def clear(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (cleared_text := redactor.text(message)) is not message:
            record.msg, record.args = cleared_text, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redactor.text(record.exc_text)
        return True

    handlers = tuple(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(clear)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(clear)


Replaced = dict[str, dict[str, set[str]]]
"""The texts that each mark replaced, by server. A text that only looks like a mark replaces itself.
"""

_READ_AGAIN = (
    "Only the server that returned a secret gets it back. Read the text from that server again, or "
    "leave the secret out and let the user put it in."
)
_PASS_WHOLE = (
    "Pass each mark on whole, as plain text and with nothing joined to it, or use a tool that "
    "changes a part of the text in place."
)


class Marks:
    """The marks in what servers returned to one run.

    `replaced` is shared by all runs of a caller. `names` has the secrets that this run replaced.
    """

    def __init__(self, redactor: Redactor | None = None, replaced: Replaced | None = None) -> None:
        self._redactor = redactor or Redactor()
        self._replaced: Replaced = {} if replaced is None else replaced
        self.names: dict[str, None] = {}

    def of(self, server: str) -> Redactor:
        """Return the redactor for a server's texts; "" for texts of the program."""
        return self._redactor.with_note(partial(self._note, server))

    def _note(self, server: str, mark: str, text: str) -> None:
        if mark not in self._redactor.marks:
            return
        if text != mark:
            self.names[self._redactor.marks[mark]] = None
        texts = self._replaced.setdefault(server, {}).setdefault(mark, set())
        # Two texts are ambiguous already.
        if server and len(texts) < 2:
            texts.add(text)

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        """Return arguments with secrets in place of marks; the same object if there are none."""
        try:
            line = as_json(arguments).encode("utf-8", "surrogatepass")
        except RecursionError:
            raise InvalidRequestError("The arguments are nested too deeply.") from None
        parts, kept = [], 0
        for start, end, mark in self._redactor.find_marks(line):
            shown, like = repr(line[start:end].decode()[:120]), MARK.match(line, start)
            if line[start:end] != mark:
                if like and like[0].decode() not in self._redactor.marks:
                    # The bridge has no secret of this name.
                    continue
                raise _denial(f"An argument has a part of a mark, {shown}", _PASS_WHOLE)
            texts = self._replaced.get(server, {}).get(mark.decode(), set())
            if len(texts) != 1:
                why = "several texts" if texts else "a secret that this server did not return"
                message = f"{shown} stands for {why} in what {server!r} said to this caller"
                raise _denial(message, _PASS_WHOLE if texts else _READ_AGAIN)
            text = as_json(*texts)[1:-1].encode("utf-8", "surrogatepass")
            parts += [line[kept:start], text]
            kept = end
        if not parts:
            return arguments
        filled = b"".join([*parts, line[kept:]])
        with suppress(ValueError):
            if self._redactor.frame(filled) == self._redactor.frame(line):
                revealed: dict[str, Json] = json.loads(filled.decode("utf-8", "surrogatepass"))
                if not any(
                    _is_json(arguments.get(key)) > _is_json(revealed[key]) for key in revealed
                ):
                    return revealed
                raise _denial("A mark stands in JSON, where its secret needs escapes", _PASS_WHOLE)
        raise _denial("A secret would not be recognised where its mark stands", _PASS_WHOLE)


def _denial(message: str, remedy: str) -> CallDeniedError:
    return CallDeniedError(f"The call was not made. {message}.", remedy=remedy)


def _is_json(text: Json) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(text, str) and text.lstrip()[:1] in ("{", "[") and bool(json.loads(text))
    return False


@dataclass
class _Value:
    """A value that a token stands for: its first spelling, and the servers that returned it."""

    kind: Kind
    same: str
    text: str
    token: str
    used: float
    sources: set[str] = field(default_factory=set)


class OwnerTokens:
    """The tokens of one owner, with the personal data that each one replaces.

    Results of `receivers`, the servers that received real values, get tokens as well.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._key = secrets.token_bytes(32)
        self._by_same: OrderedDict[tuple[Kind, str], _Value] = OrderedDict()
        self._by_token: dict[str, _Value] = {}
        # Threads search large results.
        self._lock = threading.Lock()
        self.receivers: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_same)

    def make_token(self, found: DetectedData, text: str, server: str) -> str:
        with self._lock:
            value = self._by_same.get((found.kind, found.same))
            if value is None:
                value = self._add(found, text)
            self._use(value)
            if server and len(value.sources) < 16:
                value.sources.add(server)
            return value.token

    def find(self, text: str) -> _Value | None:
        with self._lock:
            value = self._by_token.get(text)
            if value is None or self._now() - value.used > MAX_SECONDS:
                return None
            self._use(value)
            return value

    def _use(self, value: _Value) -> None:
        value.used = self._now()
        self._by_same.move_to_end((value.kind, value.same))

    def _add(self, found: DetectedData, text: str) -> _Value:
        while self._by_same:
            oldest = next(iter(self._by_same.values()))
            if len(self) < MAX_VALUES and self._now() - oldest.used <= MAX_SECONDS:
                break
            self._by_same.popitem(last=False)
            del self._by_token[oldest.token]
        attempt, made = 0, ""
        # Short tokens may collide. Then the next number is used.
        while not made or made in self._by_token:
            told = f"{found.kind}\0{found.same}\0{attempt}".encode("utf-8", "surrogatepass")
            digest = hmac.digest(self._key, told, hashlib.sha256)
            made = make_token(found.kind, int.from_bytes(digest[:16], "big"))
            attempt += 1
        value = _Value(kind=found.kind, same=found.same, text=text, token=made, used=self._now())
        self._by_same[found.kind, found.same] = value
        self._by_token[made] = value
        return value


class Vaults:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, OwnerTokens] = OrderedDict()

    def of(self, owner: str, privacy: Privacy) -> Vault:
        kept = self._kept.get(owner)
        if kept is None:
            if not privacy.detect:
                return Vault()
            kept = self._kept[owner] = OwnerTokens()
        self._kept.move_to_end(owner)
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_OWNERS or sum(map(len, self._kept.values())) > 3 * MAX_VALUES
        ):
            self._kept.popitem(last=False)
        return Vault(privacy, kept)


class Vault:
    """One run's view of the tokens of its owner, with the policy on who may have the values."""

    def __init__(self, privacy: Privacy | None = None, kept: OwnerTokens | None = None) -> None:
        self._privacy = privacy or Privacy()
        self._kept = kept if kept is not None else OwnerTokens()
        self._kinds = frozenset(self._privacy.detect)
        self._hides = matcher(*self._privacy.servers)
        self._reveals = matcher(*self._privacy.reveal_to)
        # The texts that the program itself wrote to each server.
        self._written: dict[str, set[tuple[Kind, str]]] = {}

    @property
    def idle(self) -> bool:
        return not self._kinds and not len(self._kept)

    def hide(self, server: str, value: Json) -> Json:
        """Return a server's value with tokens in place of personal data."""
        if not self._is_private(server):
            return value
        if estimated_size(value, MAX_SEARCHED) > MAX_SEARCHED:
            message = (
                f"What {server} answered is too large to be searched for personal data, as the "
                "policy wants it, and is not passed on."
            )
            remedy = "Ask for less at a time (a page, a filter, a range)."
            raise UpstreamError(
                message, server=server, remedy=remedy, doubtful=False, code="message_too_large"
            )
        return self._hide(server, value)

    def _is_private(self, server: str) -> bool:
        return bool(self._kinds) and (self._hides(server) or server in self._kept.receivers)

    def conceal(self, text: str) -> str:
        return self._hide_plain("", text) if self._kinds else text

    def hide_error(self, server: str, error: UpstreamError) -> None:
        if self._is_private(server):
            told = [error.message, error.host_detail, getattr(error, "data", None)]
            if estimated_size(told, MAX_SEARCHED) > MAX_SEARCHED:
                told = [_TOO_LARGE, "", None]
            _replace_texts(error, *self._hide(server, told))

    def _hide(self, server: str, value: Json) -> Json:
        texts, numbers = partial(self._hide_text, server), partial(self._hide_number, server)
        return _rewrite(value, texts, numbers)

    def _hide_text(self, server: str, text: str) -> str:
        if "\\u" in text and text.lstrip()[:1] in ("{", "["):
            # A detector does not see an escaped @, but a JSON reader does.
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                return self._hide_plain(server, text)
            hidden = self._hide(server, document)
            if hidden != document:
                return json.dumps(hidden, ensure_ascii=False)
        return self._hide_plain(server, text)

    def _hide_plain(self, server: str, text: str) -> str:
        parts, kept = [], 0
        written = self._written.get(server, ())
        for found in find(text, self._kinds):
            if (found.kind, found.same) in written:
                continue
            told = text[found.start : found.end]
            parts += [text[kept : found.start], self._kept.make_token(found, told, server)]
            kept = found.end
        return "".join([*parts, text[kept:]]) if parts else text

    def _hide_number(self, server: str, number: int) -> int:
        if "card" not in self._kinds or not 10**12 <= number < 10**19:
            return number
        text = str(number)
        found = next(iter(find(text, ("card",))), None)
        if found is None or (found.kind, found.same) in self._written.get(server, ()):
            return number
        return int(self._kept.make_token(found, text, server))

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        """Return arguments with data in place of tokens, if the server may have it.

        Data that the program wrote itself stays visible in this server's results. Otherwise the
        program could guess values and learn from the tokens which guess is right.
        """
        if self.idle:
            return arguments
        if estimated_size(arguments, MAX_SEARCHED) > MAX_SEARCHED:
            message = "The arguments are too large to be searched for tokens of personal data."
            raise InvalidRequestError(message, remedy="Pass on less at a time.")
        texts, numbers = partial(self._reveal_text, server), partial(self._reveal_number, server)
        revealed: dict[str, Json] = _rewrite(arguments, texts, numbers, refuses=True)
        written = self._written.setdefault(server, set())
        written.update((found.kind, found.same) for found in self._found_in(arguments))
        if len(written) > MAX_VALUES:
            message = f"The program wrote more than {MAX_VALUES:,} addresses and numbers of people."
            raise InvalidRequestError(message, remedy="Pass on less in one run.")
        return revealed

    def _found_in(self, value: Json) -> Iterator[DetectedData]:
        left = [value]
        while left:
            match left.pop():
                case dict() as members:
                    left += [*members, *members.values()]
                case list() as items:
                    left += items
                case str() | int() as plain if not isinstance(plain, bool):
                    yield from find(str(plain), self._kinds)

    def _reveal_number(self, server: str, number: int) -> int:
        known = self._kept.find(str(number)) if number >= 10**18 else None
        if known is None:
            return number
        # The first text may have had separators between the digits.
        return int("".join(filter(str.isdigit, self._reveal_value(server, known))))

    def _reveal_text(self, server: str, text: str) -> str:
        if not any(sign in text for sign in SIGNS):
            return text
        parts: list[str] = []
        kept = 0
        for match in find_in_portions(TOKENS, text):
            kind = match.lastgroup or ""
            written = match[0]
            known = self._kept.find(plain_token(kind, written))
            if known is None:
                if kind == "phone" and written[0] == "9":
                    # Another number, such as a time in milliseconds.
                    continue
                message = (
                    f"{written[:80]} looks like a token for {SHOWN[kind]}, but stands for nothing "
                    "that is known here: it was made up, or changed, or comes from another caller, "
                    "or from before the bridge was started, or is more than a day old."
                )
                remedy = "Read the data again, and use the token as it is."
                raise InvalidRequestError(message, remedy=remedy)
            told = self._reveal_value(server, known)
            if "%" in written:
                told = quote(told, safe="")
            parts += [text[kept : match.start()], told]
            kept = match.end()
        parts.append(text[kept:])
        for part in parts[::2]:
            for left in find_in_portions(REMAINS, part):
                message = (
                    f"{left[0][:80]!r} is a part of a token that stands for personal data; nothing "
                    "can be put in the place of a part."
                )
                raise InvalidRequestError(message, remedy="Pass the token on whole.")
        return "".join(parts)

    def _reveal_value(self, server: str, known: _Value) -> str:
        """Return the value of a token, if the server may receive it or returned it."""
        if server in known.sources or self._reveals(server):
            if len(self._kept.receivers) < MAX_OWNERS:
                self._kept.receivers.add(server)
            return known.text
        message = (
            f"{known.token} stands for {SHOWN[known.kind]} that the server {server!r} may not have."
        )
        remedy = "The user can name the server in policy.privacy.reveal_to."
        raise CallDeniedError(message, remedy=remedy)


def _rewrite(
    value: Json,
    text: Callable[[str], str],
    number: Callable[[int], int],
    *,
    refuses: bool = False,  # Whether to refuse deep parts, rather than leave them out.
    depth: int = 0,
) -> Json:
    """Return a value with each text, key and number replaced, but for encoded contents."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    if not isinstance(value, (dict, list)):
        return value
    if depth >= MAX_DEPTH:
        if refuses:
            raise InvalidRequestError("The arguments are nested too deeply.")
        return _DEEPER
    below = partial(_rewrite, text=text, number=number, refuses=refuses, depth=depth + 1)
    if isinstance(value, list):
        return [below(item) for item in value]
    typed = isinstance(value.get("mimeType"), str)
    return {
        text(key) if isinstance(key, str) else key: (
            item if typed and _is_encoded(key, item) else below(item)
        )
        for key, item in value.items()
    }


def _is_encoded(key: Json, value: Json) -> bool:
    return (
        key in ("data", "blob")
        and isinstance(value, str)
        and len(value) >= 64
        and all(
            _BASE64.fullmatch(value, start, start + PORTION)
            for start in range(0, len(value), PORTION)
        )
    )
