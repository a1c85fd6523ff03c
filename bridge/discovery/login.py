"""What an entry says about logging in to its server, in every client's spelling.

Owns `oauth` and its kin. Nothing here makes an entry unusable: what is wrong is ignored with a
warning, since a server may well let us in without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from bridge.discovery.documents import kind
from bridge.discovery.fields import FieldReader, UnusableError
from bridge.model import OAuthHints

MAX_SCOPES = 200

_TABLES = ("oauth", "auth", "oauthClient")
_CLIENT_ID = ("clientId", "client_id", "CLIENT_ID")
_CLIENT_SECRET = ("clientSecret", "client_secret", "CLIENT_SECRET")
_SCOPES = ("scopes", "scope", "oauthScopes")
_OUTER_SCOPES = ("oauthScopes", "scopes")
_MAX_PORT = 65535


def oauth_hints(entry: Mapping[str, object], reader: FieldReader) -> OAuthHints | None:
    """How to log in to a remote server; None if the entry says nothing of that."""
    label = next((name for name in _TABLES if isinstance(entry.get(name), Mapping)), "")
    table = entry.get(label)
    if not isinstance(table, Mapping) or table.get("enabled") is False:
        table = {}
        label = ""
    client_id = _text(table, _CLIENT_ID, label, reader) or _text(
        entry, ("oauthClientId",), "", reader
    )
    scopes = _scopes(table, _SCOPES, label, reader) or _scopes(entry, _OUTER_SCOPES, "", reader)
    if not label and not client_id and not scopes:
        return None
    return OAuthHints(
        client_id=client_id,
        client_secret=_text(table, _CLIENT_SECRET, label, reader),
        scopes=scopes,
        callback_port=_port(table, label, reader),
    )


def _text(
    table: Mapping[str, object], names: tuple[str, ...], outer: str, reader: FieldReader
) -> str:
    name = next((name for name in names if table.get(name) is not None), None)
    if name is None:
        return ""
    label = f"{outer}.{name}" if outer else name
    try:
        return reader.text(table[name], label, "oauth")
    except UnusableError as error:
        reader.warn("", f"ignored: {error}")
        return ""


def _scopes(
    table: Mapping[str, object], names: tuple[str, ...], outer: str, reader: FieldReader
) -> tuple[str, ...]:
    name = next((name for name in names if table.get(name) is not None), None)
    if name is None:
        return ()
    value = table[name]
    label = f"{outer}.{name}" if outer else name
    words = value.split() if isinstance(value, str) else value
    if (
        not isinstance(words, list)
        or len(words) > MAX_SCOPES
        or not all(isinstance(word, str) for word in words)
    ):
        reader.warn(label, f"ignored: it must name at most {MAX_SCOPES} scopes, not {kind(value)}")
        return ()
    return tuple(words)


def _port(table: Mapping[str, object], outer: str, reader: FieldReader) -> int | None:
    value = table.get("callbackPort", table.get("callback_port"))
    if value is None and isinstance(redirect := table.get("redirectUri"), str):
        # Kiro writes host and port, the others a URL.
        try:
            return urlsplit(redirect if "//" in redirect else f"//{redirect}").port or None
        except ValueError:
            reader.warn(f"{outer}.redirectUri", "ignored: it has no usable port")
            return None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_PORT:
        reader.warn(f"{outer}.callbackPort", f"ignored: it must be a port, 1 to {_MAX_PORT}")
        return None
    return value
