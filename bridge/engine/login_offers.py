"""Offering a login to the person at the client, when a run needs a server that wants one.

Owns whom it is offered to, and how often. The login itself is `bridge.upstream.oauth_login`'s.
"""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

import anyio

from bridge.engine.client import OneRun
from bridge.errors import CannotAskError, LoginFailedError
from bridge.gate.question import safe_name
from bridge.model import ServerSpec
from bridge.upstream.asking import current_caller
from bridge.upstream.oauth_callback import Callback
from bridge.upstream.oauth_login import log_in
from bridge.upstream.tokens import TokenStore

logger = logging.getLogger(__name__)

LOGIN_SECONDS = 300.0
"""For a person to log in once they have agreed to; the run's time stands still meanwhile."""


class LoginOffers:
    """Offers logins to clients that can send their user to an address (URL elicitation)."""

    def __init__(self, store: TokenStore) -> None:
        self._store = store
        # Two pages at once, for one server perhaps, would only confuse.
        self._one_at_a_time = anyio.Lock()

    async def offer(self, spec: ServerSpec) -> bool:
        """Have the user of the current run log in; return whether they did.

        Each run offers a login to a server once.
        """
        run = current_caller()
        if not isinstance(run, OneRun) or not run.may_visit or spec.name in run.offered_logins:
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
                declined = "The user did not want to log in."
                raise LoginFailedError(declined, server=spec.name)

        try:
            with run.clock.stop():
                async with self._one_at_a_time:
                    await log_in(spec, self._store, show, seconds=LOGIN_SECONDS)
        except (CannotAskError, LoginFailedError) as error:
            logger.info("no login to server %r: %s", spec.name, error)
            return False
        return True
