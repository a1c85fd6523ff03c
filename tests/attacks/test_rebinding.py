"""A web page whose name was made to resolve to this machine."""

from __future__ import annotations

import pytest
from mcp.server.transport_security import TransportSecurityMiddleware
from starlette.requests import Request

from bridge.server.transports import guard, parse_address

ADDRESSES = [
    "127.0.0.1:8765",
    "127.0.0.2:8765",
    "localhost:8765",
    "[::1]:8765",
    "[0:0:0:0:0:0:0:1]:8765",
]


async def _refused(address: str, **headers: str) -> bool:
    host, _ = parse_address(address)
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "GET", "path": "/mcp", "headers": lines})
    return await TransportSecurityMiddleware(guard(host)).validate_request(request) is not None


@pytest.mark.parametrize("address", ADDRESSES)
async def test_every_loopback_address_refuses_a_foreign_host_or_origin(address: str) -> None:
    """Whoever gets through can run programs and call the user's servers."""
    assert await _refused(address, host="evil.example:8765")
    assert await _refused(address, host=address, origin="http://evil.example")
    assert not await _refused(address, host=address)
