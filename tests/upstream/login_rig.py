"""Logs in as a person does, and reads the stored login."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx2

from bridge.model import ServerSpec
from bridge.upstream.oauth import Login, Logins
from bridge.upstream.oauth_login import Callback, LoginResult, ShowAddress, log_in
from bridge.upstream.pool import Pool
from bridge.upstream.token_store import TokenRecord, key_of
from tests.fakes.servers.guarded import Guarded
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS


async def browse(url: str, callback: Callback | None = None) -> Any:
    async with httpx2.AsyncClient() as browser:
        return await browser.get(url, follow_redirects=True)


async def do_login(spec: ServerSpec, logins: Logins, show: ShowAddress = browse) -> LoginResult:
    return await log_in(spec, logins.store, show, seconds=PATIENCE_SECONDS)


class Desk:
    """A user with a browser and logins, and a server that requires a login."""

    def __init__(self, rig: Rig, logins: Logins, fake: Guarded) -> None:
        self.rig, self.logins, self.fake = rig, logins, fake
        self.authority = fake.authority
        self.url = httpx2.URL(fake.url)
        self.spec = rig.remote(fake.url)
        self.key = key_of(self.spec)

    def pool(self) -> Pool:
        return self.rig.pool(self.spec, logins=self.logins)

    async def log_in(self, show: ShowAddress = browse) -> LoginResult:
        return await do_login(self.spec, self.logins, show)

    async def record(self) -> TokenRecord:
        record = await self.logins.store.load(self.key)
        assert record is not None
        return record

    def login(self, clock: Callable[[], float] = time.time) -> Login:
        return Login(self.spec, self.logins.store, clock=clock)
