"""Secrets taken out of what reaches a sandbox, a model or a log.

Owns what becomes of a secret that is found: what stands in its place, and that texts stay texts and
JSON stays JSON of the same shape. Which values are secrets is told from outside
(`bridge.engine.secrets`); in which forms they are found is `redaction_needles`' affair, and what is
one by its look alone `redaction_shapes`'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from bridge.gate.redaction_needles import Needles, json_needles, text_needles
from bridge.gate.redaction_shapes import (
    MASK_BEGINS,
    could_be_password,
    mask,
    masked,
    names_secret,
)
from bridge.model import Json
from bridge.text import unlike

MAX_SECRETS = 1000
MAX_SECRET_CHARS = 64 * 1024
"""Of one that is looked for; keys and certificates have some thousand."""

MAX_HELD_BYTES = 8 * MAX_SECRET_CHARS
"""Of a stream: more than any form of a secret has."""

MAX_NAME = 100
"""Characters of what a secret is shown as."""

MAX_DEPTH = 100
"""Of arguments that are shown; what is nested more deeply is left out."""

_DEEPER = "[nested too deeply to be shown]"

_NO_MASK = f"[the text: {MASK_BEGINS[1:]}"
"""What a text has, where it is shown, that only reads like a mask."""

_UNSAFE = re.compile(r"[^ !#-\[\]-~]")
"""What would have to be escaped in JSON."""

# What comes from JSON has no circles, and to look for them is half of the work.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


class Redactor:
    """Takes known values out of texts, JSON and frames.

    There is one for a bridge. What it knows may change; whoever keeps something that was cleared
    keeps `revision` with it.

    Args:
        known: Secret to what it is shown as ("GITHUB_TOKEN of github").

    Attributes:
        revision: Another number whenever it knows other secrets.
    """

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self._known: dict[str, str] = {}
        self._texts = Needles((), escaped=False)
        self._frames = Needles((), escaped=True)
        self.revision = 0
        self.learn(known or {})

    def __repr__(self) -> str:
        return f"<Redactor secrets={len(self._known)}>"

    def learn(self, known: Mapping[str, str]) -> None:
        """Look for these from now on, and for no others."""
        wanted = {
            secret: _mark(name)
            for secret, name in list(known.items())[:MAX_SECRETS]
            if secret and len(secret) <= MAX_SECRET_CHARS
        }
        if wanted == self._known:
            return
        self._known = wanted
        self._texts = Needles(text_needles(wanted), escaped=False)
        self._frames = Needles(json_needles(wanted), escaped=True)
        self.revision += 1

    def text(self, text: str) -> str:
        """Return a text without known secrets; the very same if there are none in it."""
        if not self._known or not text:
            return text
        data = text.encode("utf-8", "surrogatepass")
        cleared = self.encoded(data)
        return text if cleared is data else cleared.decode("utf-8", "surrogatepass")

    def encoded(self, data: bytes) -> bytes:
        """Return the bytes of a text without known secrets; the very same if there are none."""
        return self._texts.replaced(data) if self._known and data else data

    def stream(self) -> ClearedStream:
        """Return what clears a text that comes in pieces."""
        return ClearedStream(self)

    def so_far(self, data: bytes) -> tuple[bytes, int]:
        """Return what is certain of a text that goes on, cleared, and how much of `data` it was."""
        return self._texts.replaced_so_far(data) if self._known else (data, len(data))

    def frame(self, line: bytes) -> bytes:
        """Return a line of JSON without known secrets in its texts and keys.

        Raises:
            ValueError: It has some, and is no JSON, or is nested too deeply.
        """
        cleared = self._frames.replaced(line) if self._known else line
        if cleared is line:
            return line
        try:
            json.loads(cleared)
        except RecursionError:
            raise ValueError(_DEEPER) from None
        except ValueError:
            # It also stands outside of texts, as a number or as marks between values.
            return self._texts_only(line)
        return cleared

    def _texts_only(self, line: bytes) -> bytes:
        try:
            cleared = json.dumps(self._cleared(json.loads(line)), separators=(",", ":"))
        except RecursionError:
            raise ValueError(_DEEPER) from None
        return cleared.encode("ascii") + (b"\n" if line.endswith(b"\n") else b"")

    def _cleared(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self._cleared(item) for key, item in value.items()}
        return [self._cleared(item) for item in value] if isinstance(value, list) else value

    def value(self, value: Json) -> Json:
        """Return a value without known secrets, keys included; the very same if there are none.

        Raises:
            ValueError: It is not JSON.
            TypeError: Likewise.
        """
        if not self._known or value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self.text(value)
        try:
            line = _ENCODER.encode(value).encode("utf-8", "surrogatepass")
        except RecursionError:
            message = "the value is nested too deeply"
            raise ValueError(message) from None
        cleared = self.frame(line)
        if cleared is line:
            return value
        return json.loads(cleared.decode("utf-8", "surrogatepass"))

    def arguments(self, value: Json, schema: Json = None) -> Json:
        """Return arguments as questions, plans and the audit log show them.

        Known secrets are left out, and nothing else is: what has the format of a secret, and the
        value of a parameter that names one, have a mask with their ends, length and digest. The
        very same if there is nothing of the kind in them.

        Args:
            schema: Of the tool's arguments. A name that it does not have masks nothing: a program
                could hide what it likes under one.
        """
        texts = _texts(value)
        if texts is not None:
            # To search them all at once takes a fifth of the time, and this is done for each call.
            # A line feed is in none of the formats, and whatever precedes or follows one of them
            # may be a line feed. What seems to reach over two texts is looked at again.
            together = "\n".join(texts)
            if self.shown(together) is together:
                return value
        return self._shown(value, _Schema(schema), 0)

    def shown(self, text: str) -> str:
        """Return a text as it may be logged and shown, likewise."""
        if MASK_BEGINS in text:
            text = text.replace(MASK_BEGINS, _NO_MASK)
        return masked(self.text(text))

    def _password(self, text: str) -> str:
        # A known secret has no mask that shows some of it.
        whole = could_be_password(text) and self.text(text) is text
        return mask(text) if whole else self.shown(text)

    def _shown(self, value: Json, schema: _Schema, depth: int) -> Json:
        if isinstance(value, str):
            return self.shown(value)
        if not isinstance(value, (dict, list, tuple)):
            return value
        if depth >= MAX_DEPTH:
            return _DEEPER
        if isinstance(value, dict):
            found: dict[Json, Json] = {}
            for key, item in value.items():
                shown = unlike(self.shown(key), found) if isinstance(key, str) else key
                if isinstance(item, str) and schema.names_secret(key):
                    found[shown] = self._password(item)
                else:
                    found[shown] = self._shown(item, schema.below(key), depth + 1)
            return found
        items = schema.below(None)
        return [self._shown(item, items, depth + 1) for item in value]


class _Schema:
    """The part of a tool's schema that describes one value: nothing where that is not plain."""

    def __init__(self, schema: Json, root: Json = None) -> None:
        self._root = schema if root is None else root
        self._here = schema if isinstance(schema, Mapping) else {}
        reference = self._here.get("$ref")
        if isinstance(reference, str) and isinstance(self._root, Mapping):
            where, _, name = reference.rpartition("/")
            defined = self._root.get(where.removeprefix("#/"))
            found = defined.get(name) if isinstance(defined, Mapping) else None
            self._here = found if isinstance(found, Mapping) else {}

    def names_secret(self, key: str) -> bool:
        """Tell whether this is a parameter, and one for a secret."""
        properties = self._here.get("properties")
        return isinstance(properties, Mapping) and key in properties and names_secret(key)

    def below(self, key: str | None) -> _Schema:
        """Return what describes the value of a key, or the items of a list."""
        if key is None:
            return _Schema(self._here.get("items"), self._root)
        properties = self._here.get("properties")
        known = properties.get(key) if isinstance(properties, Mapping) else None
        return _Schema(known, self._root)


class ClearedStream:
    """Takes secrets out of a text that comes in pieces, and also those that two pieces share.

    Holds back what could be the beginning of one, and nothing else: whoever looks on sees a
    line when it is written.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what is certain so far."""
        text = self._held + data if self._held else data
        cleared, end = self._redactor.so_far(text)
        self._held = text[end:]
        if len(self._held) > MAX_HELD_BYTES:
            # Nothing but secrets that overlap, or the beginning of an enormous one.
            return cleared + self.finish()
        return cleared

    def finish(self) -> bytes:
        """Return what was held back, when nothing follows."""
        held, self._held = self._held, b""
        return self._redactor.encoded(held)


def _texts(value: Json) -> list[str] | None:
    """Return all texts in arguments; None if some may be masked whatever they say."""
    found: list[str] = []
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Json] = []
        for one in level:
            if isinstance(one, str):
                found.append(one)
            elif isinstance(one, dict):
                for key, item in one.items():
                    if not isinstance(key, str) or names_secret(key):
                        return None
                    found.append(key)
                    below.append(item)
            elif isinstance(one, (list, tuple)):
                below.extend(one)
        if not below:
            return found
        level = below
    return None


def _mark(name: str) -> str:
    """Return what stands in a secret's place. It needs no escape in JSON."""
    return f"{MASK_BEGINS}{_UNSAFE.sub('?', name)[:MAX_NAME]}]"
