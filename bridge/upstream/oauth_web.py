"""HTTP clients, and requests to authorization servers with bounds on addresses, time and size.

The addresses come from a server that may be hostile, and the requests carry secrets.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
from contextlib import aclosing, suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl
from urllib.request import proxy_bypass

import anyio
import httpx2
from mcp.shared.auth import OAuthToken

from bridge.guest.schema.schemas import as_mapping

logger = logging.getLogger(__name__)

MAX_DOCUMENT_BYTES = 256 * 1024  # Of an authorization server's response; a few thousand are usual.

RESPONSE_SECONDS = 15.0  # Of one request, from connecting to the response's last byte.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")  # A scope by the specification (RFC 6749).
MAX_SCOPE_CHARS = 1024  # Of all scopes that a server demands; more are left out.
MAX_FAILURE_CHARS = 300  # Of an authorization server's text on a failure.

_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")  # A line break would make two headers.

_FORM = re.compile(r"\w+=[\w.~%+*&=/:-]+\s*", re.ASCII)
_SECRET = re.compile(r"(?=[\w~+/=-]*[A-Z0-9])[\w~+/=-]{16,}")  # Words that may be tokens.


class WebError(Exception):
    """A login or one of its requests failed. The text and the error's name contain no secret."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


def safe_url(url: httpx2.URL) -> str:
    """Return a URL without user name, password, query and fragment, which may be secrets."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


def url_problem(url: httpx2.URL, server: httpx2.URL) -> str:
    """Return why a URL must not be used for logging in to `server`; empty if it may.

    The specification allows another host. But secrets leave this machine only encrypted, and a
    remote server must not make the bridge connect to this machine.
    """
    if url.scheme not in ("http", "https") or not url.host:
        return "it is not an http or https URL"
    if url.userinfo:
        return "it contains a user name or a password"
    local = is_loopback(server.host)
    if url.scheme == "http" and not (local and is_loopback(url.host)):
        return "it is not encrypted"
    if not local and _is_local_address(url.host):
        return "it is an address of this machine or of its network's equipment"
    return ""


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _is_local_address(host: str) -> bool:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        try:
            # The system also accepts older spellings of addresses, such as 127.1 and 2130706433.
            address = ip_address(socket.inet_aton(host.rstrip(".")))
        except (OSError, UnicodeError):
            return is_loopback(host) or host.rstrip(".").lower().endswith(".localhost")
    address = getattr(address, "ipv4_mapped", None) or address
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    )


def same_origin(url: httpx2.URL, server: httpx2.URL) -> bool:
    if (url.scheme, url.host, url.port) == (server.scheme, server.host, server.port):
        return True
    upgraded = (server.scheme, url.scheme) == ("http", "https")
    return upgraded and url.host == server.host and url.port is None and server.port is None


class WebClient(httpx2.AsyncClient):
    """An HTTP client that accepts a company's certificates, and uses no proxy for loopback."""

    def __init__(self, **options: Any) -> None:
        context = httpx2.create_ssl_context()
        for variable in ("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"):
            path = os.environ.get(variable, "")
            if os.path.isfile(path):  # noqa: PTH113 - an empty path is none
                context.load_verify_locations(path)
            elif path:
                logger.warning("%s names no file of certificates: %s", variable, path)
        super().__init__(verify=context, **options)

    def _transport_for_url(self, url: httpx2.URL) -> httpx2.AsyncBaseTransport:
        return self._transport if is_loopback(url.host) else super()._transport_for_url(url)


def explain_route(url: httpx2.URL, error: BaseException) -> str:
    """Return a proxy or certificate that may explain a failed connection; may be empty."""
    explanation = ""
    names = (f"{url.scheme}_proxy", f"{url.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next(filter(os.environ.get, names), "")
    if variable and not is_loopback(url.host) and not proxy_bypass(url.host):
        # Not parsed, because parts of a malformed one could be secrets.
        proxy = os.environ[variable].rpartition("//")[2].rpartition("@")[2]
        explanation = f" (through the proxy {proxy} of {variable}; NO_PROXY makes exceptions)"
    if "CERTIFICATE_VERIFY_FAILED" in f"{error!r} {error.__cause__!r} {error.__context__!r}":
        explanation += (
            " (if your network has an authority of its own, set NODE_EXTRA_CA_CERTS, SSL_CERT_FILE "
            "or REQUESTS_CA_BUNDLE to the file of its certificate)"
        )
    return explanation


async def fetch(
    client: httpx2.AsyncClient,
    request: httpx2.Request,
    server: httpx2.URL,
    *,
    head_only: bool = False,
) -> httpx2.Response:
    """Send a request and return its response, within bounds and without following redirects.

    With `head_only` the body, perhaps an endless event stream, is not read.
    """
    where = safe_url(request.url)
    if problem := url_problem(request.url, server):
        raise WebError(f"{where} is not used: {problem}")
    # A small compressed response may be a large document.
    request.headers["accept-encoding"] = "identity"
    request.headers.setdefault("accept", "application/json")
    body = bytearray()
    try:
        with anyio.fail_after(RESPONSE_SECONDS):
            response = await client.send(request, stream=True, follow_redirects=False)
            encoding = response.headers.get("content-encoding", "identity").strip().lower()
            async with aclosing(response):
                if head_only:
                    return response
                if encoding != "identity":
                    text = "answered with a compressed document, which was not asked for"
                    raise WebError(f"{where} {text}")
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_DOCUMENT_BYTES:
                        text = f"answered with more than {MAX_DOCUMENT_BYTES} bytes"
                        raise WebError(f"{where} {text}")
    except TimeoutError:
        raise WebError(f"{where} did not answer within {RESPONSE_SECONDS:g} s") from None
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        why = explain_route(request.url, error)
        raise WebError(f"{where} cannot be reached ({type(error).__name__}){why}") from error
    return httpx2.Response(
        response.status_code, headers=response.headers, content=bytes(body), request=request
    )


def read_tokens(response: httpx2.Response) -> OAuthToken:
    """Return the tokens of a response in JSON or a form, or in a nested object as Slack sends.

    Raises a `WebError` if it has no usable access token. Other fields are optional.
    """
    document = read_document(response) if response.is_success else None
    objects = [document, *document.values()] if isinstance(document, dict) else []
    fields = next((o for o in objects if isinstance(o, dict) and o.get("access_token")), {})
    access, refresh, scope = map(fields.get, ("access_token", "refresh_token", "scope"))
    if not isinstance(access, str) or not _TOKEN.fullmatch(access):
        lack = ", without a usable `access_token`" if objects else ""
        raise WebError(describe_response(response) + lack, error_name(response))
    if isinstance(scope, list):
        scope = " ".join(each for each in scope if isinstance(each, str))
    life = 0
    with suppress(TypeError, ValueError, OverflowError):
        life = math.ceil(min(float(fields.get("expires_in") or 0), 366 * 86400.0))
    return OAuthToken(
        access_token=access,
        refresh_token=refresh if isinstance(refresh, str) and _TOKEN.fullmatch(refresh) else None,
        expires_in=life if life > 0 else None,
        scope=scope if isinstance(scope, str) else None,
    )


def read_document(response: httpx2.Response) -> Any:
    """Return the fields of JSON or a form; None if a body is neither."""
    with suppress(ValueError, RecursionError, httpx2.StreamError):
        return json.loads(response.content)
    return dict(parse_qsl(response.text)) if _FORM.fullmatch(response.text) else None


def describe_response(response: httpx2.Response) -> str:
    """Return a response's address, status and beginning of the body, without secrets."""
    text = f"{safe_url(response.request.url)} answered with HTTP status {response.status_code}"
    name, body = error_name(response), response.text[: 16 * MAX_FAILURE_CHARS]
    if response.is_success and (re.search("token|secret", body) or read_document(response)):
        return f"{text}, {name}" if name else text
    for field, value in parse_qsl(response.request.content.decode("utf-8", "replace")):
        body = body.replace(value, "…") if re.search("token|code|secret", field) else body
    body = shorten(_SECRET.sub("…", " ".join(body.split())))
    return f"{text}: {body}" if body else f"{text} and an empty body"


def shorten(text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    return text[:MAX_FAILURE_CHARS] + ("…" if len(text) > MAX_FAILURE_CHARS else "")


def error_name(response: httpx2.Response) -> str:
    document: Any = None
    with suppress(ValueError, RecursionError, httpx2.StreamError):
        document = json.loads(response.content)
    return safe_error_name(as_mapping(document).get("error"))


def safe_error_name(error: object) -> str:
    return error if isinstance(error, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", error) else ""


def joined_scopes(*scopes: str) -> str:
    """Return the valid scopes once each, in order and within `MAX_SCOPE_CHARS`."""
    kept: list[str] = []
    room = MAX_SCOPE_CHARS
    for scope in " ".join(scopes)[: 64 * MAX_SCOPE_CHARS].split(" "):
        if scope in kept or not _SCOPE.fullmatch(scope):
            continue
        room -= len(scope) + 1
        if room < 0:
            break
        kept.append(scope)
    return " ".join(kept)
