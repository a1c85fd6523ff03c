"""A client for the official suite's scenarios of authorization, made of the bridge's own parts.

conformance_client.py DIRECTORY URL
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import httpx2

from bridge.errors import LoginRequiredError
from bridge.model import OAuthHints, ServerSpec, Source
from bridge.upstream.oauth import Logins
from bridge.upstream.oauth_callback import Callback
from bridge.upstream.oauth_login import log_in
from bridge.upstream.pool import Pool

MAX_LOGINS = 3
"""One for the server and one for each step of permissions that a scenario has."""


DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The suite's metadata document: a client that has one is configured with its address as its id."""


async def browse(url: str, callback: Callback) -> None:
    async with httpx2.AsyncClient() as browser:
        await browser.get(url, follow_redirects=True)


async def use(directory: Path, url: str) -> None:
    """List and call all tools, logging in when told to."""
    source = Source(client="Test", scope="user", path="/tmp/servers.json", key="server")
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    if os.environ.get("MCP_CONFORMANCE_SCENARIO") == "auth/basic-cimd":
        given = {"client_id": DOCUMENT}
    registered = OAuthHints(
        client_id=given.get("client_id", ""), client_secret=given.get("client_secret", "")
    )
    spec = ServerSpec(name="server", transport="http", source=source, url=url, oauth=registered)
    logins = Logins(directory / "logins")
    async with Pool([spec], log_dir=directory, environ=os.environ, logins=logins) as pool:
        for _ in range(MAX_LOGINS + 1):
            try:
                for tool in await pool.tools("server"):
                    await pool.call_tool("server", tool.name, {})
            except LoginRequiredError:
                await log_in(spec, logins.store, browse, seconds=20)
            else:
                return
    message = "it never had enough"
    raise SystemExit(message)


if __name__ == "__main__":
    anyio.run(use, Path(sys.argv[1]), sys.argv[2])
