"""Where the browser comes back to: a listener on loopback for one answer.

Owns the few lines of HTTP that this takes. Any page in any of the user's browsers, and any program
of this machine, can connect here; so a request is small and quick or it is dropped, one without
the login's secret state changes nothing, and what came with it is never shown as it is.
"""

from __future__ import annotations

import html
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream

from bridge.upstream.oauth_web import named

logger = logging.getLogger(__name__)

PATH = "/callback"

MAX_HEAD_BYTES = 32 * 1024
"""Of a request. Codes may have some thousand bytes, and a browser adds its cookies."""

HEAD_SECONDS = 10.0
"""For all of a request to arrive, and for its answer to be taken."""

MAX_CONNECTIONS = 16
"""At a time. A browser opens two or three; more than this are closed at once."""

MAX_DESCRIPTION_CHARS = 300
"""Of what an authorization server says about an error."""

Host = Literal["127.0.0.1", "localhost"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the authorization server sent with the browser.

    Attributes:
        error, description: Why there is no code.
        issuer: Who says so, if that was said.
    """

    state: str = field(repr=False)
    code: str = field(default="", repr=False)
    error: str = ""
    description: str = ""
    issuer: str | None = None


@dataclass(frozen=True)
class _Page:
    status: str
    title: str
    text: str


_DONE = _Page(
    "200 OK", "Logged in", "You can close this page. The terminal says whether all went well."
)
_USED = _Page("410 Gone", "Already used", "This login is over. To log in again, start a new one.")
_FOREIGN = _Page(
    "400 Bad Request",
    "Not this login",
    "This answer does not belong to the login that is under way. Nothing was changed. Use the "
    "address that the terminal shows now.",
)
_NOTHING = _Page("404 Not Found", "Nothing here", "This address is for logging in only.")
_WRONG = _Page("400 Bad Request", "Not understood", "This is no request that can be answered.")


class Callback:
    """Waits for the browser. `expect` says for which answer."""

    def __init__(self, host: Host, port: int) -> None:
        self.port = port
        self.redirect_uri = f"http://{host}:{port}{PATH}"
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._state = ""
        self._answer: Answer | None = None
        self._answered = anyio.Event()
        self._connections = 0

    def expect(self, state: str) -> None:
        """Take the answer that carries `state`, once, and none before this is called."""
        self._state = state

    async def wait(self) -> Answer:
        """Return the answer, whenever it comes."""
        await self._answered.wait()
        if self._answer is None:
            raise AssertionError
        return self._answer

    async def serve(self, stream: SocketStream) -> None:
        """Answer one connection's one request."""
        if self._connections >= MAX_CONNECTIONS:
            await stream.aclose()
            return
        self._connections += 1
        try:
            async with stream:
                with anyio.move_on_after(HEAD_SECONDS):
                    head = await _read_head(stream)
                    await stream.send(_rendered(self._page(head)))
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
            logger.debug("a connection to the login's listener broke", exc_info=True)
        finally:
            self._connections -= 1

    def _page(self, head: bytes) -> _Page:
        """Return what to show for a request, and take its answer if it is the one."""
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1.") or method != "GET":
            return _WRONG
        hosts = [line.partition(":")[2].strip() for line in lines if line.lower()[:5] == "host:"]
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            # A page elsewhere whose host name was made to lead here.
            return _WRONG
        try:
            parts = urlsplit(target)
            # Twice the same parameter is a mistake or an attack; so is a thousand.
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=32)
        except ValueError:
            return _WRONG
        if parts.path != PATH:
            return _NOTHING
        return self._take({name: values[0] for name, values in query.items() if len(values) == 1})

    def _take(self, query: dict[str, str]) -> _Page:
        state = query.get("state", "")
        same = secrets.compare_digest(state.encode("utf-8", "replace"), self._state.encode())
        if not self._state or not same:
            return _FOREIGN
        if self._answer is not None:
            return _USED
        if not query.get("code") and "error" not in query:
            return _WRONG
        error = ""
        if "error" in query:
            error = named(query["error"]) or "an error without a name"
        self._answer = Answer(
            state=state,
            code="" if error else query["code"],
            error=error,
            description=_plain(query.get("error_description", "")) if error else "",
            issuer=query.get("iss"),
        )
        self._answered.set()
        if not error:
            return _DONE
        said = f"The server said: {error}. {self._answer.description}"
        return _Page("200 OK", "Not logged in", f"{said} You can close this page.")


@asynccontextmanager
async def listen(host: Host = "127.0.0.1", port: int = 0) -> AsyncIterator[Callback]:
    """Listen on loopback.

    Args:
        host: What the browser is told. Either way nothing but this machine can connect.
        port: Any free one if 0.

    Raises:
        OSError: The port is taken.
    """
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    async with listener:
        callback = Callback(host, listener.extra(SocketAttribute.local_port))
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, callback.serve)
            try:
                yield callback
            except Exception as error:
                # Raised through the task group it would arrive wrapped.
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def _read_head(stream: SocketStream) -> bytes:
    """Return a request's head, as far as it fits; a body is not read."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < MAX_HEAD_BYTES:
        data += await stream.receive(4096)
    head, end, _ = data.partition(b"\r\n\r\n")
    return head if end else b""


def _plain(text: str) -> str:
    """Return what can be shown of a text from elsewhere."""
    return "".join(c for c in text if c.isprintable())[:MAX_DESCRIPTION_CHARS]


def _rendered(page: _Page) -> bytes:
    title, text = html.escape(page.title), html.escape(page.text)
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<h1>{title}</h1><p>{text}</p></html>"
    ).encode()
    head = (
        f"HTTP/1.1 {page.status}",
        "Content-Type: text/html; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        # The code stands in this page's address, which must not go anywhere with a link.
        "Referrer-Policy: no-referrer",
        "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body
