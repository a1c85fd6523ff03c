"""A company's network: servers behind a proxy, and certificates of its own authority."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bridge.errors import ServerStartError
from bridge.upstream.oauth_web import WebError, explain_route, fetch, web_client
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
async def test_a_server_on_this_machine_is_reached_without_the_proxy(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """By its address and by its name."""
    with reserved_port() as port, rig.web("http") as url:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
        for address in (url, url.replace("127.0.0.1", "localhost")):
            async with rig.pool(rig.remote(address)) as pool:
                assert await pool.tools("server")


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("http://localhost/mcp", ""),
        ("http://LOCALHOST.:80/mcp", ""),
        ("https://127.8.9.10/mcp", ""),
        ("http://[::1]:8000/mcp", ""),
        ("http://mcp.example.org/", "HTTP_PROXY"),
        ("https://mcp.example.org/", "ALL_PROXY"),
        ("http://localhost.example.org/", "HTTP_PROXY"),
        ("https://10.0.0.1/", "ALL_PROXY"),
        ("https://inside.example.net/", ""),
    ],
)
def test_an_error_names_the_proxy_and_its_variable(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str
) -> None:
    """None does for loopback addresses and for what NO_PROXY names."""
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy.example:3128")
    monkeypatch.setenv("ALL_PROXY", "user:secret@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "example.net")
    proxy = f" (through the proxy proxy.example:3128 of {variable}; NO_PROXY makes"
    assert explain_route(httpx2.URL(url), OSError()).startswith(proxy if variable else "")
    assert bool(explain_route(httpx2.URL(url), OSError())) is bool(variable)


async def test_a_proxy_that_does_not_answer_is_named(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its variable, and without its password; for a login too."""
    url = httpx2.URL("https://mcp.example.test/mcp")
    with reserved_port() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{port}")
        async with rig.pool(rig.remote(str(url))) as pool, web_client() as client:
            with pytest.raises(ServerStartError) as caught:
                await pool.start("server")
            with pytest.raises(WebError, match="through the proxy .* of HTTPS_PROXY"):
                await fetch(client, client.build_request("GET", url), url)
    assert f"through the proxy 127.0.0.1:{port} of HTTPS_PROXY" in caught.value.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("variable", CERTIFICATES)
async def test_a_company_s_certificates_are_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    """Without them the error says which variable to set."""
    authority = _certificates(tmp_path)
    with rig.web("http") as plain:
        async with _behind_tls(plain, tmp_path) as url, rig.pool(rig.remote(url)) as pool:
            with pytest.raises(ServerStartError, match="CERTIFICATE_VERIFY_FAILED.*set NODE_EXTRA"):
                await pool.start("server")
            monkeypatch.setenv(variable, str(authority))
            assert await pool.tools("server")


def _certificates(directory: Path) -> Path:
    """Write the certificate and key of a server on 127.0.0.1; return that of its authority."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("a", "b")]
    now = datetime.now(UTC)
    paths = [directory / "authority.pem", directory / "server.pem"]
    for number, path in enumerate(paths):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(keys[number].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
        )
        if number:
            address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
            builder = builder.add_extension(address, critical=False)
        certificate = builder.sign(keys[0], hashes.SHA256())
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key = keys[1].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (directory / "key.pem").write_bytes(key)
    return paths[0]


@asynccontextmanager
async def _behind_tls(url: str, directory: Path) -> AsyncIterator[str]:
    """Give the address at which a web server is reached over TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "server.pem", directory / "key.pem")
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
        tasks.cancel_scope.cancel()
