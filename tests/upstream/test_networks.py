"""A company's network: servers behind a proxy, and certificates of its own authority."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import httpx2
import pytest
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream

from bridge.errors import ServerStartError
from bridge.upstream.oauth_web import WebClient, WebError, explain_route, fetch
from tests.ports import reserved_port
from tests.upstream.rig import Rig

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
CERTIFICATES = ("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "NO_PROXY", *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("variable", VARIABLES)
async def test_loopback_needs_no_proxy(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with reserved_port() as port, rig.web("http") as url:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
        for address in (url, url.replace("127.0.0.1", "localhost")):
            async with rig.pool(rig.remote(address)) as pool:
                assert await pool.server("server").tools()


def test_an_error_names_the_proxy_and_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """None does for loopback addresses and for what NO_PROXY names."""
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy.example:3128")
    monkeypatch.setenv("ALL_PROXY", "user:secret@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "example.net")
    for host in ("localhost", "127.8.9.10", "[::1]:8000", "inside.example.net"):
        assert explain_route(httpx2.URL(f"https://{host}/mcp"), OSError()) == ""
    for scheme, variable in (("http", "HTTP_PROXY"), ("https", "ALL_PROXY")):
        said = explain_route(httpx2.URL(f"{scheme}://localhost.example.org/"), OSError())
        assert said.startswith(f" (through the proxy proxy.example:3128 of {variable}; NO_PROXY")


async def test_a_silent_proxy_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its variable, and without its password; for a login too."""
    url = httpx2.URL("https://mcp.example.test/mcp")
    with reserved_port() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{port}")
        async with rig.pool(rig.remote(str(url))) as pool, WebClient(timeout=None) as client:
            with pytest.raises(ServerStartError) as caught:
                await pool.server("server").start()
            with pytest.raises(WebError, match="through the proxy .* of HTTPS_PROXY"):
                await fetch(client, client.build_request("GET", url), url)
    assert f"through the proxy 127.0.0.1:{port} of HTTPS_PROXY" in caught.value.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("variable", CERTIFICATES)
async def test_own_certificates(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    """Without them the error says which variable to set."""
    certificate = _certificate(tmp_path)
    with rig.web("http") as plain:
        async with _behind_tls(plain, certificate) as url, rig.pool(rig.remote(url)) as pool:
            with pytest.raises(ServerStartError, match="CERTIFICATE_VERIFY_FAILED.*set NODE_EXTRA"):
                await pool.server("server").start()
            monkeypatch.setenv(variable, str(certificate))
            assert await pool.server("server").tools()


def _certificate(directory: Path) -> Path:
    """Write a certificate that a server here has issued to itself, and its key beside it."""
    path = directory / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(path)]
    command += ["-keyout", str(path.with_suffix(".key"))]
    subprocess.run(command, check=True, capture_output=True)
    return path


@asynccontextmanager
async def _behind_tls(url: str, certificate: Path) -> AsyncIterator[str]:
    """Give the address at which a web server is reached over TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    target = urlsplit(url)

    async def copy(source: ByteReceiveStream, sink: ByteSendStream) -> None:
        async for data in source:
            await sink.send(data)

    async def handle(client: TLSStream) -> None:
        async with (
            client,
            await anyio.connect_tcp(str(target.hostname), target.port or 0) as server,
        ):
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(copy, client, server)
                    await copy(server, client)
                    tasks.cancel_scope.cancel()
            except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        serve = TLSListener(listener, context, standard_compatible=False).serve
        tasks.start_soon(partial(serve, handle))
        yield f"https://127.0.0.1:{port}{target.path}"
        # The clients are gone. What they had opened is accepted first: cancelled in the midst of
        # that, asyncio forgets the socket.
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
