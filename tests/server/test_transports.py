"""Where the bridge may listen."""

from __future__ import annotations

import pytest

from bridge.errors import UsageError
from bridge.server.transports import parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_a_loopback_address_is_taken(text: str, address: tuple[str, int]) -> None:
    """Names and both families."""
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["127.0.0.1", ":80", "localhost:65536", "a b:1", ""])
def test_something_else_is_explained(text: str) -> None:
    """With an example."""
    with pytest.raises(UsageError, match=r"is not HOST:PORT, such as"):
        parse_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "example.org:80"])
def test_an_address_that_others_can_reach_is_refused(text: str) -> None:
    """There is no authentication yet, and whoever reaches the bridge can use every server."""
    with pytest.raises(UsageError, match="can be reached from other machines"):
        parse_address(text)
