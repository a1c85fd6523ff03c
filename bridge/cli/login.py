"""`login` and `logout`: OAuth tokens for remote servers."""

from __future__ import annotations

import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Annotated

from bridge.cli.options import Server, flag, opt
from bridge.cli.output import visible, write_err, write_out
from bridge.cli.status import open_engine
from bridge.model import ServerSpec
from bridge.settings import Settings
from bridge.upstream.token_store import TokenStore

if TYPE_CHECKING:
    from bridge.upstream.oauth_callback import Callback


async def login(
    settings: Settings,
    *,
    server: Server,
    no_browser: Annotated[bool, flag("--no-browser", "only print the address")] = False,
    timeout: Annotated[float, opt("SECONDS", "how long to wait for you")] = 300.0,
) -> int:
    """Log in to a remote server.

    Examples:
        login linear
    """
    # Imported here: it imports the MCP SDK, which help does not need.
    from bridge.upstream.oauth_login import log_in

    spec = await _spec(server, settings, connecting=True)
    # Without these, `webbrowser` would open a browser in the terminal itself.
    windows = map(settings.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    opens = not no_browser and (sys.platform == "darwin" or any(windows))

    async def show(url: str, callback: Callback) -> None:
        if callback.notice:
            write_err(f"{visible(callback.notice)}\n\n")
        what = "Open this address in a browser"
        what = "A browser opens this address. If none does, open it yourself" if opens else what
        write_err(
            f"{what}:\n\n{visible(url)}\n\n"
            f"Waiting for {timeout:g} s. The browser comes back to port {callback.port} of this "
            "machine; if it runs elsewhere, forward that port first.\n"
        )
        if opens:
            # Not awaited: some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    done = await log_in(spec, TokenStore(settings.state_dir / "logins"), show, seconds=timeout)
    granted = f" ({visible(done.scope)})" if done.scope else ""
    write_out(f"Logged in to {visible(repr(spec.name))}{granted}.\n")
    if done.end:
        write_err(f"{visible(done.end)}\n")
    file = f"a file under {settings.state_dir / 'logins'} that only you can read: {done.notice}"
    place = "the system's keyring" if done.place == "keyring" else file
    write_err(f"The tokens are in {place}.\n")
    return 0


async def logout(settings: Settings, *, server: Server) -> int:
    """Remove the login to a server."""
    from bridge.upstream.oauth_login import log_out

    spec = await _spec(server, settings)
    removed, revoked = await log_out(spec, TokenStore(settings.state_dir / "logins"))
    name = visible(repr(spec.name))
    if not removed:
        write_err(f"There is no login to {name}.\n")
        return 0
    write_out(f"Logged out of {name}.\n")
    if not revoked:
        write_err("The authorization server did not confirm that it revoked the tokens.\n")
    return 0


async def _spec(server: str, settings: Settings, *, connecting: bool = False) -> ServerSpec:
    async with open_engine(settings) as engine:
        spec = engine.servers.pool.spec(engine.servers.resolve(server))
        if connecting:
            # By this command the user agrees to the server's present definition.
            await engine.gate.starts.start(spec, asked_for=True)
        return spec
