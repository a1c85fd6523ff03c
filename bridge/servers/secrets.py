"""Which values of this machine are secrets, so that nothing of them leaves it.

Owns where they are looked for: the definitions of the user's servers, the logins in use, and those
variables of the bridge's own environment that its servers inherit. What makes a value a secret is
`bridge.gate.redaction_shapes`' rule, and what becomes of one that turns up `bridge.gate.redaction`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from bridge.gate.redaction import Redactor
from bridge.gate.redaction_shapes import (
    LEAST_NAMED,
    LEAST_WORDS,
    could_be_secret,
    has_known_format,
    is_secret,
    looks_random,
    names_setting,
)
from bridge.model import Json, ServerSpec

MAX_TOKENS = 8
"""Of one login: those that it had before may still stand in what its server says."""

MAX_LOGINS = 200

MAX_JSON_DEPTH = 20
"""Of a variable that holds JSON."""

MAX_LINES = 200
"""Of a private key, each of which is looked for by itself."""

LEAST_LINE = 24
"""Characters of such a line; shorter ones are of the frame around it."""

OWN_PREFIX = "MCP_BRIDGE_"
INPUT_PREFIX = "MCP_BRIDGE_INPUT_"

ENVIRONMENT = "the environment"

_BLANK = re.compile(r"\s")

Found = Iterator[tuple[str, str]]
"""Secrets, each with the name of what it was found in."""


class Secrets:
    """What is secret at this moment, and the one `Redactor` that knows it.

    Args:
        environ: The bridge's own environment.

    Attributes:
        changed: Called when other values are secret than before.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.redactor = Redactor()
        self.changed: Callable[[], None] | None = None
        self._inherited = dict(_named(of_environment(environ or {}), ENVIRONMENT))
        self._configured: dict[str, str] = {}
        self._logins: OrderedDict[str, OrderedDict[str, str]] = OrderedDict()
        self._tell()

    def configure(self, specs: Iterable[ServerSpec]) -> None:
        """Take the definitions of all servers that there are now."""
        self._configured = {}
        for spec in specs:
            for secret, name in _named(of_spec(spec), spec.name):
                # Of several names the first, as with everything else in a configuration.
                self._configured.setdefault(secret, name)
        self._tell()

    def login(self, server: str, values: Mapping[str, str]) -> None:
        """Take what a login is worth now: names of tokens to tokens."""
        kept = self._logins.setdefault(server, OrderedDict())
        self._logins.move_to_end(server)
        news = False
        for name, value in values.items():
            # Whoever gives out tokens must not have the bridge cut what it likes out of all texts.
            if _is_credential(value) and not _BLANK.search(value) and value not in kept:
                kept[value] = f"{name} of {server}"
                news = True
        while len(kept) > MAX_TOKENS:
            kept.popitem(last=False)
        while len(self._logins) > MAX_LOGINS:
            self._logins.popitem(last=False)
        if news:
            self._tell()

    def _tell(self) -> None:
        known = dict(self._inherited)
        for kept in self._logins.values():
            known.update(kept)
        # Last, since of several names a server's own says most.
        known.update(self._configured)
        before = self.redactor.revision
        self.redactor.learn(known)
        if self.changed is not None and self.redactor.revision != before:
            self.changed()


def _named(found: Found, owner: str) -> Iterator[tuple[str, str]]:
    for name, value in found:
        for part in _parts(value):
            yield part, f"{name} of {owner}"


def _parts(value: str) -> Iterator[str]:
    """Yield a secret, and the lines of a private key: what quotes one seldom has its breaks."""
    value = value.strip()
    if len(value) < LEAST_NAMED:
        return
    yield value
    if "\n" in value:
        lines = [line.strip() for line in value.splitlines()[:MAX_LINES]]
        yield from (line for line in lines if len(line) >= LEAST_LINE and "-----" not in line)


def of_environment(environ: Mapping[str, str]) -> Found:
    """Yield the secrets among the variables that servers inherit, and the answers to inputs."""
    for name, value in environ.items():
        if name.startswith(INPUT_PREFIX):
            # Inputs are what clients ask for as passwords; whoever sets one says so.
            if could_be_secret(value) or has_known_format(value):
                yield name, value
        elif not name.startswith(OWN_PREFIX) and names_setting(name):
            yield from of_setting(name, value)


def of_spec(spec: ServerSpec) -> Found:
    """Yield the secrets in a server's definition."""
    for name, value in spec.env.items():
        yield from of_setting(name, value)
    for name, value in spec.headers.items():
        yield from of_header(name, value)
    yield from of_url("url", spec.url)
    yield from of_words(spec.args)
    if spec.oauth is not None and _is_credential(spec.oauth.client_secret):
        yield "OAuth client secret", spec.oauth.client_secret


def of_setting(name: str, value: str, depth: int = 0) -> Found:
    """Yield the secrets in one value of a configuration."""
    text = value.strip()
    if text[:1] in ("{", "[") and depth == 0:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            yield from _of_json(name, document, 0)
            return
    if "://" in text:
        yield from of_url(name, text)
    if is_secret(text, name):
        yield name, text


def _of_json(name: str, value: Json, depth: int) -> Found:
    if depth > MAX_JSON_DEPTH:
        return
    if isinstance(value, str):
        if names_setting(name) or value.partition(" ")[0].lower() in _SCHEMES:
            yield from of_header(name, value)
        yield from of_setting(name, value, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _of_json(key, item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _of_json(name, item, depth + 1)


_SCHEMES = ("bearer", "basic", "token", "apikey", "digest")
"""What stands before a token in a header."""


def of_header(name: str, value: str) -> Found:
    """Yield the secrets in a header: never its scheme, and of a pair of names no name."""
    text = value.strip()
    if name.strip().lower() in ("cookie", "set-cookie"):
        for pair in text.split(";"):
            key, _, part = pair.strip().partition("=")
            if could_be_secret(part):
                yield f"cookie {key}", part
        return
    scheme, _, rest = text.partition(" ")
    if scheme.lower() in _SCHEMES and rest.strip():
        text = rest.strip()
        if scheme.lower() == "basic":
            yield from _of_basic(name, text)
        if _is_credential(text):
            yield name, text
        return
    yield from of_setting(name, text)


def _is_credential(value: str) -> bool:
    """Tell whether what can be nothing but a secret can be searched for."""
    return could_be_secret(value) or len(value) >= LEAST_WORDS


def _of_basic(name: str, text: str) -> Found:
    try:
        pair = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return
    password = pair.partition(":")[2]
    if could_be_secret(password):
        yield f"{name} password", password


def of_url(name: str, url: str) -> Found:
    """Yield the secrets in an address: a password, parameters called so, and parts of the path."""
    if "://" not in url:
        return
    try:
        split = urlsplit(url)
        user, password = split.username or "", split.password or ""
        query = parse_qsl(split.query, max_num_fields=100)
        fragment = parse_qsl(split.fragment, max_num_fields=100)
    except ValueError:
        return
    for text in dict.fromkeys((password, unquote(password))):
        if could_be_secret(text):
            yield f"password in {name}", text
    # A name is public, but a token that stands alone in its place is not.
    for text in dict.fromkeys((user, unquote(user))):
        if has_known_format(text) or looks_random(text):
            yield f"user in {name}", text
    for key, value in (*query, *fragment):
        if is_secret(value, key):
            yield f"{key} in {name}", value
    for part in split.path.split("/"):
        text = unquote(part)
        if has_known_format(text) or looks_random(text):
            yield f"path of {name}", text


_HEADER_OPTIONS = ("-H", "--header", "--headers")


def of_words(words: Iterable[str]) -> Found:
    """Yield the secrets among the words of a command."""
    before = ""
    for word in words:
        option, before = before, word
        if option in _HEADER_OPTIONS or (" " in word and word.partition(":")[0].isidentifier()):
            name, colon, value = word.partition(":")
            if colon:
                yield from of_header(name.strip(), value)
                continue
        name, equals, value = word.partition("=")
        if equals and _is_name(name):
            yield from of_setting(name.lstrip("-"), value)
        elif option.startswith("-") and "=" not in option and not word.startswith("-"):
            yield from of_setting(option.lstrip("-"), word)
        elif "://" in word or has_known_format(word) or looks_random(word):
            yield from of_setting("argument", word)


def _is_name(text: str) -> bool:
    return text.lstrip("-").replace("-", "_").isidentifier()
