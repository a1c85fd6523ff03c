"""A web page whose name was made to resolve to this machine."""

from __future__ import annotations

import pytest
from mcp.server.transport_security import TransportSecurityMiddleware
from starlette.requests import Request

from bridge.server.transports import guard, parse_address

ADDRESSES = ["127.0.0.1", "127.0.0.2", "localhost", "[::1]", "[0:0:0:0:0:0:0:1]"]
FOREIGN = """
localhost:8765.evil.example localhost:8765@evil.example localhost:80 localhost
localhost.evil.example:8765 127.0.0.1.evil.example 127.0.0.1:8765.evil.example
[::1]:8765.evil.example evil.example
"""


async def _refuses(address: str, **headers: str) -> bool:
    host, port = parse_address(address)
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "GET", "path": "/mcp", "headers": lines})
    middleware = TransportSecurityMiddleware(guard(host, port))
    return await middleware.validate_request(request) is not None


@pytest.mark.guarantee("http-clients")
@pytest.mark.parametrize("address", ADDRESSES)
async def test_every_loopback_address_refuses_a_foreign_host_or_origin(address: str) -> None:
    address = f"{address}:8765"
    assert await _refuses(address, host="evil.example:8765")
    assert await _refuses(address, host=address, origin="http://evil.example")
    assert not await _refuses(address, host=address)


@pytest.mark.guarantee("http-clients")
@pytest.mark.parametrize("host", FOREIGN.split())
async def test_host_and_origin_are_compared_whole_with_their_port(host: str) -> None:
    address = "localhost:8765"
    assert await _refuses(address, host=host)
    assert await _refuses(address, host=address, origin=f"http://{host}")
    assert await _refuses(address, host=address, origin=f"https://{address}")
    assert not await _refuses(address, host=address, origin=f"http://{address}")


async def test_the_port_that_browsers_leave_out_may_be_left_out() -> None:
    assert not await _refuses("localhost:80", host="localhost", origin="http://localhost")
    assert await _refuses("localhost:80", host="localhost.evil.example")
