"""Collects the secrets of this machine, so that texts leaving it can be redacted.

Sources are the definitions of the user's servers, the active logins, and the variables that servers
inherit from the bridge.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import parse_qsl, unquote, urlsplit

from bridge.discovery.variables import INPUT_PREFIX
from bridge.gate.redaction import Redactor
from bridge.gate.redaction_shapes import (
    LEAST_NAMED,
    LEAST_SHAPED,
    LEAST_WORDS,
    could_be_secret,
    has_known_format,
    is_secret,
    looks_random,
    names_setting,
)
from bridge.model import Json, ServerSpec
from bridge.settings.policy import matcher

MAX_TOKENS = 8  # An authorization server may send tokens without end. Texts have earlier ones.

_BLANK = re.compile(r"\s")

Found = Iterator[tuple[str, str]]  # Pairs of the name of a setting and the secret in it.


class Secrets:
    """The current secrets, and the `Redactor` that removes them.

    `names` are globs of variables and headers with secrets; a leading "-" marks those without.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, names: Sequence[str] = ()) -> None:
        self._named = matcher(*(name for name in names if name[0] != "-"))
        self._public = matcher(*(name[1:] for name in names if name[0] == "-"))
        self.redactor = Redactor()
        self.changed: Callable[[], None] | None = None  # Called after the secrets have changed.
        environ = environ or {}
        found = (*self._by_name(environ), *environment_secrets(environ))
        self._inherited = dict(self._secrets(found, "the environment"))
        self._configured: dict[str, str] = {}
        self._logins: dict[str, OrderedDict[str, str]] = {}
        self._update_redactor()

    def configure(self, specs: Iterable[ServerSpec]) -> None:
        self._configured = {}
        for spec in specs:
            found = (*self._by_name(spec.env), *self._by_name(spec.headers), *spec_secrets(spec))
            for secret, name in self._secrets(found, spec.name):
                # The first of several names wins, as elsewhere in a configuration.
                self._configured.setdefault(secret, name)
        self._update_redactor()

    def login(self, server: str, values: Mapping[str, str]) -> None:
        kept = self._logins.setdefault(server, OrderedDict())
        changed = False
        for name, value in values.items():
            # A hostile login server must not remove ordinary words from all texts.
            if _is_credential(value) and not _BLANK.search(value) and value not in kept:
                kept[value] = f"{name} of {server}"
                changed = True
        while len(kept) > MAX_TOKENS:
            kept.popitem(last=False)
        if changed:
            self._update_redactor()

    def _update_redactor(self) -> None:
        known = dict(self._inherited)
        for kept in self._logins.values():
            known.update(kept)
        # Last, because the name of a server's setting is more useful.
        known.update(self._configured)
        before, counts = self.redactor.revision, Counter[str]()
        for secret, name in known.items():
            # Each mark stands for one secret, such as an earlier token or a line of a key.
            counts[name] += 1
            known[secret] = name if counts[name] == 1 else f"{name} ({counts[name]})"
        # A short secret may be a part of other words, as "admin123" of "admin1234".
        words = (each for each in known if len(each) < LEAST_SHAPED)
        self.redactor.learn(known, frozenset(w for w in words if not has_known_format(w)))
        if self.changed is not None and self.redactor.revision != before:
            self.changed()

    def _by_name(self, settings: Mapping[str, str]) -> Found:
        return ((name, value) for name, value in settings.items() if self._named(name.lower()))

    def _secrets(self, found: Iterable[tuple[str, str]], owner: str) -> Found:
        for name, value in found:
            value = value.strip()
            if len(value) < LEAST_NAMED or self._public(name.rpartition(" in ")[2].lower()):
                continue
            yield value, f"{name} of {owner}"
            # Quoted private keys often lack their line breaks. Shorter lines are header and footer.
            for line in map(str.strip, value.splitlines() if "\n" in value else ()):
                if len(line) >= 24 and "-----" not in line:
                    yield line, f"{name} of {owner}"


def environment_secrets(environ: Mapping[str, str]) -> Found:
    """Yield the secrets among the variables that servers inherit, and the values of inputs."""
    for name, value in environ.items():
        if name.startswith(INPUT_PREFIX):
            # Clients ask for inputs as passwords, so each value is a secret.
            if could_be_secret(value) or has_known_format(value):
                yield name, value
        elif name == "MCP_BRIDGE_STORE":
            yield from url_secrets(name, value)
        elif not name.startswith("MCP_BRIDGE_") and names_setting(name):
            yield from setting_secrets(name, value)


def spec_secrets(spec: ServerSpec) -> Found:
    for name, value in spec.env.items():
        yield from setting_secrets(name, value)
    for name, value in spec.headers.items():
        yield from header_secrets(name, value)
    yield from url_secrets("url", spec.url)
    yield from command_secrets(spec.args)
    if spec.oauth is not None and _is_credential(spec.oauth.client_secret):
        yield "OAuth client secret", spec.oauth.client_secret


def setting_secrets(name: str, value: str, depth: int = 0) -> Found:
    text = value.strip()
    if text[:1] in ("{", "[") and depth == 0:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            yield from _json_secrets(name, document, 0)
            return
    if "://" in text:
        yield from url_secrets(name, text)
    if is_secret(text, name):
        yield name, text


def _json_secrets(name: str, value: Json, depth: int) -> Found:
    if depth > 20:
        return
    if isinstance(value, str):
        if names_setting(name) or value.partition(" ")[0].lower() in _SCHEMES:
            yield from header_secrets(name, value)
        yield from setting_secrets(name, value, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _json_secrets(key, item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _json_secrets(name, item, depth + 1)


_SCHEMES = ("bearer", "basic", "token", "apikey", "digest")  # Words before a token in a header.


def header_secrets(name: str, value: str) -> Found:
    """Yield the secrets in a header, without its scheme and without the names of cookies."""
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
            with suppress(binascii.Error, ValueError):
                pair = base64.b64decode(text, validate=True).decode()
                if could_be_secret(password := pair.partition(":")[2]):
                    yield f"{name} password", password
        if _is_credential(text):
            yield name, text
        return
    yield from setting_secrets(name, text)


def _is_credential(value: str) -> bool:
    return could_be_secret(value) or len(value) >= LEAST_WORDS


def url_secrets(name: str, url: str) -> Found:
    """Yield the secrets in a URL: the password, secret parameters, and tokens in the path."""
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
    # A user name is public, but a token that replaces it is not.
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


def command_secrets(words: Iterable[str]) -> Found:
    before = ""
    for word in words:
        option, before = before, word
        if option in ("-H", "--header", "--headers") or (
            " " in word and word.partition(":")[0].isidentifier()
        ):
            name, colon, value = word.partition(":")
            if colon:
                yield from header_secrets(name.strip(), value)
                continue
        name, equals, value = word.partition("=")
        if equals and name.lstrip("-").replace("-", "_").isidentifier():
            yield from setting_secrets(name.lstrip("-"), value)
        elif option.startswith("-") and "=" not in option and not word.startswith("-"):
            yield from setting_secrets(option.lstrip("-"), word)
        elif "://" in word or has_known_format(word) or looks_random(word):
            yield from setting_secrets("argument", word)
