"""`login` and `logout` as installed, and the errors that programs in a sandbox get."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread

from bridge.cli.servers import login, logout
from bridge.errors import BridgeError, LoginFailedError, LoginRequiredError, UnknownError
from bridge.model import RunRequest
from bridge.runs import open_engine
from bridge.settings import load
from tests.fakes.servers.guarded import Guarded, guarded

BRIDGE = Path(sys.executable).parent / "mcp-code-bridge"

BROWSER = f"""#!{sys.executable}
import sys, urllib.request
urllib.request.urlopen(sys.argv[1]).read()
"""

ASK = "print(await mcp_shop.echo(a=1))"

ASK_UNSEEN = """
try:
    await runtime.call_tool("sh" + "op", "echo", {})
except MCPError as error:
    print(error)
"""

SENTENCE = "Server 'shop' wants you to log in. Ask the user to run: mcp-code-bridge login shop"


class User:
    """A user with one remote server, a browser and no keyring."""

    def __init__(self, home: Path, fake: Guarded, runtime: str) -> None:
        self.home = home
        browser = home / "browser"
        browser.write_text(BROWSER)
        browser.chmod(0o755)
        servers = {"shop": {"type": "http", "url": fake.url}, "local": {"command": "true"}}
        (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
        self.environ = {
            **os.environ,
            "HOME": str(home),
            "MCP_BRIDGE_STATE_DIR": str(home / "state"),
            "MCP_BRIDGE_RUNTIME": runtime,
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
            "BROWSER": str(browser),
        }

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BRIDGE), *arguments],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=self.environ,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.mark.parametrize("runtime", ["bubblewrap"])
async def test_a_user_logs_in_when_a_program_asks_and_no_output_holds_a_secret(
    tmp_path: Path, runtime: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with guarded() as fake:
        user = User(tmp_path, fake, runtime)
        settings = load({}, user.environ)
        async with open_engine(settings, cwd=str(tmp_path)) as engine:
            with pytest.raises(LoginRequiredError, match=SENTENCE):
                await engine.run(RunRequest(code=ASK))
            unseen = await engine.run(RunRequest(code=ASK_UNSEEN))
            assert unseen.stdout.strip() == f"shop.echo: {SENTENCE}"
            done = await to_thread.run_sync(user.command, "login", "shop")
            assert done.stdout == "Logged in to 'shop' (read).\n"
            assert "file" in done.stderr
            seen = await engine.run(RunRequest(code=ASK))
            assert seen.stdout.strip() == "{'a': 1}\ndone"
        (kept,) = (tmp_path / "state" / "logins").glob("*.json")
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        await logout(settings, server="shop")
        assert not kept.exists()
        told = "".join([*capfd.readouterr(), done.stdout, done.stderr, repr(unseen), repr(seen)])
    assert "Logged out of 'shop'" in told
    assert [text for text in fake.authority.secrets if text in told] == []


@pytest.mark.parametrize(
    ("server", "kind", "problem"),
    [
        ("local", LoginFailedError, "is a local server"),
        ("shoop", UnknownError, "Did you mean 'shop'"),
        ("shop", LoginFailedError, "no user logged in within 1 s"),
    ],
)
async def test_no_browser_only_shows_the_address(
    tmp_path: Path,
    server: str,
    kind: type[BridgeError],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with guarded() as fake:
        user = User(tmp_path, fake, "auto")
        with pytest.raises(kind, match=problem):
            await login(load({}, user.environ), server=server, timeout=1, no_browser=True)
        out, err = capsys.readouterr()
        assert (out, f"{fake.origin}/authorize?" in err) == ("", server == "shop")
        assert fake.authority.counts["authorized"] == 0
