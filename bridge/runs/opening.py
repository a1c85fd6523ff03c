"""Opens an engine on the user's own servers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import anyio

from bridge.callers.client import RunCaller
from bridge.errors import CannotAskError, LoginFailedError
from bridge.gate.privacy import clear_logs
from bridge.gate.question import safe_name
from bridge.inventory.configuration import ConfigFinder, Finder, context_for
from bridge.inventory.consents import consents_of
from bridge.inventory.learned_shapes import LearnedShapes
from bridge.inventory.secrets import Secrets
from bridge.inventory.servers import Servers
from bridge.inventory.tool_cache import ToolCache
from bridge.model import ServerSpec
from bridge.private_files import in_use, make_directory
from bridge.runs.engine import Engine
from bridge.sandbox.backend import Backend
from bridge.sandbox.ownership import current_owner, reap_leftovers
from bridge.sandbox.selection import select_backend
from bridge.settings import Settings, runtime_dir, store_of
from bridge.upstream.client_features import current_caller
from bridge.upstream.launch import Containers
from bridge.upstream.oauth import Logins
from bridge.upstream.pool import Pool
from bridge.upstream.token_store import TokenStore

logger = logging.getLogger(__name__)


class LoginOffers:
    """Offers logins to clients that can send their user to an address (URL elicitation)."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        # Two login pages at once would confuse the user.
        self._one_at_a_time = anyio.Lock()

    async def offer(self, spec: ServerSpec) -> bool:
        """Ask the user of the current run to log in; return whether they did.

        Each run offers a login to a server once.
        """
        # Imported here: most bridges offer no login, and it takes an HTTP server of its own.
        from bridge.upstream.oauth_callback import Callback
        from bridge.upstream.oauth_login import log_in

        run = current_caller()
        if not isinstance(run, RunCaller) or not run.may_visit or spec.name in run.offered_logins:
            return False
        run.offered_logins.add(spec.name)

        async def show(url: str, callback: Callback) -> None:
            host = safe_name(urlsplit(url).hostname or "", listed=False)
            message = (
                f"mcp-code-bridge: the server {safe_name(spec.name)} wants you to log in at "
                f"{host}. The browser comes back to port {callback.port} of the bridge's machine."
            )
            answer = await run.elicit({"mode": "url", "message": message, "url": url})
            if answer.get("action") != "accept":
                raise LoginFailedError("The user did not want to log in.", server=spec.name)

        try:
            with run.clock.stop():
                async with self._one_at_a_time:
                    await log_in(spec, self._store, show, seconds=300.0)
        except (CannotAskError, LoginFailedError) as error:
            logger.info("no login to server %r: %s", spec.name, error)
            return False
        return True


class ServerContainers(Containers):
    """Labels and removes the containers of servers in the same way as sandboxes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def labels(self) -> Mapping[str, str]:
        return current_owner().labels()

    async def reap(self, engine: str, environ: Mapping[str, str], ended: str) -> None:
        # Imported here: most bridges have no server in a container.
        from bridge.sandbox.container.backend import container_backend

        settings = replace(self._settings, environ=environ)
        async with container_backend(engine, settings) as backend:
            backend.ended = ended
            await reap_leftovers(backend)


@asynccontextmanager
async def open_engine(
    settings: Settings,
    *,
    finder: Finder | None = None,
    choose_backend: Callable[[Settings], Awaitable[Backend]] = select_backend,
    cwd: str | None = None,
    eager: bool = True,
    patient: bool = False,
) -> AsyncIterator[Engine]:
    """Open an engine on the user's own servers.

    Args:
        finder: Finds servers; by default in the clients' configuration files.
        choose_backend: Finds a backend; by default with `bridge.sandbox.selection`.
        cwd: The project's directory; by default the current one.
        eager: Whether to wait until the configuration is read; see `Servers`.
        patient: Whether runs wait for a server that is being installed.
    """
    secrets = Secrets(settings.environ, settings.secret_names)
    logins = Logins(settings.state_dir / "logins", on_tokens=secrets.login)
    pool = Pool(
        (),
        log_dir=settings.state_dir / "logs",
        environ=settings.environ,
        call_timeout=settings.call_timeout,
        start_timeout=settings.start_timeout,
        start_patience=settings.start_patience,
        patient=patient,
        logins=logins,
        roots=settings.roots,
        server_settings=settings.server_settings,
    )
    pool.containers = ServerContainers(settings)
    consents = consents_of(settings)
    context = context_for(settings, cwd)
    where = finder or ConfigFinder(context, consents)
    store = store_of(settings)
    servers = Servers(
        where,
        pool,
        ToolCache(store),
        eager=eager,
        observed=LearnedShapes(store),
        secrets=secrets,
        consents=consents,
        offer_login=LoginOffers(logins.store).offer,
    )
    try:
        async with AsyncExitStack() as stack:
            with suppress(OSError):
                # `purge` removes no directory that is in use.
                stack.enter_context(in_use(settings.state_dir))
                make_directory(sockets := runtime_dir(settings))
                stack.enter_context(in_use(sockets))
            stack.enter_context(clear_logs(secrets.redactor))
            engine = Engine(settings, servers, choose_backend)
            yield await stack.enter_async_context(engine.opened())
    finally:
        store.close()
