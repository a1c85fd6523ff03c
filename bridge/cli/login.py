"""`login` and `logout`: tokens for remote servers, with a person at a browser."""

from __future__ import annotations

import sys
import threading
import webbrowser
from types import SimpleNamespace

from bridge.cli.output import visible, write_err, write_out
from bridge.errors import UsageError
from bridge.model import ServerSpec
from bridge.runs import open_engine
from bridge.settings import Settings
from bridge.upstream.oauth_callback import Callback
from bridge.upstream.oauth_login import log_in, log_out
from bridge.upstream.token_store import TokenStore

WAIT_SECONDS = 300.0  # Seconds for a person to log in, by default.
LONGEST_SECONDS = 3600.0  # That may be asked for.


async def login(arguments: SimpleNamespace, settings: Settings) -> int:
    """Log in to a server and keep the tokens."""
    seconds = _seconds(arguments.timeout)
    spec = await _spec(arguments.server, settings, connecting=True)
    opens = not arguments.no_browser and _has_browser(settings)

    async def show(url: str, callback: Callback) -> None:
        what = "Open this address in a browser"
        if callback.notice:
            write_err(f"{visible(callback.notice)}\n\n")
        if opens:
            what = "A browser opens this address. If none does, open it yourself"
        write_err(
            f"{what}:\n\n{visible(url)}\n\n"
            f"Waiting for {seconds:g} s. The browser comes back to port {callback.port} of this "
            "machine; if it runs elsewhere, forward that port first.\n"
        )
        if opens:
            # In a thread that is not awaited: some browsers return late.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    done = await log_in(spec, TokenStore(settings.state_dir / "logins"), show, seconds=seconds)
    granted = f" ({visible(done.scope)})" if done.scope else ""
    write_out(f"Logged in to {visible(repr(spec.name))}{granted}.\n")
    if done.end:
        write_err(f"{visible(done.end)}\n")
    if done.place == "keyring":
        write_err("The tokens are in the system's keyring.\n")
    else:
        write_err(
            f"The tokens are in a file under {settings.state_dir / 'logins'} that only you can "
            f"read: {done.notice}.\n"
        )
    return 0


async def logout(arguments: SimpleNamespace, settings: Settings) -> int:
    spec = await _spec(arguments.server, settings)
    removed, revoked = await log_out(spec, TokenStore(settings.state_dir / "logins"))
    name = visible(repr(spec.name))
    if not removed:
        write_err(f"There is no login to {name}.\n")
        return 0
    write_out(f"Logged out of {name}.\n")
    if not revoked:
        write_err("Its authorization server was not told, or did not confirm it.\n")
    return 0


async def _spec(server: str, settings: Settings, *, connecting: bool = False) -> ServerSpec:
    async with open_engine(settings) as engine:
        spec = engine.servers.pool.spec(engine.servers.resolve(server))
        if connecting:
            # A person at a terminal agrees to the server as it is defined now.
            await engine.gate.starts.start(spec, asked_for=True)
        return spec


def _seconds(text: str | None) -> float:
    try:
        seconds = WAIT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= LONGEST_SECONDS:
        msg = f"--timeout takes a number of seconds from 1 to {LONGEST_SECONDS:g}, not {text!r}."
        raise UsageError(msg)
    return seconds


def _has_browser(settings: Settings) -> bool:
    """Return whether a browser would open in a window, and not in the terminal itself."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(map(settings.environ.get, names))
