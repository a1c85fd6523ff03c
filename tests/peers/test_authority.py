"""A login at oidc-provider, an authorization server that is not an SDK's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import keyring
import pytest
from keyring.backends import fail

from bridge.errors import LoginRequiredError
from bridge.upstream.oauth import Logins
from bridge.upstream.oauth_login import log_in, log_out
from tests.peers.rig import NODE, NPM
from tests.ports import reserved_port
from tests.upstream.login_rig import browse
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.full


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """The address of a server that trusts it."""
    with reserved_port() as authority, reserved_port() as server:
        command = [str(NODE), str(NPM / "authority.mjs"), str(authority), str(server)]
        async with await anyio.open_process(command, stderr=None) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            told = b""
            while b"ready" not in told:
                told += await process.stdout.receive()
            yield f"http://127.0.0.1:{server}/mcp"
            # It may be the child of a launcher, which a signal would not reach.
            await process.stdin.aclose()


async def test_a_login_is_asked_for_made_used_and_ended(tmp_path: Path, url: str) -> None:
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]
    rig, logins = Rig(tmp_path), Logins(tmp_path / "logins")
    spec = rig.remote(url)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with rig.pool(spec, logins=logins) as pool:
            with pytest.raises(LoginRequiredError):
                await pool.server("server").tools()
            done = await log_in(spec, logins.store, browse, seconds=PATIENCE_SECONDS)
            assert "tools" in done.scope
            result = await pool.call_tool("server", "who", {})
        assert result["content"] == [{"type": "text", "text": "somebody"}]
        assert await log_out(spec, logins.store) == (True, True)
        async with rig.pool(spec, logins=logins) as pool:
            with pytest.raises(LoginRequiredError):
                await pool.server("server").tools()
