"""Replaces personal data by tokens before it enters a sandbox, and puts it back for allowed
servers."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

from bridge.errors import CallDeniedError, InvalidRequestError, ToolCallError, UpstreamError
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
from bridge.model import Json
from bridge.offload import estimated_size
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


@dataclass
class _Value:
    """A value that a token stands for: its first spelling, and the servers that returned it."""

    kind: Kind
    same: str
    text: str
    token: str
    used: float
    sources: set[str] = field(default_factory=set)


class Kept:
    """The tokens of one owner.

    The bridge also scans the results of `receivers`: servers that received real values.
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
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def of(self, owner: str, privacy: Privacy) -> Vault:
        kept = self._kept.get(owner)
        if kept is None:
            if not privacy.detect:
                return Vault()
            kept = self._kept[owner] = Kept()
        self._kept.move_to_end(owner)
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_OWNERS or sum(map(len, self._kept.values())) > 3 * MAX_VALUES
        ):
            self._kept.popitem(last=False)
        return Vault(privacy, kept)


class Vault:
    """One run's view of the tokens of its owner, with the policy on who may have the values."""

    def __init__(self, privacy: Privacy | None = None, kept: Kept | None = None) -> None:
        self._privacy = privacy or Privacy()
        self._kept = kept if kept is not None else Kept()
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
        return self._hide(server, value, 0)

    def _is_private(self, server: str) -> bool:
        return bool(self._kinds) and (self._hides(server) or server in self._kept.receivers)

    def conceal(self, text: str) -> str:
        return self._hide_plain("", text) if self._kinds else text

    def hide_error(self, server: str, error: UpstreamError) -> None:
        if self._is_private(server):
            told = [error.message, error.host_detail, getattr(error, "data", None)]
            if estimated_size(told, MAX_SEARCHED) > MAX_SEARCHED:
                told = [_TOO_LARGE, "", None]
            error.message, error.host_detail, data = self._hide(server, told, 0)
            error.args = (error.message,)
            if isinstance(error, ToolCallError):
                error.data = data

    def _hide(self, server: str, value: Json, depth: int) -> Json:
        if isinstance(value, str):
            return self._hide_text(server, value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._hide_number(server, value)
        if not isinstance(value, (dict, list)):
            return value
        if depth >= MAX_DEPTH:
            return _DEEPER
        if isinstance(value, list):
            return [self._hide(server, item, depth + 1) for item in value]
        typed = isinstance(value.get("mimeType"), str)
        return {
            self._hide_text(server, key) if isinstance(key, str) else key: (
                item if typed and _is_encoded(key, item) else self._hide(server, item, depth + 1)
            )
            for key, item in value.items()
        }

    def _hide_text(self, server: str, text: str) -> str:
        if "\\u" in text and text.lstrip()[:1] in ("{", "["):
            # A detector does not see an escaped @, but a JSON reader does.
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                return self._hide_plain(server, text)
            hidden = self._hide(server, document, 0)
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
        for found in find(text, ("card",)):
            if (found.kind, found.same) in self._written.get(server, ()):
                return number
            return int(self._kept.make_token(found, text, server))
        return number

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
        revealed: dict[str, Json] = self._reveal(server, arguments, 0)
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

    def _reveal(self, server: str, value: Json, depth: int) -> Json:
        if isinstance(value, str):
            return self._reveal_text(server, value)
        if isinstance(value, int) and value >= 10**18:
            known = self._kept.find(str(value))
            if known is None:
                return value
            # The first text may have had separators between the digits.
            return int("".join(filter(str.isdigit, self._reveal_value(server, known))))
        if not isinstance(value, (dict, list)):
            return value
        if depth >= MAX_DEPTH:
            raise InvalidRequestError("The arguments are nested too deeply.")
        if isinstance(value, list):
            return [self._reveal(server, item, depth + 1) for item in value]
        return {
            self._reveal_text(server, key) if isinstance(key, str) else key: self._reveal(
                server, item, depth + 1
            )
            for key, item in value.items()
        }

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
