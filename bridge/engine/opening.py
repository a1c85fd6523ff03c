"""An engine on the user's own servers, with everything that it keeps in the state directory.

Owns which parts an engine is put together from, and nothing of what they do.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bridge.engine.clearing import clear_logs
from bridge.engine.consenting import consents_of
from bridge.engine.engine import Engine
from bridge.engine.login_offers import LoginOffers
from bridge.engine.observed import Observed
from bridge.engine.secrets import Secrets
from bridge.engine.servers import ConfigFinder, Finder, Servers, context_for
from bridge.engine.tool_cache import ToolCache
from bridge.sandbox.backend import Backend
from bridge.sandbox.choose import choose
from bridge.settings import Settings
from bridge.store import Store
from bridge.upstream.oauth import Logins
from bridge.upstream.pool import Pool


@asynccontextmanager
async def open_engine(
    settings: Settings,
    *,
    finder: Finder | None = None,
    choose_backend: Callable[[Settings], Awaitable[Backend]] = choose,
    cwd: str | None = None,
    eager: bool = True,
) -> AsyncIterator[Engine]:
    """Open an engine on the user's own servers.

    Args:
        settings: What the user asked for.
        finder: Finds servers; the clients' configuration files unless given.
        choose_backend: Finds a backend; the ladder of `bridge.sandbox.choose` unless given.
        cwd: Where project configurations are looked for; the current directory unless given.
        eager: Whether to wait until the configuration is read; see `Servers`.
    """
    secrets = Secrets(settings.environ)
    logins = Logins(settings.state_dir / "logins", heard=secrets.login)
    pool = Pool(
        (),
        log_dir=settings.state_dir / "logs",
        environ=settings.environ,
        call_timeout=settings.call_timeout,
        start_timeout=settings.start_timeout,
        logins=logins,
        roots=settings.roots,
        eras=settings.eras,
    )
    consents = consents_of(settings)
    context = context_for(settings, cwd or str(Path.cwd()), sys.platform)
    where = finder or ConfigFinder(context, consents)
    store = Store(settings.state_dir)
    servers = Servers(
        where,
        pool,
        ToolCache(store),
        eager=eager,
        observed=Observed(store),
        secrets=secrets,
        consents=consents,
        offer_login=LoginOffers(logins.store).offer,
    )
    with clear_logs(secrets.redactor):
        async with Engine(settings, servers, choose_backend) as engine:
            yield engine
